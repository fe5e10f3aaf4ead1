import pytest
import yaml

from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, DAEMONS
from serving.core.settings.load import load
from serving.core.settings.parse import read_config_maps
from serving.core.settings.queueproxy import QUEUEPROXY
from serving.core.settings.render import config_map_names, field_meaning, render_config_map, render_page


def example_of(name: str) -> str:
    """The ConfigMap with its example as its data."""
    shipped = yaml.safe_load(render_config_map(name, DAEMONS))
    return yaml.safe_dump({**shipped, "data": yaml.safe_load(shipped["data"]["_example"])})


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_an_example_reads_back_as_the_defaults(name: str) -> None:
    config_maps, problems = read_config_maps(example_of(name), f"{name}.yaml")
    assert problems == []
    # Its keys are domains, of which none is a default.
    assert config_maps[0].entries or name == "config-domain"
    for daemon in DAEMONS:
        assert load(daemon, registry=DAEMONS, config_maps=config_maps).settings == daemon.record()


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_a_shipped_config_map_sets_no_key(name: str) -> None:
    config_maps, problems = read_config_maps(render_config_map(name, DAEMONS), f"{name}.yaml")
    assert ([config_map.entries for config_map in config_maps], problems) == ([()], [])


def test_every_field_says_what_it_means_and_where_its_default_is_from() -> None:
    for daemon in DAEMONS:
        for field in daemon.fields():
            meaning = field_meaning(field)
            assert meaning.endswith((".", ")."))
            assert "quirks" in field.path or "Default: " in meaning, field.name


def test_a_key_carries_its_meaning_as_a_comment() -> None:
    lines = render_config_map("config-autoscaler", DAEMONS).splitlines()
    at = lines.index('    stable-window: "60s"')
    assert lines[at - 2].startswith("    # Length of the averaging window outside panic mode")


def test_the_page_has_a_row_for_each_field_but_quirks() -> None:
    page = render_page([AUTOSCALER])
    names = {field.name: "quirks" in field.path for field in AUTOSCALER.fields()}
    assert {name for name in names if f"`{name}`" in page} == {name for name, is_quirk in names.items() if not is_quirk}
    assert "`progress-deadline` in config-deployment" in page


def test_a_row_says_when_a_setting_is_applied_and_which_annotation_overrides_it() -> None:
    rows = {row.split("`")[1]: row for row in render_page([AUTOSCALER]).splitlines() if row.startswith("|`")}
    assert "`autoscaling.knative.dev/window`" in rows["stable-window"]
    assert "`serving.knative.dev/progress-deadline`" in rows["progress-deadline"]
    assert ".dev/" not in rows["decision-period"].split("|")[1]
    applied = {key: row.split("|")[-3] for key, row in rows.items()}
    assert {applied[key] for key in ("stable-window", "decision-period")} == {"now"}
    assert applied["stats-address"] == "restart"


def test_a_setting_that_daemons_share_has_one_row() -> None:
    assert render_page([ACTIVATOR, QUEUEPROXY]).count("`http.head_bytes_max`") == 1
