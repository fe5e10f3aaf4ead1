"""Metrics are documented as they are, and opencensus has one door."""

from pathlib import Path

from serving.metrics.names import TABLES
from serving.metrics.render import render_page
from tests.tidy.sources import ROOT, named, product_files


def test_the_page_of_metrics_is_true() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render_page(), "run `make config`"


def test_opencensus_is_imported_in_one_module() -> None:
    found = [named(path) for path in product_files() if imports_opencensus(path)]
    assert found == ["serving/metrics/reporter.py"]


def imports_opencensus(path: Path) -> bool:
    return any(line.startswith(("import opencensus", "from opencensus")) for line in path.read_text().splitlines())


def test_names_are_there_once_in_each_table() -> None:
    for table in TABLES:
        names = [metric.name for metric in table.metrics]
        assert len(names) == len(set(names)), table.daemon
