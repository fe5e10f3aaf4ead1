"""Policies of users behind the protocol, and Knative's own."""

from typing import cast

import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.decision.policy import (
    NEUTRAL,
    Advice,
    GuardedPolicy,
    Policy,
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


class Answering:
    """Returns its answer, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.seconds: list[SecondOfLoad] = []

    def observe(self, second: SecondOfLoad) -> None:
        self.seconds.append(second)
        if isinstance(self.answer, KeyError):
            raise self.answer

    def propose(self, view: PolicyView) -> Advice | Proposal:
        assert view.spec is DEFAULTS
        if isinstance(self.answer, Exception):
            raise self.answer
        return cast("Proposal", self.answer)


def advice_of(answer: object, *, in_flight: float | None = 0.0) -> Advice:
    policy: Policy = Answering(answer)
    return GuardedPolicy(policy, "mine").propose(view_with(in_flight))


def wanting(desired: object) -> Proposal:
    return Proposal(decider="any", desired=cast("int", desired), reason="because")


def test_knatives_policy_never_advises_and_learns_only_how_long_starts_take() -> None:
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


def test_a_proposal_of_a_user_replaces_the_algorithms_under_the_policys_name() -> None:
    advice = advice_of(wanting(3))
    assert advice.proposals == (Proposal(decider="mine", desired=3, reason="because"),)
    assert advice.failure is None


def test_requests_in_flight_keep_a_pod_whatever_a_policy_of_a_user_wants() -> None:
    (proposal,) = advice_of(wanting(0), in_flight=2.0).proposals or ()
    assert proposal.desired == 1


def test_advice_without_proposals_leaves_the_algorithms_count() -> None:
    assert advice_of(NEUTRAL) is NEUTRAL
    silent = advice_of(wanting(NoData(missing="a queue")))
    assert silent.proposals is not None
    assert silent.proposals[0].decider == "any"


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (ValueError("no\nqueue"), "propose: ValueError: no"),
        (None, "propose: TypeError: returned NoneType, not a Proposal or an Advice"),
        (wanting(-1), "propose: ValueError: proposed -1 pods, not a whole number from 0"),
        (wanting(float("nan")), "propose: ValueError: proposed nan pods, not a whole number from 0"),
        (wanting(True), "propose: ValueError: proposed True pods, not a whole number from 0"),
        (Advice(proposals=(wanting(1),), recheck_in_s=float("nan")), "propose: ValueError: returned a time of nan s"),
        (Advice(proposals=(wanting(1),), active_min_s=-1.0), "propose: ValueError: returned a time of -1.0 s"),
    ],
)
def test_a_policy_that_fails_is_replaced_for_that_decision(answer: object, failure: str) -> None:
    advice = advice_of(answer)
    assert (advice.proposals, advice.failure) == (None, failure)


def test_a_failure_while_observing_is_reported_once_with_the_next_decision() -> None:
    policy = GuardedPolicy(Answering(KeyError("x")), "mine")
    policy.observe(SECOND)
    assert policy.propose(view_with()).failure == "observe: KeyError: 'x'"


def test_a_policy_observes_each_second() -> None:
    answering = Answering(NEUTRAL)
    GuardedPolicy(answering, "mine").observe(SECOND)
    assert answering.seconds == [SECOND]


def test_advice_replaces_the_algorithm_only_with_proposals() -> None:
    algorithm = view_with().algorithm
    assert NEUTRAL.proposed(algorithm) == (algorithm,)
    assert Advice(proposals=()).proposed(algorithm) == ()
