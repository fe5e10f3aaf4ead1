import math

import pytest

from serving.core.model.nodata import NoData
from serving.nodes.placement.book import NodeFacts, NodeLoads, node_of
from serving.nodes.placement.scores.metrics import Usage
from tests.unit.nodes.placement.builders import Json, node


def metrics(cpu: str | None, memory: str | None = "2Gi", *, stamp: str = "t", name: str = "a") -> Json:
    usage = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"metadata": {"name": name}, "timestamp": stamp, "usage": usage}


def known(name: str) -> NodeFacts | None:
    """A node of 4 cores and 8 GiB."""
    return node_of(node(name)) if name == "a" else None


def test_load_is_percentage_of_allocatable() -> None:
    node_usage = NodeLoads(20).update([metrics("1")], known, 5.0)["a"]
    assert (node_usage.at_s, node_usage.cpu, node_usage.memory) == (
        5.0,
        Usage(mean_percent=25.0, deviation_percent=0.0),
        Usage(mean_percent=25.0, deviation_percent=0.0),
    )


def test_mean_and_deviation_use_newest_samples() -> None:
    loads = NodeLoads(3)
    for second, cpu in enumerate(("4", "800m", "1600m")):
        loads.update([metrics(cpu, stamp=f"t{second}")], known, float(second))
    result = loads.update([metrics("2400m", stamp="t3")], known, 3.0)["a"].cpu
    assert isinstance(result, Usage)
    assert result.mean_percent == pytest.approx(40.0)
    assert result.deviation_percent == pytest.approx(20 * math.sqrt(2 / 3))


def test_repeated_measurement_counts_once() -> None:
    loads = NodeLoads(20)
    loads.update([metrics("1")], known, 0.0)
    assert loads.update([metrics("1")], known, 15.0)["a"].at_s == 0.0


def test_samples_of_unlisted_node_are_dropped() -> None:
    loads = NodeLoads(20)
    loads.update([metrics("1")], known, 0.0)
    assert loads.update([], known, 1.0) == {}
    cpu = loads.update([metrics("2", stamp="t2")], known, 2.0)["a"].cpu
    assert cpu == Usage(mean_percent=50.0, deviation_percent=0.0)


def test_unknown_node_has_no_load() -> None:
    assert NodeLoads(20).update([metrics("1", name="b")], known, 0.0) == {}


def test_missing_or_unreadable_usage_is_no_data() -> None:
    node_usage = NodeLoads(20).update([metrics(None, "much")], known, 0.0)["a"]
    assert isinstance(node_usage.cpu, NoData)
    assert isinstance(node_usage.memory, NoData)


def test_load_of_node_without_allocatable_is_no_data() -> None:
    node_usage = NodeLoads(20).update([metrics("1")], lambda name: node_of({"metadata": {"name": name}}), 0.0)["a"]
    assert isinstance(node_usage.cpu, NoData)
