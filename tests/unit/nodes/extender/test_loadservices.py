"""Queries to Prometheus, and usages read from its responses."""

import json
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.core.settings.placement import LoadSourceSettings
from serving.nodes.extender.loadreport import (
    node_usages,
    queries,
    read_vector,
)
from serving.nodes.placement.scores.metrics import Usage

_SETTINGS = LoadSourceSettings()


def body(*result: Any, **more: Any) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}} | more).encode()


def sample(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1.5, value]}


def test_metric_expression_is_queried_as_subquery() -> None:
    settings = LoadSourceSettings(cpu_metric="sum by (node) (rate(cpu[1m]))")
    assert queries(settings, 600.0) == {
        "cpu mean": "avg_over_time((sum by (node) (rate(cpu[1m])))[10m:])",
        "cpu deviation": "stddev_over_time((sum by (node) (rate(cpu[1m])))[10m:])",
        "memory mean": "avg_over_time(instance:node_memory_utilisation:ratio[10m])",
        "memory deviation": "stddev_over_time(instance:node_memory_utilisation:ratio[10m])",
    }


def test_vector_values_are_percentages_by_node_name_without_port() -> None:
    data = body(
        sample("0.5", instance="a:9100"),
        sample("0.25", instance="a"),
        sample("0.1", instance="b"),
        sample("NaN", instance="c"),
        sample("x", instance="d"),
        sample("1"),
    )
    assert read_vector(data, _SETTINGS) == {"a": 50.0, "b": 10.0}
    named = body(sample("0.5", node="a", instance="b"))
    assert read_vector(named, LoadSourceSettings(node_label="node")) == {"a": 50.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"<html>", "an answer of Prometheus"),
        (body({"metric": {}}), "an answer of Prometheus"),
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', "bad_data: parse error"),
    ],
)
def test_invalid_prometheus_response_is_rejected(text: bytes, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        read_vector(text, _SETTINGS)


def test_resource_without_mean_is_no_data() -> None:
    entry = node_usages({"cpu mean": {"a": 5.0}, "cpu deviation": {"a": 1.0}, "memory deviation": {"a": 2.0}}, at_s=3.0)
    assert entry["a"].cpu == Usage(mean_percent=5.0, deviation_percent=1.0)
    assert isinstance(entry["a"].memory, NoData)
    assert entry["a"].at_s == 3.0
