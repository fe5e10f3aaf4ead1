"""Metrics are documented as they are, and opencensus and opentelemetry have one door each."""

from pathlib import Path

import pytest

from serving.metrics.names import TABLES, render_page
from tests.tidy.sources import ROOT, named, product_files


def test_the_page_of_metrics_is_true() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render_page(), "run `make config`"


@pytest.mark.parametrize(
    ("package", "door"),
    [("opencensus", "serving/metrics/reporter.py"), ("opentelemetry", "serving/metrics/otlp.py")],
)
def test_a_package_for_one_thing_is_imported_in_one_module(package: str, door: str) -> None:
    assert [named(path) for path in product_files() if imports(path, package)] == [door]


def imports(path: Path, package: str) -> bool:
    return any(
        line.lstrip().startswith((f"import {package}", f"from {package}")) for line in path.read_text().splitlines()
    )


def test_names_are_there_once_in_each_table() -> None:
    for table in TABLES:
        names = [metric.name for metric in table.metrics]
        assert len(names) == len(set(names)), table.daemon
