import pytest

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, DAEMONS
from serving.core.settings.knob import ConfigMap, ConfigMapEntry
from serving.core.settings.load import Layer, Origin, in_reading_order, load, unknown_config_maps, wrong_variables


def config_map(name: str, **data: str) -> ConfigMap:
    entries = tuple(
        ConfigMapEntry(key=key.replace("_", "-"), text=text, where=f"{name}.yaml:{line}")
        for line, (key, text) in enumerate(data.items(), start=6)
    )
    return ConfigMap(name=name, where=f"{name}.yaml:1", entries=entries)


def problems_of(*config_maps: ConfigMap, **layers: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(AUTOSCALER, registry=DAEMONS, config_maps=config_maps, **layers)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_settings_without_layers_are_defaults() -> None:
    loaded = load(AUTOSCALER, registry=DAEMONS)
    assert loaded.settings == AUTOSCALER.record()
    assert {origin.layer for origin in loaded.origins.values()} == {Layer.DEFAULT}


def test_later_layer_overrides_and_is_recorded_as_origin() -> None:
    loaded = load(
        AUTOSCALER,
        registry=DAEMONS,
        config_maps=[config_map("config-autoscaler", min_scale="1", initial_scale="2", max_scale="9")],
        environment={"SERVING_AUTOSCALER_MIN_SCALE": "3", "SERVING_AUTOSCALER_INITIAL_SCALE": "4", "HOME": "x"},
        flags={"min_scale": "5"},
    )
    settings = loaded.settings
    assert (settings.min_scale, settings.initial_scale, settings.max_scale) == (5, 4, 9)
    assert loaded.origins["min_scale"] == Origin(layer=Layer.FLAG, where="flag --set min_scale")
    assert loaded.origins["initial_scale"].where == "environment SERVING_AUTOSCALER_INITIAL_SCALE"
    assert loaded.origins["max_scale"].where == "config-autoscaler.yaml:8"


def test_nested_records_are_set_by_every_layer() -> None:
    data = ConfigMap(
        name="config-autoscaler",
        where="a.yaml:1",
        entries=(ConfigMapEntry(key="classic.panic-window", text="7s", where="a.yaml:2"),),
    )
    loaded = load(
        AUTOSCALER,
        registry=DAEMONS,
        config_maps=[data],
        environment={"SERVING_AUTOSCALER_CLASSIC_STABLE_WINDOW_S": "30"},
        flags={"classic.max_scale_up_rate": "3"},
    )
    classic = loaded.settings.classic
    assert (classic.panic_window_s, classic.stable_window_s, classic.max_scale_up_rate) == (7, 30, 3)


def test_all_problems_are_reported_with_their_places() -> None:
    problems = problems_of(
        config_map("config-autoscaler", stable_window="5s", min_scal="1", enable_scale_to_zero="yes"),
        environment={"SERVING_AUTOSCALER_MAX_SCALE": "many"},
        flags={"initial_scale": "-1"},
    )
    assert problems == [
        "config-autoscaler.yaml:6: stable-window: '5s' is not right; expected a duration from 6s to 1h, in whole seconds",
        "config-autoscaler.yaml:7: config-autoscaler has no key min-scal; expected a known name; did you mean min-scale?",
        "config-autoscaler.yaml:8: enable-scale-to-zero: 'yes' is not right; expected true or false",
        "environment SERVING_AUTOSCALER_MAX_SCALE: max_scale: 'many' is not right; expected a whole number of at least 0",
        "flag --set initial_scale: initial_scale: '-1' is not right; expected a whole number of at least 0",
    ]


def test_unknown_variables_and_flags_are_reported_with_nearest_name() -> None:
    assert problems_of(environment={"SERVING_AUTOSCALER_MIN_SCAL": "1"}, flags={"max_scal": "1"}) == [
        (
            "environment SERVING_AUTOSCALER_MIN_SCAL: autoscaler has no such setting; "
            "expected a known name; did you mean SERVING_AUTOSCALER_MIN_SCALE?"
        ),
        "flag --set max_scal: autoscaler has no such setting; expected a known name; did you mean max_scale?",
    ]


def test_unknown_key_without_near_name_lists_known_keys() -> None:
    (problem,) = problems_of(config_map("config-deployment", zzz="1"))
    assert "config-deployment has no key zzz; expected one of digest-resolution-timeout, digestRes" in problem


def test_key_of_other_daemon_in_shared_config_map_is_accepted() -> None:
    shared = config_map("config-autoscaler", min_scale="1")
    assert load(ACTIVATOR, registry=DAEMONS, config_maps=[shared]).settings == ACTIVATOR.record()


def test_earlier_problems_are_raised_again() -> None:
    earlier = Problem(where="a.yaml:1", what="not YAML", expected="YAML")
    with pytest.raises(SettingsError) as caught:
        load(AUTOSCALER, registry=DAEMONS, problems=[earlier])
    assert caught.value.problems == (earlier,)


def test_clash_names_place_of_written_value() -> None:
    assert problems_of(config_map("config-autoscaler", max_scale="3", min_scale="5")) == [
        "config-autoscaler.yaml:7: min-scale 5 is above max-scale 3; expected min-scale of at most 3"
    ]


def test_clash_with_invalid_value_is_not_reported() -> None:
    (problem,) = problems_of(config_map("config-autoscaler", initial_scale="0", allow_zero_initial_scale="perhaps"))
    assert "'perhaps' is not right" in problem


def test_problems_are_sorted_by_file_line_and_layer() -> None:
    def at(where: str) -> Problem:
        return Problem(where=where, what="", expected="")

    order = [at("a.yaml:2"), at("a.yaml:10"), at("b.yaml:1"), at("environment A"), at("flag --set b")]
    assert in_reading_order(reversed(order)) == order


def test_config_map_without_reader_is_reported() -> None:
    (problem,) = unknown_config_maps([config_map("config-autoscaler"), config_map("config-x")], DAEMONS)
    assert problem.where == "config-x.yaml:1"
    assert "config-autoscaler" in problem.expected


def test_variables_are_checked_without_other_layers() -> None:
    environment = {"SERVING_AUTOSCALER_DECISION_PERIOD_S": "often"}
    (problem,) = wrong_variables(AUTOSCALER, registry=DAEMONS, environment=environment)
    assert "SERVING_AUTOSCALER_DECISION_PERIOD_S" in str(problem)
    assert not wrong_variables(AUTOSCALER, registry=DAEMONS, environment={})
