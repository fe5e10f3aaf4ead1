"""Metrics pages are up to date; opencensus and opentelemetry are each imported in one module."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.net.metrics.names import TABLES, render_page
from tests.tidy.sources import ROOT, named, product_files

MONITORING = ROOT / "config" / "monitoring"


def test_metrics_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render_page(), "run `make config`"


@pytest.mark.parametrize(
    ("package", "door"),
    [("opencensus", "serving/net/metrics/views.py"), ("opentelemetry", "serving/net/metrics/otlp.py")],
)
def test_metrics_package_is_imported_in_one_module(package: str, door: str) -> None:
    assert [named(path) for path in product_files() if imports(path, package)] == [door]


def imports(path: Path, package: str) -> bool:
    return any(
        line.lstrip().startswith((f"import {package}", f"from {package}")) for line in path.read_text().splitlines()
    )


def test_metric_names_are_unique_in_each_table() -> None:
    for table in TABLES:
        names = [metric.name for metric in table.metrics]
        assert len(names) == len(set(names)), table.daemon


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_and_runbooks_correspond() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    alerts = [rule for rule in rules() if "alert" in rule]
    assert [section.partition("\n")[0] for section in sections] == [rule["alert"] for rule in alerts]
    wrong = [
        section.partition("\n")[0] for section in sections if not re.search(r"Means.*See.*[Dd]o\.", section, re.DOTALL)
    ]
    assert wrong == []
    for rule in alerts:
        assert rule["annotations"]["runbook_url"].endswith(f"/runbooks.html#{rule['alert'].lower()}"), rule["alert"]


def test_alert_rules_and_dashboard_use_existing_metrics() -> None:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named_in_them = {name for expression in expressions for name in metrics_in(expression)}
    known = {metric.name for table in TABLES for metric in table.metrics}
    series = known | {f"{name}_{end}" for name in known for end in ("bucket", "count", "sum")}
    assert named_in_them - series - {rule["record"] for rule in rules() if "record" in rule} == {"up"}
    assert len(named_in_them) > 20


def metrics_in(expression: str) -> set[str]:
    """The names of series in an expression: what is neither a function, a label, a word of the language nor a text."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|group_left) *\([^)]*\)', " ", expression)
    words = re.findall(r"[a-zA-Z_:][\w:]*(?! *\(|[\w:])", bare)
    return set(words) - {"and", "or", "unless", "bool"}
