"""Settings that follow ConfigMaps while a daemon runs."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, CONTROLLER, DAEMONS, DASHBOARD
from serving.core.settings.knob import COUNT, Clash, Knob, SettingsRecord, live_fields
from serving.core.settings.live import AppliedConfigMap, LiveSettings, config_map_of
from serving.core.settings.load import Daemon


def live(daemon: Daemon[SettingsRecord] = AUTOSCALER, **environment: str) -> LiveSettings[SettingsRecord]:
    return LiveSettings(daemon, registry=DAEMONS, environment=environment)


def taken(settings: LiveSettings[Any], name: str = "config-autoscaler", **data: str) -> AppliedConfigMap:
    update = settings.update(config_map_of(name, {key.replace("_", "-"): text for key, text in data.items()}))
    assert update is not None
    return update


def value(settings: LiveSettings[Any], name: str = "stable_window_s") -> object:
    return getattr(settings.settings, name)


def test_a_config_map_is_taken_over_while_the_daemon_runs() -> None:
    settings = live()
    settings.begin()
    assert taken(settings, stable_window="30s").changed == ("stable_window_s",)
    assert value(settings) == 30.0


def test_the_same_again_changes_nothing() -> None:
    settings = live()
    taken(settings, stable_window="30s")
    assert taken(settings, stable_window="30s") == AppliedConfigMap(daemon="autoscaler", config_map="config-autoscaler")


def test_a_bad_one_is_refused_as_a_whole_and_the_last_good_one_stays() -> None:
    settings = live()
    taken(settings, stable_window="30s")
    reported = taken(settings, stable_window="40s", max_scale_up_rate="nonsense")
    (problem,) = reported.problems
    assert problem.where == "ConfigMap config-autoscaler"
    assert problem.what == "max-scale-up-rate: 'nonsense' is not right"
    assert "number above 1" in problem.expected
    assert value(settings) == 30.0
    assert taken(settings, stable_window="50s").changed == ("stable_window_s",)
    assert value(settings) == 50.0


def test_beside_a_bad_one_a_daemon_starts_with_the_defaults() -> None:
    settings = live()
    assert taken(settings, stable_window="never").problems
    assert value(settings) == 60.0
    assert settings.begin() is settings.settings


def test_the_environment_wins() -> None:
    settings = live(SERVING_AUTOSCALER_STABLE_WINDOW_S="20")
    assert taken(settings, stable_window="30s").changed == ()
    assert value(settings) == 20.0


def test_a_wrong_environment_is_an_error_from_the_start() -> None:
    with pytest.raises(SettingsError):
        live(SERVING_AUTOSCALER_STABLE_WINDOW_S="soon")


def test_what_cannot_change_while_it_runs_waits_for_a_restart() -> None:
    settings = live()
    taken(settings, stats_address="127.0.0.1:1")
    settings.begin()
    assert value(settings, "stats_address") == "127.0.0.1:1"
    reported = taken(settings, stats_address="127.0.0.1:2", stable_window="30s")
    assert (reported.changed, reported.waiting) == (("stable_window_s",), ("stats_address",))
    assert value(settings, "stats_address") == "127.0.0.1:1"
    assert taken(settings, stats_address="127.0.0.1:1").waiting == ()


def test_a_daemon_that_takes_nothing_over_says_that_it_must_be_started_again() -> None:
    settings = live(DASHBOARD)
    settings.begin()
    assert taken(settings, "config-dashboard", address="127.0.0.1:1").waiting == ("address",)


def test_a_config_map_that_is_gone_leaves_the_defaults() -> None:
    settings = live()
    taken(settings, stable_window="30s")
    assert taken(settings).changed == ("stable_window_s",)
    assert value(settings) == 60.0


def test_a_config_map_of_others_is_nothing_to_it() -> None:
    assert live().update(config_map_of("kube-root-ca.crt", {"ca.crt": "..."})) is None


def test_an_example_is_no_setting() -> None:
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


def test_two_that_are_right_together_only_are_taken_together() -> None:
    daemon = Daemon(name="pair", record=_Pair, config_map="config-pair")
    settings = LiveSettings(daemon, registry=[daemon], environment={})
    assert [problem.what for problem in taken(settings, "config-low", low="20").problems] == ["20 above 10"]
    assert taken(settings, "config-high", high="nonsense").problems
    reported = taken(settings, "config-high", high="30")
    assert (reported.changed, settings.settings) == (("low", "high"), _Pair(low=20, high=30))


def test_a_bad_one_keeps_no_other_from_being_taken() -> None:
    daemon = Daemon(name="pair", record=_Pair, config_map="config-pair")
    settings = LiveSettings(daemon, registry=[daemon], environment={})
    assert taken(settings, "config-low", low="nonsense").problems
    assert taken(settings, "config-high", high="30").changed == ("high",)


def test_what_was_refused_is_tried_again_beside_another() -> None:
    settings = live(ACTIVATOR)
    assert taken(settings, "config-activator", tell_revision="nonsense").problems
    assert taken(settings, "config-activator", tell_revision="false").changed == ("tell_revision",)


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)
def test_a_nested_record_takes_effect_as_a_whole(daemon: Daemon[SettingsRecord]) -> None:
    """A settings record is replaced field by field, so a nested one is live as a whole or not."""
    live = {field.path[0] for field in daemon.fields() if field.knob.live or field.knob.annotation}
    assert live == live_fields(daemon.record)


def test_keys_of_knatives_features_are_accepted_beside_ours_and_others_are_not() -> None:
    controller = LiveSettings(CONTROLLER, registry=DAEMONS, environment={})
    data = {"tag-header-based-routing": "Enabled", "secure-pod-defaults": "Enabled"}
    taken = controller.update(config_map_of("config-features", data))
    assert taken is not None
    assert (taken.problems, taken.changed) == ((), ("secure_pod_defaults",))
    refused = controller.update(config_map_of("config-features", {"tag-header-routing": "Enabled"}))
    assert refused is not None
    assert [problem.what for problem in refused.unknown] == ["config-features has no key tag-header-routing"]


def test_an_unknown_key_is_reported_and_the_others_apply() -> None:
    settings = live()
    reported = taken(settings, stable_window="30s", stabel_window="40s")
    assert reported.changed == ("stable_window_s",)
    assert reported.problems == ()
    assert [problem.what for problem in reported.unknown] == ["config-autoscaler has no key stabel-window"]
    assert value(settings) == 30.0


def test_an_unknown_key_beside_an_invalid_value_is_reported_too() -> None:
    reported = taken(live(), stable_window="never", stabel_window="40s")
    assert [problem.what for problem in reported.problems] == ["stable-window: 'never' is not right"]
    assert len(reported.unknown) == 1
