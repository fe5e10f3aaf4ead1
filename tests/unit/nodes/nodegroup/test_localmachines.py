"""The machines of the local cloud."""

import pytest

from serving.core.model.errors import CloudRefused, CloudUnavailable
from serving.nodes.nodegroup.localmachines import LocalMachines, machines_of
from serving.nodes.nodegroup.records import CloudGroup

EMPTY = LocalMachines(asked_at_s={}, min_size=0, max_size=0, next_number=1)
TWO = EMPTY.bounded(min_size=2, max_size=4, now_s=5.0)


def test_the_minimum_is_there_immediately() -> None:
    assert TWO.asked_at_s == {"node-1": 5.0, "node-2": 5.0}
    assert TWO.group == CloudGroup(target_size=2, min_size=2, max_size=4)


def test_other_bounds_keep_the_machines() -> None:
    assert TWO.bounded(min_size=1, max_size=9, now_s=6.0).asked_at_s == TWO.asked_at_s


def test_machines_come_with_numbers_that_were_never_used() -> None:
    grown = TWO.increased(2, now_s=7.0)
    assert list(grown.asked_at_s) == ["node-1", "node-2", "node-3", "node-4"]
    assert list(grown.without(["node-4"]).increased(1, now_s=8.0).asked_at_s)[-1] == "node-5"


def test_bounds_are_kept() -> None:
    with pytest.raises(CloudRefused, match="above the maximum 4"):
        TWO.increased(3, now_s=7.0)
    with pytest.raises(CloudRefused):
        TWO.increased(0, now_s=7.0)
    with pytest.raises(CloudRefused, match="below the minimum 2"):
        TWO.without(["node-1"])


def test_what_is_gone_is_gone_and_strangers_change_nothing() -> None:
    assert TWO.increased(1, now_s=7.0).without(["node-3"]).asked_at_s == TWO.asked_at_s
    assert TWO.without(["node-9"]) == TWO


def test_fewer_machines_than_a_new_minimum_may_stay() -> None:
    few = LocalMachines(asked_at_s={"node-1": 0.0}, min_size=2, max_size=4, next_number=2)
    assert few.without(["node-7"]) == few


def test_the_data_is_read_back() -> None:
    assert machines_of(TWO.data()) == TWO
    with pytest.raises(CloudUnavailable, match="local-nodes"):
        machines_of({})
