import pytest

from serving.core.settings.daemons import ACTIVATOR, DAEMONS
from serving.core.settings.knob import ConfigMap, ConfigMapEntry, SettingsRecord
from serving.core.settings.live import LiveSettings
from serving.core.settings.load import Daemon, load, unknown_keys
from serving.core.settings.queueproxy import QUEUEPROXY

ENTRY = ConfigMapEntry(key="pod-tries-max", text="3", where="file:7")
CONFIG_MAP = ConfigMap(name="config-activator", where="file:1", entries=(ENTRY,))


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)
def test_removed_setting_is_constant_of_record(daemon: Daemon[SettingsRecord]) -> None:
    for name in daemon.removed:
        value: object = daemon.record()
        for part in name.split("."):
            value = getattr(value, part)
        assert isinstance(value, bool | int | float)
    assert daemon.removed.keys().isdisjoint(field.name for field in daemon.fields())
    assert set(daemon.removed.values()).isdisjoint(field.knob.key for field in daemon.fields())


def test_removed_setting_is_ignored_and_reported_with_constant() -> None:
    loaded = load(
        ACTIVATOR,
        registry=DAEMONS,
        config_maps=[CONFIG_MAP],
        environment={"SERVING_ACTIVATOR_HTTP_HTTP2_RESETS_MAX": "1", "SERVING_ACTIVATOR_REPORT_PERIOD_S": "5"},
        flags={"report_period_s": "5", "queue_depth_max": "7"},
    )
    assert loaded.settings.queue_depth_max == 7
    assert loaded.settings.pod_tries_max == 8
    assert [(problem.where, problem.what.split()[0], problem.expected) for problem in loaded.ignored] == [
        ("file:7", "pod-tries-max", "none: it is 8"),
        ("environment SERVING_ACTIVATOR_REPORT_PERIOD_S", "report-period", "none: it is 1.0"),
        ("environment SERVING_ACTIVATOR_HTTP_HTTP2_RESETS_MAX", "http.http2-resets-max", "none: it is 200"),
        ("flag --set report_period_s", "report-period", "none: it is 1.0"),
    ]


def test_running_daemon_reports_removed_key_and_applies_others() -> None:
    live = LiveSettings(ACTIVATOR, registry=DAEMONS, environment={})
    depth = ConfigMapEntry(key="queue-depth-max", text="9", where="file:8")
    applied = live.update(ConfigMap(name="config-activator", where="file:1", entries=(ENTRY, depth)))
    assert applied
    assert [problem.where for problem in applied.unknown] == ["file:7"]
    assert live.settings.queue_depth_max == 9


def test_removed_key_is_not_unknown() -> None:
    assert unknown_keys(CONFIG_MAP, DAEMONS) == []


def test_outer_record_overrides_constant_of_inner_record() -> None:
    loaded = load(QUEUEPROXY, registry=DAEMONS, environment={"SERVING_QUEUEPROXY_HTTP_HEAD_BYTES_MAX": "2048"})
    assert (loaded.settings.http.head_bytes_max, loaded.settings.http.upstream_connect_max_s) == (2048, 20.0)
