"""Checks that a user's policy keeps its contract, on synthetic load.

Two instances get equal seconds and views, and must return the same advice; each call must end in time and without an
error. Input: the class. Output: the problems, and the longest call. The quality of the policy is the subject of
``serving simulate``.
"""

import math
import random
from collections.abc import Callable, Iterator

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.decision.guarded import GuardedPolicy, PolicyCaller, PolicyClass
from serving.core.scaling.decision.policy import Advice, PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import AutoscalerSettings

_CONCURRENCY = 10
_PERIOD_S = 2
# Seconds of each load, and the start of the first on the clock: a Monday at 7:59 UTC.
_LENGTH_S, _WALL_S = 600, 4 * 86400.0 + 8 * 3600 - 60
# Number of problems at which the check ends.
_PROBLEMS_MAX = 3

Load = Callable[[int, random.Random], float]
"""Requests in flight in a second."""

_LOADS: tuple[Load, ...] = (
    lambda _second, _dice: 0.0,
    lambda _second, dice: dice.uniform(0, 30),
    lambda second, _dice: float(second),
    lambda second, _dice: 50.0 * (second % 60 < 5),
    lambda second, dice: dice.choice([0.0, 0.0, 0.0, 1.0, 500.0]) * (second % 7 == 0),
    lambda _second, dice: dice.expovariate(1 / 1e5),
)


class PolicyCheck(msgspec.Struct, kw_only=True):
    """The result: calls of ``propose`` per instance, and ``problems``; empty if the policy keeps the contract."""

    decision_count: int = 0
    problems: list[str] = []


def check_policy(policy_class: PolicyClass, *, run: PolicyCaller, seed: int = 1) -> PolicyCheck:
    """Check a policy. ``run`` limits the time of each call."""
    check = PolicyCheck()
    first, second = (_advices(policy_class, run=run, seed=seed) for _ in range(2))
    for (view, advice), (_, other) in zip(first, second, strict=True):
        check.decision_count += 1
        problem = advice.failure or other.failure
        if problem is None and advice != other:
            problem = f"equal inputs gave {_shown(advice)} and {_shown(other)}"
        if problem is not None:
            check.problems.append(f"{problem}, at {view.now_s:g} s with {view.in_flight} in flight")
        if len(check.problems) == _PROBLEMS_MAX:
            break
    return check


def _advices(policy_class: PolicyClass, *, run: PolicyCaller, seed: int) -> Iterator[tuple[PolicyView, Advice]]:
    """Each view with a policy's advice. Each call creates a new instance of the policy."""
    settings = AutoscalerSettings()
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=_CONCURRENCY, reachable=True)
    for load in _LOADS:
        dice, scale = random.Random(seed), 0  # noqa: S311 - made-up load
        policy = GuardedPolicy(policy_class, getattr(policy_class, "__name__", "of the file"), run=run)
        for number in range(_LENGTH_S):
            concurrency = load(number, dice)
            if concurrency:
                policy.observe(SecondOfLoad(number, concurrency, math.ceil(concurrency)))
            if number % _PERIOD_S:
                continue
            wanted = math.ceil(concurrency / spec.target_value)
            is_silent = dice.random() < 0.1
            algorithm = Proposal(
                decider="kpa", desired=NoData(missing="no stat") if is_silent else wanted, reason="stable"
            )
            view = PolicyView(
                now_s=number + 1.0,
                wall_s=_WALL_S + number,
                algorithm=algorithm,
                in_flight=None if is_silent and scale else concurrency,
                present_scale=scale,
                ready_count=scale,
                spec=spec,
            )
            yield view, policy.propose(view)
            scale = wanted


def _shown(advice: Advice) -> str:
    """The pod counts that a policy's advice proposes, as text."""
    if advice.proposals is None:
        return "no proposal"
    return ", ".join(str(proposal.desired) for proposal in advice.proposals) or "no pods"
