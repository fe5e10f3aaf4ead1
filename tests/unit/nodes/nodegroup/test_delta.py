"""The number of nodes that the thresholds add to or remove from a group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.nodes.nodegroup.plan import FromZero, GroupRule, Utilisation, WantedNodes
from serving.nodes.nodegroup.records import Amount
from serving.nodes.nodegroup.rules import from_zero_delta, nodes_to_add, nodes_to_keep, scale_up_delta, threshold_delta
from tests.unit.nodes.nodegroup.builders import SETTINGS


def usage(cpu_percent: float, memory_percent: float = 0.0) -> Utilisation:
    return Utilisation(cpu_percent=cpu_percent, memory_percent=memory_percent)


@pytest.mark.parametrize(
    ("cpu_percent", "memory_percent", "node_count", "threshold_percent", "delta"),
    [
        (250.0, 12.5, 2, 70, 6),
        (12.5, 250.0, 2, 70, 6),
        (140.0, 10.0, 1, 70, 1),
        (141.0, 10.0, 1, 70, 2),
        (70.0000001, 1.0, 10, 70, 1),
        (69.0, 1.0, 10, 70, 0),
        (35.0, 1.0, 10, 70, -5),
    ],
)
def test_scale_up_delta_reaches_threshold(
    cpu_percent: float, memory_percent: float, node_count: int, threshold_percent: int, delta: int
) -> None:
    request_count = scale_up_delta(
        usage(cpu_percent, memory_percent), node_count=node_count, threshold_percent=threshold_percent
    )
    assert request_count == delta


@given(node_count=st.integers(1, 100), threshold_percent=st.integers(1, 100), excess_percent=st.integers(1, 1000))
def test_scale_up_delta_is_fewest_nodes_not_above_threshold(
    node_count: int, threshold_percent: int, excess_percent: int
) -> None:
    percent = threshold_percent + excess_percent
    delta = scale_up_delta(usage(percent), node_count=node_count, threshold_percent=threshold_percent)
    # Equal if the quotient is whole and its floating-point value is above it.
    assert threshold_percent * (node_count + delta - 1) <= percent * node_count
    assert percent * node_count <= threshold_percent * (node_count + delta)


@pytest.mark.parametrize(
    ("cpu_m", "memory_bytes", "node_cpu_m", "node_memory_bytes", "delta"),
    [(1800, 1, 1000, 1000, 3), (100, 9000, 1000, 1000, 13), (1800, 1, 0, 1000, 1), (1800, 1, 1000, 0, 1)],
)
def test_from_zero_delta_uses_capacity_of_one_node(
    cpu_m: int, memory_bytes: int, node_cpu_m: int, node_memory_bytes: int, delta: int
) -> None:
    request_count = from_zero_delta(
        Amount(cpu_m=cpu_m, memory_bytes=memory_bytes),
        node_capacity=Amount(cpu_m=node_cpu_m, memory_bytes=node_memory_bytes),
        threshold_percent=70,
    )
    assert request_count == delta


def test_nodes_to_add_is_limited_by_cloud_maximum() -> None:
    assert nodes_to_add(6, target_size=5, max_size=10) == 5
    assert nodes_to_add(10, target_size=20, max_size=50) == 10
    assert nodes_to_add(1, target_size=12, max_size=10) == -2


@pytest.mark.parametrize(
    ("percent", "rule", "delta"),
    [
        (9.9, GroupRule.TAINT_LOWER, -5),
        (10.0, GroupRule.TAINT_UPPER, -2),
        (39.9, GroupRule.TAINT_UPPER, -2),
        (40.0, GroupRule.STEADY, 0),
        (70.0, GroupRule.STEADY, 0),
        (110.0, GroupRule.SCALE_UP, 6),
    ],
)
def test_rule_changes_only_beyond_threshold(percent: float, rule: GroupRule, delta: int) -> None:
    wish = threshold_delta(usage(percent), request=Amount(), node_count=10, node_capacity=Amount(), settings=SETTINGS)
    assert wish == WantedNodes(rule=rule, delta=delta)


def test_shrinking_stops_at_scale_up_threshold() -> None:
    assert nodes_to_keep(usage(36.0), node_count=2, threshold_percent=70) == 2
    assert nodes_to_keep(usage(35.0), node_count=2, threshold_percent=70) == 1
    wish = threshold_delta(usage(36.0), request=Amount(), node_count=3, node_capacity=Amount(), settings=SETTINGS)
    assert wish == WantedNodes(rule=GroupRule.TAINT_UPPER, delta=-1)


def test_from_zero_usage_triggers_from_zero_rule() -> None:
    wish = threshold_delta(
        FromZero(),
        request=Amount(cpu_m=1800, memory_bytes=1),
        node_count=0,
        node_capacity=Amount(cpu_m=1000, memory_bytes=1000),
        settings=SETTINGS,
    )
    assert wish == WantedNodes(rule=GroupRule.FROM_ZERO, delta=3)
