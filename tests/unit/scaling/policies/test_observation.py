"""Pods as triggers see them."""

from tests.unit.scaling.policies.builders import pods


def test_available_pods_are_those_that_are_there_or_on_their_way() -> None:
    assert pods(idle=3, occupied=5, creating=2).available_count == 10
