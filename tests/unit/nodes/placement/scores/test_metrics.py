"""Usage read from the metrics of a node."""

import numpy as np
import pytest

from serving.core.model.nodata import NoData
from serving.core.settings.placement import ORIGINAL, PlacementQuirks
from serving.nodes.placement.scores.metrics import NodeMetric, Usage, read_usage, usage_ratio


def cpu(metrics: list[tuple[str, float]], quirks: PlacementQuirks | None = None) -> Usage | NoData:
    listed = [NodeMetric(type="CPU", operator=operator, value=value) for operator, value in metrics]
    return read_usage(listed, at_s=0.0, quirks=quirks or PlacementQuirks()).cpu


def usage(mean: float, deviation: float = 0.0) -> Usage:
    return Usage(mean_percent=mean, deviation_percent=deviation)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ([("AVG", 40), ("STD", 12)], usage(40, 12)),
        ([("STD", 12), ("AVG", 40)], usage(40, 12)),
        ([("AVG", 10), ("AVG", 20)], usage(20)),
        ([("AVG", 40), ("STD", 1), ("STD", 2)], usage(40, 2)),
        ([("Latest", 55)], usage(55)),
        ([("", 55)], usage(55)),
        ([("Latest", 55), ("", 60)], usage(60)),
        ([("AVG", 40), ("Latest", 90)], usage(40)),
        ([("Latest", 90), ("AVG", 40)], usage(40)),
        ([("AVG", 40), ("P99", 90)], usage(40)),
        ([("AVG", 40), ("AVG", float("nan"))], usage(40)),
    ],
)
def test_mean_is_the_last_average_or_else_the_last_latest(metrics: list[tuple[str, float]], expected: Usage) -> None:
    assert cpu(metrics) == expected


@pytest.mark.parametrize("metrics", [[("STD", 7.0)], [("P99", 90.0)], [("AVG", float("inf"))], []])
def test_usage_without_mean_is_no_data(metrics: list[tuple[str, float]]) -> None:
    assert cpu(metrics) == NoData(missing="cpu mean among the node's metrics")


@pytest.mark.parametrize(("metrics", "expected"), [([("STD", 7.0)], usage(0, 7)), ([("P99", 90.0)], usage(0))])
def test_original_reads_entry_without_mean_as_mean_0(metrics: list[tuple[str, float]], expected: Usage) -> None:
    assert cpu(metrics, ORIGINAL) == expected


def test_original_without_entries_is_no_data() -> None:
    assert isinstance(cpu([], ORIGINAL), NoData)


def test_metric_types_are_case_sensitive() -> None:
    node_usage = read_usage(
        [NodeMetric(type="Memory", operator="AVG", value=30), NodeMetric(type="cpu", operator="AVG", value=50)],
        at_s=9.0,
        quirks=PlacementQuirks(),
    )
    assert (node_usage.at_s, isinstance(node_usage.cpu, NoData), node_usage.memory) == (9.0, True, usage(30))


def test_usage_ratio_adds_pod_request() -> None:
    assert usage_ratio(np.array([40.0]), np.array([4000]), added=np.array([1000])).tolist() == [0.65]


def test_usage_ratio_is_clamped_to_0_and_1() -> None:
    assert usage_ratio(np.array([140.0, -5.0]), np.array([4000, 4000])).tolist() == [1.0, 0.0]


def test_usage_ratio_without_capacity_is_0() -> None:
    assert usage_ratio(np.array([50.0]), np.array([0])).tolist() == [0.0]
