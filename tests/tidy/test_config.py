"""Shipped and documented settings agree with the code."""

import re
from pathlib import Path

import pytest

from serving.core.settings.daemons import DAEMONS
from serving.core.settings.render import config_map_names, render_config_map, render_page

ROOT = Path(__file__).resolve().parents[2]
REMEDY = "run `make config`"


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_shipped_config_map_equals_the_rendered_defaults(name: str) -> None:
    assert (ROOT / "config" / f"{name}.yaml").read_text() == render_config_map(name, DAEMONS), REMEDY


def test_shipped_config_maps_are_those_of_the_daemons() -> None:
    assert {path.stem for path in (ROOT / "config").glob("config-*.yaml")} == set(config_map_names(DAEMONS))


def test_settings_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == render_page(DAEMONS), REMEDY


def test_calculations_page_lists_each_quirk() -> None:
    page = (ROOT / "docs" / "calculations.md").read_text().replace("-", "_")
    quirks = [name.rpartition(".")[2] for daemon in DAEMONS for name in daemon.removed if "quirks." in name]
    assert quirks
    assert [name for name in quirks if f"{name}`" not in page] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_page_names_no_removed_setting(page: Path) -> None:
    code = set(re.findall(r"`([^`\n:= ]+)", page.read_text()))
    known = {name for daemon in DAEMONS for field in daemon.fields() for name in (field.name, field.knob.key)}
    removed = {
        name for daemon in DAEMONS for names in daemon.removed.items() for name in names if re.search(r"[-.]", name)
    }
    assert code & (removed - known) == set()
