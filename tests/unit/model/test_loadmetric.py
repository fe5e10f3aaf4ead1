"""Load metrics: the value of each from a report, and their one table."""

import ast
import re
from pathlib import Path

import pytest

import serving
from serving.model.loadmetric import LOAD_METRICS
from serving.model.stat import Stat

STAT = Stat(
    pod="p",
    concurrency=5.0,
    request_count=8.0,
    proxied_concurrency=3.0,
    proxied_request_count=7.0,
    gauges={"queue_length": 30.0},
)


@pytest.mark.parametrize(("name", "load"), [("concurrency", 2.0), ("rps", 1.0), ("queue-length", 30.0)])
def test_each_metric_takes_its_part_of_a_report(name: str, load: float) -> None:
    assert LOAD_METRICS[name].of_stat(STAT) == load


def test_a_report_without_the_gauge_is_no_load() -> None:
    assert LOAD_METRICS["queue-length"].of_stat(Stat(pod="p")) == 0.0


def test_a_metric_is_named_in_the_file_of_load_metrics_alone() -> None:
    """Adding a load metric touches one file."""
    texts = {path: path.read_text() for path in Path(serving.__path__[0]).rglob("*.py")}
    naming = {
        str(path.relative_to(Path(serving.__path__[0])))
        for path, text in texts.items()
        # Few files have one of the words at all: only those are parsed.
        if re.search("QUEUE_LENGTH|queue[-_]length", text)
        and any(
            (isinstance(node, ast.Name) and node.id == "QUEUE_LENGTH")
            or (isinstance(node, ast.Constant) and node.value in ("queue-length", "queue_length"))
            for node in ast.walk(ast.parse(text))
        )
    }
    assert naming == {"model/loadmetric.py"}


def test_the_keys_are_the_names() -> None:
    assert all(one.name == name for name, one in LOAD_METRICS.items())
