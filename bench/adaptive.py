"""What a decision of the adaptive policy costs with all its pieces on, and how much a revision's state takes.

``python bench/adaptive.py``: microseconds of a second of load and a decision, under load and while idle, and of the plan that
each gap needs once; the same of the other policy's decision, which runs in shadow; bytes of one policy with a full history, and of a shadow.
"""

import random
import time
import tracemalloc
from collections.abc import Callable

from serving.model.quantity import Resources
from serving.model.stat import Stat
from serving.scaling.adaptive.advice import PreWarmBudget
from serving.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.scaling.adaptive.policy import RevisionPolicy
from serving.scaling.kpa.merge import Proposal
from serving.scaling.learnt.learner import TargetLearner
from serving.scaling.resolve import resolve
from serving.scaling.scaler.shadow import PolicyShadow, shadow_of
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings

__all__ = ["main"]

_DECISIONS = 20_000
_REVISIONS = 500
_ROUNDS = 5
# Pods of the revision whose target is learnt.
_PODS = 4
_LIMITS = Resources(cpu_m=1000, memory_bytes=200_000_000)
_SPEC = resolve(AutoscalerSettings(), ScalingAnnotations(), container_concurrency=0, reachable=True)
_ONE = Proposal(decider="kpa", desired=1, reason="stable")


def _policy(prior: GapPrior, *, gaps: int) -> RevisionPolicy:
    settings = AutoscalerSettings()
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=10, reachable=True)
    policy = RevisionPolicy(spec, settings, prior=prior, budget=PreWarmBudget(60))
    dice, second = random.Random(1), 0
    for _ in range(gaps):
        second += 2 + int(dice.expovariate(1 / 200))
        policy.take(second, 1.0, 3.0)
    return policy


def _shadow(running: str) -> PolicyShadow:
    settings = AutoscalerSettings(policy=running)
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=10, reachable=True)
    made = shadow_of(spec, settings, present_scale=1, wall_offset_s=0.0, now_s=0.0)
    assert made is not None
    for second in range(100):
        _report(made, second, load=Stat(concurrency=20.0 + second % 10, request_count=100.0))
        inside = Stat(concurrency=20.0 + second % 10)
        made.look((), inside=inside, present_scale=4, ready_count=4, start_s=2.0, now_s=second + 1.0)
    return made


def _shadow_us(shadow: PolicyShadow, start: int) -> tuple[float, float]:
    """Two seconds of load and a decision, then a decision while idle."""
    # The decider takes the same records: they are no cost of the shadow.
    loads = [Stat(concurrency=27.0 + one, request_count=100.0) for one in range(5)]

    def under_load(index: int) -> None:
        for second in (start + 2 * index, start + 2 * index + 1):
            _report(shadow, second, load=loads[index % 5])
        now_s = start + 2.0 * index + 2.0
        shadow.look((), inside=loads[index % 5], present_scale=4, ready_count=4, start_s=2.0, now_s=now_s)

    def while_idle(index: int) -> None:
        now_s = start + 2.0 * (_DECISIONS * (_ROUNDS + 2) + index)
        shadow.look((), inside=Stat(), present_scale=0, ready_count=0, start_s=2.0, now_s=now_s)

    return _us(under_load, _DECISIONS), _us(while_idle, _DECISIONS)


def _report(shadow: PolicyShadow, second: int, *, load: Stat) -> None:
    """A second as an activator reports it."""
    shadow.arrive(100.0, second + 0.9)
    shadow.take(second, load)


def _learner() -> TargetLearner:
    """A learner that has seen some minutes of four pods."""
    learner = TargetLearner()
    for second in range(300):
        for pod in range(_PODS):
            learner.take((second % 40) / 2 + pod, 40.0, 0.1 + second % 40 / 100)
        learner.measure(second % 40 / 2, 40.0, used=Resources(cpu_m=400, memory_bytes=90_000_000), limits=_LIMITS)
        learner.look(_SPEC, _LIMITS, period_s=30.0, total_max=1000.0, now_s=float(second))
    return learner


def _us(call: Callable[[int], object], count: int) -> float:
    """Microseconds of a call, the best of some rounds."""
    best_s = float("inf")
    for number in range(_ROUNDS):
        begin_s = time.perf_counter()
        for index in range(number * count, (number + 1) * count):
            call(index)
        best_s = min(best_s, time.perf_counter() - begin_s)
    return best_s / count * 1e6


def _learning_us(start: int) -> float:
    """Two seconds of reports of each pod, a measurement and a look."""
    learner = _learner()

    def learn_under_load(index: int) -> None:
        for pod in range(2 * _PODS):
            learner.take(7.0 + (index + pod) % 3, 40.0, 0.2)
        learner.measure(8.0, 40.0, used=Resources(cpu_m=400, memory_bytes=90_000_000 + index % 7), limits=_LIMITS)
        learner.look(_SPEC, _LIMITS, period_s=30.0, total_max=1000.0, now_s=start + 2.0 * index + 2.0)

    return _us(learn_under_load, _DECISIONS)


def main() -> None:
    """Print the costs."""
    prior = GapPrior(SHIPPED_PRIOR)
    busy, idle, planned = (_policy(prior, gaps=100) for _ in range(3))
    start = 1_000_000

    def under_load(index: int) -> None:
        for second in (start + 2 * index, start + 2 * index + 1):
            busy.take(second, 27.0 + index % 5, 100.0)
        busy.advise(_ONE, in_flight=27.0, present_scale=4, ready_count=4, now_s=start + 2.0 * index + 2.0)

    def while_idle(index: int) -> None:
        idle.advise(_ONE, in_flight=0.0, present_scale=1, ready_count=1, now_s=start + index % 60)

    def new_gap(index: int) -> None:
        planned.take(start + 30 * index, 1.0, 1.0)
        planned.advise(_ONE, in_flight=0.0, present_scale=1, ready_count=1, now_s=start + 30.0 * index + 20.0)

    policy_us, learning_us = _us(under_load, _DECISIONS), _learning_us(start)
    knative_us, knative_idle_us = _shadow_us(_shadow(ADAPTIVE_POLICY), start)
    adaptive_us, adaptive_idle_us = _shadow_us(_shadow(KNATIVE_POLICY), start)
    print(f"two seconds of load and a decision: {policy_us:.1f} us")
    print(f"a decision while idle:              {_us(while_idle, _DECISIONS):.1f} us")
    print(f"the first decision of a gap:        {_us(new_gap, _DECISIONS // 10):.1f} us")
    print(f"beside it, Knative in shadow: under load {knative_us:.1f} us, idle {knative_idle_us:.1f} us")
    print(f"beside Knative, it in shadow: under load {adaptive_us:.1f} us, idle {adaptive_idle_us:.1f} us")
    print(f"beside it, the learnt target of {_PODS} pods: under load {learning_us:.1f} us")
    print(f"all together, under load:           {policy_us + knative_us + learning_us:.1f} us")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [_policy(prior, gaps=100) for _ in range(_REVISIONS)]
    for policy in kept:
        policy.advise(_ONE, in_flight=0.0, present_scale=1, ready_count=1, now_s=float(start))
    after, _ = tracemalloc.get_traced_memory()
    print(f"state of a revision:                {(after - before) / len(kept):.0f} bytes")
    shadows = [_shadow(ADAPTIVE_POLICY) for _ in range(_REVISIONS)]
    print(
        f"and of its shadow:                  {(tracemalloc.get_traced_memory()[0] - after) / len(shadows):.0f} bytes"
    )
    before, _ = tracemalloc.get_traced_memory()
    learners = [_learner() for _ in range(_REVISIONS)]
    print(
        f"and of its learnt target:           {(tracemalloc.get_traced_memory()[0] - before) / len(learners):.0f} bytes"
    )


if __name__ == "__main__":
    main()
