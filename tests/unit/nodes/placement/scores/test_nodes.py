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


def test_a_table_has_cpu_above_memory_and_a_column_a_node() -> None:
    table = node_table([node("a"), node("b", cpu_m=2000, memory_bytes=GIB)], version=1)
    assert table.allocatable.tolist() == [[4000, 2000], [MEMORY_BYTES, GIB]]
    assert dict(table.index_by_name) == {"a": 0, "b": 1}
    assert table.node_count == 2


def test_sums_of_pods_stand_in_their_own_arrays() -> None:
    table = node_table([node(pods=demand(300, 200, 500))], version=1)
    assert [array[0, 0] for array in (table.nonzero, table.request, table.limit)] == [300, 200, 500]


def test_load_is_marked_where_it_was_measured() -> None:
    half = NodeUsage(at_s=7.0, cpu=NoData(missing="mean"), memory=Usage(mean_percent=40, deviation_percent=5))
    table = node_table([node("a", usage=half), node("b"), node("c", usage=load(10, 2, at_s=8.0))], version=1)
    assert table.measured.tolist() == [[False, False, True], [True, False, True]]
    assert table.mean_percent.tolist() == [[0, 0, 10], [40, 0, 10]]
    assert table.deviation_percent.tolist() == [[0, 0, 2], [5, 0, 2]]
    assert table.listed.tolist() == [True, False, True]
    assert table.usage_at_s.tolist() == [7.0, float("-inf"), 8.0]


def test_a_table_without_nodes_is_a_table() -> None:
    table = node_table([], version=1)
    assert (table.node_count, table.allocatable.shape, table.usage_at_s.shape) == (0, (2, 0), (0,))


def test_arrays_are_read_only() -> None:
    table = node_table([node()], version=1).with_nodes([node()], version=2)
    arrays = [getattr(table, name) for name in table.__struct_fields__]
    assert not [array for array in arrays if isinstance(array, np.ndarray) and array.flags.writeable]


def test_changed_nodes_are_replaced_and_named() -> None:
    old = node_table([node("a"), node("b"), node("c")], version=1)
    new = old.with_nodes([node("b", demand(500), usage=load(10))], version=2)
    assert new.nonzero[0].tolist() == [0, 500, 0]
    assert new.listed.tolist() == [False, True, False]
    assert (new.version, new.changed_from) == (2, 1)
    assert new.changed is not None
    assert new.changed.tolist() == [1]
    assert old.nonzero[0].tolist() == [0, 0, 0]


def test_only_known_nodes_can_change() -> None:
    with pytest.raises(KeyError, match="z"):
        node_table([node("a")], version=1).with_nodes([node("z")], version=2)


def test_a_name_may_occur_once() -> None:
    with pytest.raises(InvalidValue, match="'b' is not a name that only one node has"):
        node_table([node("a"), node("b"), node("b")], version=1)


@pytest.mark.parametrize("amount", [-1, AMOUNT_MAX + 1])
def test_no_node_has_less_than_nothing_or_more_than_int64_can_add_to(amount: int) -> None:
    with pytest.raises(InvalidValue, match="allocatable on node a"):
        node_table([node(memory_bytes=amount)], version=1)


def test_the_largest_node_is_exact() -> None:
    table = node_table([node(memory_bytes=AMOUNT_MAX)], version=1)
    assert int(table.allocatable[1, 0]) == AMOUNT_MAX


def test_demands_beyond_any_node_count_as_the_largest_amount() -> None:
    table = node_table([node(pods=PodDemand(limit_memory_bytes=2**64))], version=1)
    assert int(table.limit[1, 0]) == AMOUNT_MAX


def test_largest_pod_on_fullest_node_does_not_wrap() -> None:
    vast = PodDemand(request_memory_bytes=2**70)
    placing = place(node_table([node(pods=vast)], version=1), vast, now_s=0.0)
    assert int(placing.request[1, 0]) == 2 * AMOUNT_MAX


@pytest.mark.parametrize("owner", ["node a", "the pod"])
def test_no_request_is_negative(owner: str) -> None:
    less = PodDemand(request_cpu_m=-1)
    with pytest.raises(InvalidValue, match=f"-1 asked for by {owner}"):
        place(node_table([node(pods=less if owner == "node a" else PodDemand())], version=1), less, now_s=0.0)


def test_the_pod_is_added_to_each_node() -> None:
    placing = place(node_table([node("a"), node("b", demand(100))], version=1), demand(250, 200, 900), now_s=3.0)
    assert placing.nonzero[0].tolist() == [250, 350]
    assert placing.request[0].tolist() == [200, 300]
    assert placing.limit[0].tolist() == [900, 1000]
    assert (placing.pod_request[0].tolist(), placing.now_s) == ([200], 3.0)
