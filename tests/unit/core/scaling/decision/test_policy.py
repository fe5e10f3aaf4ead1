"""The policy protocol, and Knative's policy."""

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.decision.policy import (
    NEUTRAL,
    Advice,
    PolicyView,
    RevisionPolicy,
    SecondOfLoad,
)
from serving.core.scaling.kpa.merge import Proposal
from tests.unit.core.scaling.kpa_builders import DEFAULTS

SECOND = SecondOfLoad(61, 2.0, 3.0)


def view_with(in_flight: float | None = 0.0) -> PolicyView:
    algorithm = Proposal(decider="kpa", desired=1, reason="stable")
    return PolicyView(
        now_s=62.0, algorithm=algorithm, in_flight=in_flight, present_scale=1, ready_count=1, spec=DEFAULTS
    )


def test_knative_policy_is_neutral_and_learns_only_start_duration() -> None:
    policy = RevisionPolicy()
    policy.observe(SECOND)
    policy.update(DEFAULTS)
    policy.load("anything")
    assert policy.propose(view_with()) is NEUTRAL
    assert (policy.name, policy.observes, policy.counts_waiting) == ("knative", False, False)
    assert policy.anticipated_count(ahead_s=30.0, now_s=0.0) == 0
    assert policy.unchanged_for_s(in_flight=0.0, now_s=0.0) is None
    assert policy.due_save(0.0) is None
    for took_s in (12.0, float("nan"), -1.0):
        policy.started(took_s)
    assert policy.start_s == 4.0


def test_advice_replaces_algorithm_only_with_proposals() -> None:
    algorithm = view_with().algorithm
    assert NEUTRAL.proposed(algorithm) == (algorithm,)
    assert Advice(proposals=()).proposed(algorithm) == ()


def test_algorithm_count_without_data_is_zero() -> None:
    view = view_with()
    unknown = Proposal(decider="kpa", desired=NoData(missing="a stat"), reason="none")
    assert view.algorithm_count == 1
    assert msgspec.structs.replace(view, algorithm=unknown).algorithm_count == 0
