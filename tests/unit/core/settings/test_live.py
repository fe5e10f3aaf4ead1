"""Settings that a running daemon reads from ConfigMaps."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS, DASHBOARD
from serving.core.settings.knob import COUNT, Clash, Knob, SettingsRecord, live_fields
from serving.core.settings.live import AppliedConfigMap, LiveSettings, config_map_of
from serving.core.settings.load import Daemon


def live(daemon: Daemon[SettingsRecord] = AUTOSCALER, **environment: str) -> LiveSettings[SettingsRecord]:
    return LiveSettings(daemon, registry=DAEMONS, environment=environment)


def applied(settings: LiveSettings[Any], name: str = "config-autoscaler", **data: str) -> AppliedConfigMap:
    update = settings.update(config_map_of(name, {key.replace("_", "-"): text for key, text in data.items()}))
    assert update is not None
    return update


def value(settings: LiveSettings[Any], name: str = "stable_window_s") -> object:
    return getattr(settings.settings, name)


def test_config_map_applies_to_running_daemon() -> None:
    settings = live()
    settings.begin()
    assert applied(settings, stable_window="30s").changed == ("stable_window_s",)
    assert value(settings) == 30.0


def test_unchanged_config_map_changes_no_field() -> None:
    settings = live()
    applied(settings, stable_window="30s")
    assert applied(settings, stable_window="30s") == AppliedConfigMap(
        daemon="autoscaler", config_map="config-autoscaler"
    )


def test_invalid_config_map_is_rejected_entirely_and_earlier_values_remain() -> None:
    settings = live()
    applied(settings, stable_window="30s")
    reported = applied(settings, stable_window="40s", max_scale_up_rate="nonsense")
    (problem,) = reported.problems
    assert problem.where == "ConfigMap config-autoscaler"
    assert problem.what == "max-scale-up-rate: 'nonsense' is not right"
    assert "number above 1" in problem.expected
    assert value(settings) == 30.0
    assert applied(settings, stable_window="50s").changed == ("stable_window_s",)
    assert value(settings) == 50.0


def test_daemon_starts_with_defaults_if_config_map_is_invalid() -> None:
    settings = live()
    assert applied(settings, stable_window="never", max_scale_limit="7", stats_address="127.0.0.1:1").problems
    assert settings.begin() == AUTOSCALER.record()


def test_environment_overrides_config_map() -> None:
    settings = live(SERVING_AUTOSCALER_STABLE_WINDOW_S="20")
    assert applied(settings, stable_window="30s").changed == ()
    assert value(settings) == 20.0


def test_invalid_environment_raises_settings_error() -> None:
    with pytest.raises(SettingsError):
        live(SERVING_AUTOSCALER_STABLE_WINDOW_S="soon")


def test_change_of_startup_setting_waits_for_restart() -> None:
    settings = live()
    applied(settings, stats_address="127.0.0.1:1")
    settings.begin()
    assert value(settings, "stats_address") == "127.0.0.1:1"
    reported = applied(settings, stats_address="127.0.0.1:2", stable_window="30s")
    assert (reported.changed, reported.waiting) == (("stable_window_s",), ("stats_address",))
    assert value(settings, "stats_address") == "127.0.0.1:1"
    assert applied(settings, stats_address="127.0.0.1:1").waiting == ()


def test_dashboard_reports_changed_address_as_waiting_for_restart() -> None:
    settings = live(DASHBOARD)
    settings.begin()
    assert applied(settings, "config-dashboard", address="127.0.0.1:1").waiting == ("address",)


def test_empty_config_map_restores_defaults() -> None:
    settings = live()
    applied(settings, stable_window="30s")
    assert applied(settings).changed == ("stable_window_s",)
    assert value(settings) == 60.0


def test_unrelated_config_map_is_ignored() -> None:
    assert live().update(config_map_of("kube-root-ca.crt", {"ca.crt": "..."})) is None


def test_example_block_is_ignored() -> None:
    assert live().update(config_map_of("config-autoscaler", {"_example": "stable-window: 5s"})) == AppliedConfigMap(
        daemon="autoscaler", config_map="config-autoscaler"
    )


class _Pair(SettingsRecord, frozen=True, kw_only=True):
    """Two numbers of two ConfigMaps."""

    low: Annotated[int, Knob(key="low", config_map="config-low", unit=COUNT)] = 0
    high: Annotated[int, Knob(key="high", config_map="config-high", unit=COUNT)] = 10

    def check(self) -> Iterator[Clash]:
        if self.low > self.high:
            yield Clash(fields=("low", "high"), what=f"{self.low} above {self.high}", expected="low below high")


def test_config_maps_valid_only_together_apply_together() -> None:
    daemon = Daemon(name="pair", record=_Pair, config_map="config-pair")
    settings = LiveSettings(daemon, registry=[daemon], environment={})
    assert [problem.what for problem in applied(settings, "config-low", low="20").problems] == ["20 above 10"]
    assert applied(settings, "config-high", high="nonsense").problems
    reported = applied(settings, "config-high", high="30")
    assert (reported.changed, settings.settings) == (("low", "high"), _Pair(low=20, high=30))


def test_invalid_config_map_does_not_block_another() -> None:
    daemon = Daemon(name="pair", record=_Pair, config_map="config-pair")
    settings = LiveSettings(daemon, registry=[daemon], environment={})
    assert applied(settings, "config-low", low="nonsense").problems
    assert applied(settings, "config-high", high="30").changed == ("high",)


def test_corrected_config_map_replaces_rejected_one() -> None:
    daemon = Daemon(name="pair", record=_Pair, config_map="config-pair")
    settings = LiveSettings(daemon, registry=[daemon], environment={})
    assert applied(settings, "config-low", low="20").problems
    assert applied(settings, "config-low", low="5").changed == ("low",)
    # The rejected 20 would be valid now.
    assert applied(settings, "config-high", high="30").changed == ("high",)
    assert settings.settings == _Pair(low=5, high=30)


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)
def test_nested_record_is_live_entirely_or_not_at_all(daemon: Daemon[SettingsRecord]) -> None:
    """Top-level fields are replaced individually, so a nested record is live entirely or not at all."""
    live = {field.path[0] for field in daemon.fields() if field.knob.live or field.knob.annotation}
    assert live == live_fields(daemon.record)


def test_features_config_map_accepts_knative_keys_and_reports_unknown_keys() -> None:
    controller = LiveSettings(CONTROLLER, registry=DAEMONS, environment={})
    data = {"tag-header-based-routing": "Enabled", "secure-pod-defaults": "Enabled"}
    applied = controller.update(config_map_of("config-features", data))
    assert applied is not None
    assert (applied.problems, applied.changed) == ((), ("secure_pod_defaults",))
    refused = controller.update(config_map_of("config-features", {"tag-header-routing": "Enabled"}))
    assert refused is not None
    assert [problem.what for problem in refused.unknown] == ["config-features has no key tag-header-routing"]


def test_unknown_key_is_reported_and_other_keys_apply() -> None:
    settings = live()
    reported = applied(settings, stable_window="30s", stabel_window="40s")
    assert reported.changed == ("stable_window_s",)
    assert reported.problems == ()
    assert [problem.what for problem in reported.unknown] == ["config-autoscaler has no key stabel-window"]
    assert value(settings) == 30.0


def test_invalid_value_and_unknown_key_are_both_reported() -> None:
    reported = applied(live(), stable_window="never", stabel_window="40s")
    assert [problem.what for problem in reported.problems] == ["stable-window: 'never' is not right"]
    assert len(reported.unknown) == 1
