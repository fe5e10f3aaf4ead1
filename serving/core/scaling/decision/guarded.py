"""Runs user policies, and uses Knative's policy when they fail.

A policy fails if it raises, takes too long, or returns no usable count. The reason is in the advice, and so in
``serving why``.
"""

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.quantity import INT32_MAX
from serving.core.scaling.decision.policy import NEUTRAL, Advice, Policy, PolicyView, RevisionPolicy, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal

POLICY_TIME_MAX_S = 0.1
"""Longest call of a user policy, in seconds."""

PolicyClass = Callable[[], Policy]
"""Creates a user policy for one revision, from a package or a file."""

FindPolicy = Callable[[str], PolicyClass | None]
"""Finds a policy class by an unknown name; None if there is none. Raises ``InvalidValue`` if loading fails."""

T = TypeVar("T")

# Consecutive slow calls before a policy is suspended, and the suspension in seconds.
_OVERRUNS_MAX, _LEFT_OUT_S = 3, 60.0
# Time without failures until a policy counts as healthy again, in seconds: each change is an API write.
_FAILED_S = 60.0
# Longest stored reason or error, in characters.
_REASON_MAX = 200


class PolicyOverrun(BaseException):
    """A user policy exceeded ``POLICY_TIME_MAX_S``. Not an ``Exception``, so that policies do not catch it."""


class PolicyCaller(Protocol):
    """Runs one call of a user policy with a time limit. The autoscaler's implementation has a clock."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Return the call's result. Raises ``PolicyOverrun`` if it takes longer than ``POLICY_TIME_MAX_S``."""


def run_unbounded(call: Callable[[], T], /) -> T:
    """Run a call without a time limit, because the simulator's time does not pass during a call."""
    return call()


class MissingPolicy(RevisionPolicy):
    """Uses Knative's policy in place of an unknown one; every advice has the reason."""

    def __init__(self, failure: str) -> None:
        super().__init__()
        self.failure = failure
        self._advice = Advice(failure=failure)

    def propose(self, view: PolicyView) -> Advice:
        """Advice without proposals."""
        del view
        return self._advice


class GuardedPolicy(RevisionPolicy):
    """Runs a user policy, and uses Knative's for each decision in which it fails.

    A policy that is too slow three times in a row is left out for a minute.
    """

    observes = True
    skips_periods = False

    def __init__(self, policy_class: PolicyClass, name: str, *, run: PolicyCaller = run_unbounded) -> None:
        """Calls ``policy_class`` once; if it fails, every advice has the error."""
        super().__init__()
        self.name = name
        self._run = run
        self._policy: Policy | None = None
        self._pending_failure = ""
        self._overrun_count = 0
        self._left_out_until_s = self._failed_s = -math.inf

        def create() -> tuple[Policy, bool]:
            policy = policy_class()
            return policy, bool(getattr(policy, "counts_waiting", False))

        created, self._creation_failure = self._guarded("creation", create)
        if created is not None:
            self._policy, self.counts_waiting = created

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second. If the policy fails here, the next decision reports the failure."""
        policy = self._policy
        if policy is None or second.number < self._left_out_until_s:
            return
        _, failure = self._guarded("observe", lambda: policy.observe(second))
        self._pending_failure = failure or self._pending_failure
        self._count_overruns(second.number + 1.0)

    def propose(self, view: PolicyView) -> Advice:
        """The policy's advice; if the policy fails, empty advice with the reason."""
        policy, advice = self._policy, None
        failure, self._pending_failure = self._pending_failure, ""
        if policy is None:
            failure = self._creation_failure
        elif view.now_s < self._left_out_until_s:
            failure = f"too slow {_OVERRUNS_MAX} times in a row, left out for a minute"
        elif not failure:
            advice, failure = self._guarded("propose", lambda: self._checked(policy.propose(view), view))
            self._count_overruns(view.now_s)
        if not failure:
            if view.now_s >= self._failed_s + _FAILED_S:
                self.failure = ""
            return advice or NEUTRAL
        failure = f"policy {self.name} failed ({failure})"
        self._failed_s, self.failure = view.now_s, self.failure or failure
        return Advice(failure=failure)

    def _guarded(self, step: str, call: Callable[[], T]) -> tuple[T | None, str]:
        """Run one call: return its result and "", or None and the reason of the failure."""
        try:
            result = self._run(call)
        except KeyboardInterrupt:
            raise
        except PolicyOverrun:
            self._overrun_count += 1
            return None, f"{step}: longer than {POLICY_TIME_MAX_S:g} s"
        except BaseException as error:  # noqa: BLE001 - code of a user, which may even exit
            return None, f"{step}: {_brief(error)}"
        self._overrun_count = 0
        return result, ""

    def _count_overruns(self, now_s: float) -> None:
        if self._overrun_count >= _OVERRUNS_MAX:
            self._overrun_count = 0
            self._left_out_until_s = now_s + _LEFT_OUT_S

    def _checked(self, answer: object, view: PolicyView) -> Advice:
        """Convert a user's proposal to advice, with at least one pod if requests are in flight.

        Raises ``ValueError``, ``TypeError``.
        """
        if isinstance(answer, Proposal):
            answer = Advice(proposals=(answer,))
        if not isinstance(answer, Advice):
            raise TypeError(f"returned {type(answer).__name__}, not a Proposal or an Advice")
        if answer is NEUTRAL:
            return NEUTRAL
        for seconds in (answer.recheck_in_s, answer.active_min_s):
            if seconds is not None and not 0 <= seconds < math.inf:
                raise ValueError(f"returned a time of {seconds} s")
        if answer.proposals is not None:
            floor = 1 if view.in_flight else 0
            proposals = tuple(self._named(proposal, floor) for proposal in answer.proposals)
            answer = msgspec.structs.replace(answer, proposals=proposals, failure=None)
        # The decision log stores this field; a wrong type must fail here.
        return msgspec.convert(msgspec.to_builtins(answer), Advice)

    def _named(self, proposal: Proposal, floor: int) -> Proposal:
        desired = proposal.desired
        reason = str(proposal.reason)[:_REASON_MAX]
        if isinstance(desired, NoData):
            return msgspec.structs.replace(proposal, decider=self.name, reason=reason)
        if type(desired) is not int or not 0 <= desired <= INT32_MAX:
            raise ValueError(f"proposed {desired!r} pods, not a whole number from 0 to {INT32_MAX}")
        return msgspec.structs.replace(proposal, decider=self.name, desired=max(desired, floor), reason=reason)


def _brief(error: BaseException) -> str:
    """An error of user code in one line of at most 200 characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:_REASON_MAX]
