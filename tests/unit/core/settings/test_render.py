import pytest
import yaml

from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, DAEMONS
from serving.core.settings.load import load
from serving.core.settings.parse import read_config_maps
from serving.core.settings.queueproxy import QUEUEPROXY
from serving.core.settings.render import config_map_names, field_meaning, render_config_map, render_page


def example_of(name: str) -> str:
    """The ConfigMap with its example block as its data."""
    shipped = yaml.safe_load(render_config_map(name, DAEMONS))
    return yaml.safe_dump({**shipped, "data": yaml.safe_load(shipped["data"]["_example"])})


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_example_block_equals_defaults(name: str) -> None:
    config_maps, problems = read_config_maps(example_of(name), f"{name}.yaml")
    assert problems == []
    # The keys of config-domain are domains, and no domain has a default.
    assert config_maps[0].entries or name == "config-domain"
    for daemon in DAEMONS:
        assert load(daemon, registry=DAEMONS, config_maps=config_maps).settings == daemon.record()


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_shipped_config_map_sets_no_key(name: str) -> None:
    config_maps, problems = read_config_maps(render_config_map(name, DAEMONS), f"{name}.yaml")
    assert ([config_map.entries for config_map in config_maps], problems) == ([()], [])


def test_every_field_has_meaning_and_origin_of_default() -> None:
    for daemon in DAEMONS:
        for field in daemon.fields():
            meaning = field_meaning(field)
            assert meaning.endswith((".", ")."))
            assert "quirks" in field.path or "Default: " in meaning, field.name


def test_key_has_meaning_as_comment() -> None:
    lines = render_config_map("config-autoscaler", DAEMONS).splitlines()
    at = lines.index('    stable-window: "60s"')
    assert lines[at - 2].startswith("    # Length of the averaging window outside panic mode")


def test_page_has_one_row_per_field_except_quirks() -> None:
    page = render_page([AUTOSCALER])
    names = {field.name: "quirks" in field.path for field in AUTOSCALER.fields()}
    assert {name for name in names if f"`{name}`" in page} == {name for name, is_quirk in names.items() if not is_quirk}
    assert "`progress-deadline` in config-deployment" in page


def test_row_shows_when_setting_applies_and_its_annotation() -> None:
    rows = {row.split("`")[1]: row for row in render_page([AUTOSCALER]).splitlines() if row.startswith("|`")}
    assert "`autoscaling.knative.dev/window`" in rows["stable-window"]
    assert "`serving.knative.dev/progress-deadline`" in rows["progress-deadline"]
    assert ".dev/" not in rows["decision-period"].split("|")[1]
    applied = {key: row.split("|")[-3] for key, row in rows.items()}
    assert {applied[key] for key in ("stable-window", "decision-period")} == {"now"}
    assert applied["stats-address"] == "restart"


def test_shared_setting_has_one_row() -> None:
    assert render_page([ACTIVATOR, QUEUEPROXY]).count("`http.head_bytes_max`") == 1
