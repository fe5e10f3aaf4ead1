"""Shipped and documented settings agree with the code."""

import re
from pathlib import Path

import pytest

from serving.core.settings.daemons import DAEMONS
from serving.core.settings.render import config_map_names, render_config_map, render_page

ROOT = Path(__file__).resolve().parents[2]
REMEDY = "run `make config`"


@pytest.mark.parametrize("name", config_map_names(DAEMONS))
def test_a_shipped_config_map_has_every_key_at_its_default(name: str) -> None:
    assert (ROOT / "config" / f"{name}.yaml").read_text() == render_config_map(name, DAEMONS), REMEDY


def test_no_config_map_is_shipped_that_no_daemon_reads() -> None:
    assert {path.stem for path in (ROOT / "config").glob("config-*.yaml")} == set(config_map_names(DAEMONS))


def test_the_page_of_settings_is_true() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == render_page(DAEMONS), REMEDY


def test_the_page_of_calculations_names_each_quirk() -> None:
    page = (ROOT / "docs" / "calculations.md").read_text().replace("-", "_")
    quirks = [name.rpartition(".")[2] for daemon in DAEMONS for name in daemon.removed if "quirks." in name]
    assert quirks
    assert [name for name in quirks if f"{name}`" not in page] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_no_page_names_a_setting_that_is_a_constant_now(page: Path) -> None:
    code = set(re.findall(r"`([^`\n:= ]+)", page.read_text()))
    known = {name for daemon in DAEMONS for field in daemon.fields() for name in (field.name, field.knob.key)}
    removed = {
        name for daemon in DAEMONS for names in daemon.removed.items() for name in names if re.search(r"[-.]", name)
    }
    assert code & (removed - known) == set()
