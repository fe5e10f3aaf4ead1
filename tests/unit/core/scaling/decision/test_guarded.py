"""Policies of users that fail or are too slow."""

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.decision.guarded import GuardedPolicy, PolicyOverrun
from serving.core.scaling.decision.policy import NEUTRAL, Advice, Policy, PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal
from tests.unit.core.scaling.decision.test_policy import SECOND, view_with
from tests.unit.core.scaling.kpa_builders import DEFAULTS

T = TypeVar("T")


class Answering:
    """A policy that returns or raises ``answer``."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.seconds: list[SecondOfLoad] = []

    def observe(self, second: SecondOfLoad) -> None:
        self.seconds.append(second)
        if isinstance(self.answer, KeyError):
            raise self.answer

    def propose(self, view: PolicyView) -> Advice | Proposal:
        assert view.spec is DEFAULTS
        if isinstance(self.answer, BaseException):
            raise self.answer
        return cast("Proposal", self.answer)


def advice_of(answer: object, *, in_flight: float | None = 0.0) -> Advice:
    policy: Policy = Answering(answer)
    return GuardedPolicy(lambda: policy, "mine").propose(view_with(in_flight))


def wanting(desired: object) -> Proposal:
    return Proposal(decider="any", desired=cast("int", desired), reason="because")


def test_proposal_of_user_policy_replaces_algorithm_under_policy_name() -> None:
    advice = advice_of(wanting(3))
    assert advice.proposals == (Proposal(decider="mine", desired=3, reason="because"),)
    assert advice.failure is None


def test_requests_in_flight_retain_one_pod_under_user_policy() -> None:
    (proposal,) = advice_of(wanting(0), in_flight=2.0).proposals or ()
    assert proposal.desired == 1


def test_advice_without_proposals_retains_count_of_algorithm() -> None:
    assert advice_of(NEUTRAL) is NEUTRAL
    silent = advice_of(wanting(NoData(missing="a queue")))
    assert silent.proposals is not None
    assert silent.proposals[0].decider == "mine"


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (ValueError("no\nqueue"), "propose: ValueError: no"),
        (SystemExit(3), "propose: SystemExit: 3"),
        (wanting(2**40), "propose: ValueError: proposed 1099511627776 pods, not a whole number from 0 to 2147483647"),
        (None, "propose: TypeError: returned NoneType, not a Proposal or an Advice"),
        (wanting(-1), "propose: ValueError: proposed -1 pods, not a whole number from 0 to 2147483647"),
        (wanting(float("nan")), "propose: ValueError: proposed nan pods, not a whole number from 0 to 2147483647"),
        (wanting(True), "propose: ValueError: proposed True pods, not a whole number from 0 to 2147483647"),
        (Advice(proposals=(wanting(1),), recheck_in_s=float("nan")), "propose: ValueError: returned a time of nan s"),
        (Advice(proposals=(wanting(1),), active_min_s=-1.0), "propose: ValueError: returned a time of -1.0 s"),
    ],
)
def test_failing_policy_is_replaced_for_its_decision(answer: object, failure: str) -> None:
    advice = advice_of(answer)
    assert (advice.proposals, advice.failure) == (None, f"policy mine failed ({failure})")


def test_failure_in_observe_is_reported_with_next_decision() -> None:
    policy = GuardedPolicy(lambda: Answering(KeyError("x")), "mine")
    policy.observe(SECOND)
    assert policy.propose(view_with()).failure == "policy mine failed (observe: KeyError: 'x')"


def test_policy_observes_each_second() -> None:
    answering = Answering(NEUTRAL)
    GuardedPolicy(lambda: answering, "mine").observe(SECOND)
    assert answering.seconds == [SECOND]


def view_at(now_s: float) -> PolicyView:
    return msgspec.structs.replace(view_with(), now_s=now_s)


def test_advice_that_cannot_be_encoded_is_a_failure() -> None:
    failure = advice_of(Advice(proposals=(wanting(1),), keep=cast("None", {1, 2}))).failure
    assert failure is not None
    assert failure.startswith("policy mine failed (propose: ")


def test_reason_of_any_type_is_converted_to_short_text() -> None:
    proposal = Proposal(decider="any", desired=1, reason=cast("str", ["x" * 300]))
    (checked,) = advice_of(proposal).proposals or ()
    assert checked.reason == "['" + "x" * 198


def test_policy_that_cannot_be_created_fails_in_each_decision() -> None:
    def broken() -> Policy:
        raise ImportError("no module named queues")

    policy = GuardedPolicy(broken, "mine")
    policy.observe(SECOND)
    failure = "policy mine failed (creation: ImportError: no module named queues)"
    assert [policy.propose(view_at(at_s)).failure for at_s in (62.0, 64.0)] == [failure] * 2
    assert policy.failure == failure


class Overruns:
    """A runner under which calls take too long while ``is_slow``; counts all calls."""

    def __init__(self) -> None:
        self.is_slow, self.count = False, 0

    def __call__(self, call: Callable[[], T], /) -> T:
        self.count += 1
        if self.is_slow:
            raise PolicyOverrun
        return call()


def test_policy_is_skipped_for_a_minute_after_three_overruns() -> None:
    run = Overruns()
    policy = GuardedPolicy(lambda: Answering(wanting(3)), "mine", run=run)
    run.is_slow = True
    slow = "policy mine failed (propose: longer than 0.1 s)"
    assert [policy.propose(view_at(at_s)).failure for at_s in (100.0, 102.0, 104.0)] == [slow] * 3
    count = run.count
    left_out = "policy mine failed (too slow 3 times in a row, left out for a minute)"
    policy.observe(SecondOfLoad(104, 1.0, 1.0))
    assert [policy.propose(view_at(at_s)).failure for at_s in (106.0, 163.0)] == [left_out] * 2
    assert run.count == count
    run.is_slow = False
    advice = policy.propose(view_at(164.0))
    assert (advice.failure, advice.proposals) == (None, (Proposal(decider="mine", desired=3, reason="because"),))


def test_nonconsecutive_overruns_do_not_skip_policy() -> None:
    run = Overruns()
    policy = GuardedPolicy(lambda: Answering(NEUTRAL), "mine", run=run)
    for turn in range(8):
        run.is_slow = turn % 2 == 0
        policy.propose(view_at(100.0 + 2 * turn))
    assert run.count == 9


def test_failure_is_reported_for_a_minute_after_the_last_one() -> None:
    answering = Answering(ValueError("x"))
    policy = GuardedPolicy(lambda: answering, "mine")
    policy.propose(view_at(100.0))
    answering.answer = NEUTRAL
    reported = []
    for at_s in (102.0, 159.0, 160.0):
        policy.propose(view_at(at_s))
        reported.append(bool(policy.failure))
    assert reported == [True, True, False]


def test_keyboard_interrupt_is_not_a_policy_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        advice_of(KeyboardInterrupt())


def test_advice_without_proposals_retains_its_times() -> None:
    advice = advice_of(Advice(recheck_in_s=5.0))
    assert (advice.proposals, advice.recheck_in_s, advice.failure) == (None, 5.0, None)
