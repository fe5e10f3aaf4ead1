"""The machines of the local cloud."""

import pytest

from serving.core.model.errors import CloudRefused, CloudUnavailable
from serving.nodes.nodegroup.localmachines import LocalMachines, machines_of
from serving.nodes.nodegroup.records import CloudGroup

EMPTY = LocalMachines(asked_at_s={}, min_size=0, max_size=0, next_number=1)
TWO = EMPTY.bounded(min_size=2, max_size=4, now_s=5.0)


def test_minimum_count_of_machines_exists_immediately() -> None:
    assert TWO.asked_at_s == {"node-1": 5.0, "node-2": 5.0}
    assert TWO.group == CloudGroup(target_size=2, min_size=2, max_size=4)


def test_changed_bounds_preserve_machines() -> None:
    assert TWO.bounded(min_size=1, max_size=9, now_s=6.0).asked_at_s == TWO.asked_at_s


def test_machine_numbers_are_never_reused() -> None:
    grown = TWO.increased(2, now_s=7.0)
    assert list(grown.asked_at_s) == ["node-1", "node-2", "node-3", "node-4"]
    assert list(grown.without(["node-4"]).increased(1, now_s=8.0).asked_at_s)[-1] == "node-5"


def test_change_beyond_bounds_is_refused() -> None:
    with pytest.raises(CloudRefused, match="above the maximum 4"):
        TWO.increased(3, now_s=7.0)
    with pytest.raises(CloudRefused):
        TWO.increased(0, now_s=7.0)
    with pytest.raises(CloudRefused, match="below the minimum 2"):
        TWO.without(["node-1"])


def test_deleted_machine_is_removed_and_unknown_machine_is_ignored() -> None:
    assert TWO.increased(1, now_s=7.0).without(["node-3"]).asked_at_s == TWO.asked_at_s
    assert TWO.without(["node-9"]) == TWO


def test_group_may_remain_below_new_minimum() -> None:
    few = LocalMachines(asked_at_s={"node-1": 0.0}, min_size=2, max_size=4, next_number=2)
    assert few.without(["node-7"]) == few


def test_machines_round_trip_through_data() -> None:
    assert machines_of(TWO.data()) == TWO
    with pytest.raises(CloudUnavailable, match="local-nodes"):
        machines_of({})
