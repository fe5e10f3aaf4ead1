"""Tables of nodes."""

import numpy as np
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.nodes.placement.scores.arrays import AMOUNT_MAX
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import node_table, place
from serving.nodes.placement.scores.pod import PodDemand
from tests.unit.nodes.placement.scores.builders import GIB, MEMORY_BYTES, demand, load, node


def test_table_has_cpu_and_memory_rows_and_a_column_per_node() -> None:
    table = node_table([node("a"), node("b", cpu_m=2000, memory_bytes=GIB)], version=1)
    assert table.allocatable.tolist() == [[4000, 2000], [MEMORY_BYTES, GIB]]
    assert dict(table.index_by_name) == {"a": 0, "b": 1}
    assert table.node_count == 2


def test_pod_demand_fills_nonzero_request_and_limit_arrays() -> None:
    table = node_table([node(pods=demand(300, 200, 500))], version=1)
    assert [array[0, 0] for array in (table.nonzero, table.request, table.limit)] == [300, 200, 500]


def test_measured_and_listed_flags_mark_available_load() -> None:
    half = NodeUsage(at_s=7.0, cpu=NoData(missing="mean"), memory=Usage(mean_percent=40, deviation_percent=5))
    table = node_table([node("a", usage=half), node("b"), node("c", usage=load(10, 2, at_s=8.0))], version=1)
    assert table.measured.tolist() == [[False, False, True], [True, False, True]]
    assert table.mean_percent.tolist() == [[0, 0, 10], [40, 0, 10]]
    assert table.deviation_percent.tolist() == [[0, 0, 2], [5, 0, 2]]
    assert table.listed.tolist() == [True, False, True]
    assert table.usage_at_s.tolist() == [7.0, float("-inf"), 8.0]


def test_empty_table_has_empty_arrays() -> None:
    table = node_table([], version=1)
    assert (table.node_count, table.allocatable.shape, table.usage_at_s.shape) == (0, (2, 0), (0,))


def test_table_arrays_are_read_only() -> None:
    table = node_table([node()], version=1).with_nodes([node()], version=2)
    arrays = [getattr(table, name) for name in table.__struct_fields__]
    assert not [array for array in arrays if isinstance(array, np.ndarray) and array.flags.writeable]


def test_with_nodes_replaces_columns_and_lists_them_as_changed() -> None:
    old = node_table([node("a"), node("b"), node("c")], version=1)
    new = old.with_nodes([node("b", demand(500), usage=load(10))], version=2)
    assert new.nonzero[0].tolist() == [0, 500, 0]
    assert new.listed.tolist() == [False, True, False]
    assert (new.version, new.changed_from) == (2, 1)
    assert new.changed is not None
    assert new.changed.tolist() == [1]
    assert old.nonzero[0].tolist() == [0, 0, 0]


def test_with_nodes_rejects_unknown_node() -> None:
    with pytest.raises(KeyError, match="z"):
        node_table([node("a")], version=1).with_nodes([node("z")], version=2)


def test_duplicate_node_name_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="'b' is not a name that only one node has"):
        node_table([node("a"), node("b"), node("b")], version=1)


@pytest.mark.parametrize("amount", [-1, AMOUNT_MAX + 1])
def test_allocatable_outside_int64_sum_range_is_rejected(amount: int) -> None:
    with pytest.raises(InvalidValue, match="allocatable on node a"):
        node_table([node(memory_bytes=amount)], version=1)


def test_largest_allowed_amount_is_exact() -> None:
    table = node_table([node(memory_bytes=AMOUNT_MAX)], version=1)
    assert int(table.allocatable[1, 0]) == AMOUNT_MAX


def test_excessive_demand_is_capped_at_largest_amount() -> None:
    table = node_table([node(pods=PodDemand(limit_memory_bytes=2**64))], version=1)
    assert int(table.limit[1, 0]) == AMOUNT_MAX


def test_sum_of_largest_pod_and_fullest_node_does_not_overflow() -> None:
    vast = PodDemand(request_memory_bytes=2**70)
    placing = place(node_table([node(pods=vast)], version=1), vast, now_s=0.0)
    assert int(placing.request[1, 0]) == 2 * AMOUNT_MAX


@pytest.mark.parametrize("owner", ["node a", "the pod"])
def test_negative_request_is_rejected(owner: str) -> None:
    less = PodDemand(request_cpu_m=-1)
    with pytest.raises(InvalidValue, match=f"-1 asked for by {owner}"):
        place(node_table([node(pods=less if owner == "node a" else PodDemand())], version=1), less, now_s=0.0)


def test_placing_adds_pod_to_each_node() -> None:
    placing = place(node_table([node("a"), node("b", demand(100))], version=1), demand(250, 200, 900), now_s=3.0)
    assert placing.nonzero[0].tolist() == [250, 350]
    assert placing.request[0].tolist() == [200, 300]
    assert placing.limit[0].tolist() == [900, 1000]
    assert (placing.pod_request[0].tolist(), placing.now_s) == ([200], 3.0)
