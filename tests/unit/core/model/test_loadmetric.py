"""Load metrics: the value of each from a report, and their one table."""

import ast
import re
from pathlib import Path

import pytest

import serving
from serving.core.model.errors import InvalidValue
from serving.core.model.loadmetric import LOAD_METRICS, LoadWish, gauges_of, is_load_metric, load_metric, read_load
from serving.core.model.stat import Stat

STAT = Stat(
    pod="p",
    concurrency=5.0,
    request_count=8.0,
    proxied_concurrency=3.0,
    proxied_request_count=7.0,
    gauges={"queue_length": 30.0},
)


@pytest.mark.parametrize(("name", "load"), [("concurrency", 2.0), ("rps", 1.0), ("queue-length", 30.0)])
def test_load_metric_reads_its_field_of_stat(name: str, load: float) -> None:
    assert LOAD_METRICS[name].of_stat(STAT) == load


@pytest.mark.parametrize("name", ["queue-length", "gauge:queue_length"])
def test_missing_gauge_is_zero_on_idle_pod_and_unknown_on_busy_pod(name: str) -> None:
    metric = load_metric(name)
    assert metric.of_stat(Stat(pod="p")) == 0.0
    assert metric.of_stat(Stat(pod="p", concurrency=0.1)) is None
    assert metric.amount(Stat(pod="p", concurrency=0.1)) == 0.0
    assert metric.missing == "no pod reports the gauge queue_length"


def test_any_gauge_of_app_is_a_load_metric() -> None:
    metric = load_metric("gauge:vllm:kv_cache_usage_perc")
    assert metric.of_stat(Stat(gauges={"vllm:kv_cache_usage_perc": 0.4}, concurrency=1.0)) == 0.4
    assert metric is load_metric("gauge:vllm:kv_cache_usage_perc")
    assert (metric.needs_target, LOAD_METRICS["queue-length"].needs_target) == (True, False)


@pytest.mark.parametrize("name", ["gauge:", "gauge:1a", "gauge:a b", "gauge:" + "n" * 64, "cpu", ""])
def test_other_names_are_not_load_metrics(name: str) -> None:
    assert not is_load_metric(name)
    with pytest.raises(KeyError):
        load_metric(name)


def test_several_metrics_are_parsed_with_targets() -> None:
    assert read_load("gauge:vllm:num_requests_waiting = 5, concurrency=20,rps") == (
        LoadWish(metric="gauge:vllm:num_requests_waiting", target=5.0),
        LoadWish(metric="concurrency", target=20.0),
        LoadWish(metric="rps"),
    )
    assert gauges_of("gauge:a=1, rps, queue-length") == ("a", "queue_length")
    assert gauges_of("tokens=5") == ("tokens_in_flight",)
    assert gauges_of("wrong") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "metrics with targets"),
        ("gauge:a=1,", "metrics with targets"),
        ("gauge:a=1, gauge:a=2", "each once"),
        (",".join(f"gauge:g{number}=1" for number in range(17)), "at most 16"),
        ("speed=1", "one of concurrency, rps, queue-length, tokens, or gauge:NAME"),
        ("gauge:a=", "targets from 0.01 to 1e\\+12, not ''"),
        ("gauge:a=many", "not 'many'"),
        ("gauge:a=nan", "not 'nan'"),
        ("gauge:a=0", "not '0'"),
        ("gauge:a=1=2", "not '1=2'"),
    ],
)
def test_invalid_metrics_are_rejected_with_expected_form(text: str, expected: str) -> None:
    with pytest.raises(InvalidValue, match=expected):
        read_load(text)


def test_only_loadmetric_py_contains_queue_length() -> None:
    """Adding a load metric touches one file."""
    texts = {path: path.read_text() for path in Path(serving.__path__[0]).rglob("*.py")}
    naming = {
        str(path.relative_to(Path(serving.__path__[0])))
        for path, text in texts.items()
        # Parse only files that contain a form of the name.
        if re.search("QUEUE_LENGTH|queue[-_]length", text)
        and any(
            (isinstance(node, ast.Name) and node.id == "QUEUE_LENGTH")
            or (isinstance(node, ast.Constant) and node.value in ("queue-length", "queue_length"))
            for node in ast.walk(ast.parse(text))
        )
    }
    assert naming == {"core/model/loadmetric.py"}


def test_load_metrics_are_keyed_by_name() -> None:
    assert all(each_load_metric.name == name for name, each_load_metric in LOAD_METRICS.items())
