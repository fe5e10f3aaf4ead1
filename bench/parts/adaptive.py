"""The cost of the adaptive policy, of policies in shadow and of the learnt target."""

import itertools
import random
from collections.abc import Iterator

from bench.parts.timing import Comparison, Row, kept_bytes
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.adaptive.policy import AdaptivePolicy
from serving.core.scaling.decision.policy import PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.learnt.learner import TargetLearner
from serving.core.scaling.resolve import resolve
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.shadow import PolicyShadow
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings

START = 1_000_000
GAPS = 100
KEPT = 100
# Pods of the revision whose target is learnt.
_PODS = 4
_LIMITS = Resources(cpu_m=1000, memory_bytes=200_000_000)
_SPEC = resolve(AutoscalerSettings(), ScalingAnnotations(), container_concurrency=0, reachable=True)
_ONE = Proposal(decider="kpa", desired=1, reason="stable")
_PRIOR = GapPrior(SHIPPED_PRIOR)


def _policy() -> AdaptivePolicy:
    """A policy with a full history of gaps."""
    settings = AutoscalerSettings()
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=10, reachable=True)
    policy = AdaptivePolicy(spec, settings, prior=_PRIOR, budget=PreWarmBudget(60))
    dice, second = random.Random(1), 0
    for _ in range(GAPS):
        second += 2 + int(dice.expovariate(1 / 200))
        policy.observe(SecondOfLoad(second, 1.0, 3.0))
    return policy


def _view(*, in_flight: float, scale: int, now_s: float) -> PolicyView:
    """The revision at a decision for which the algorithm wants one pod."""
    return PolicyView(
        now_s=now_s, algorithm=_ONE, in_flight=in_flight, present_scale=scale, ready_count=scale, spec=_SPEC
    )


def _planned() -> AdaptivePolicy:
    """The same with the plan of a gap."""
    policy = _policy()
    policy.propose(_view(in_flight=0.0, scale=1, now_s=float(START)))
    return policy


def _shadow(running: str) -> PolicyShadow:
    settings = AutoscalerSettings(policy=running)
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=10, reachable=True)
    shadow = BUILT_IN.shadow_of(spec, settings, present_scale=1, wall_offset_s=0.0, now_s=0.0)
    assert shadow is not None
    for second in range(100):
        _report(shadow, second, load=Stat(concurrency=20.0 + second % 10, request_count=100.0))
        in_flight = Stat(concurrency=20.0 + second % 10)
        shadow.decide((), in_flight=in_flight, present_scale=4, ready_count=4, start_s=2.0, now_s=second + 1.0)
    return shadow


def _report(shadow: PolicyShadow, second: int, *, load: Stat) -> None:
    """A second as an activator reports it."""
    shadow.arrive(100.0, second + 0.9)
    shadow.record(second, load)


def _learner() -> TargetLearner:
    """A learner that has seen some minutes of four pods."""
    learner = TargetLearner()
    for second in range(300):
        for pod in range(_PODS):
            learner.record((second % 40) / 2 + pod, 40.0, 0.1 + second % 40 / 100)
        learner.measure(second % 40 / 2, 40.0, used=Resources(cpu_m=400, memory_bytes=90_000_000), limits=_LIMITS)
        learner.update(_SPEC, _LIMITS, period_s=30.0, total_max=1000.0, now_s=float(second))
    return learner


def _policy_costs() -> Iterator[Comparison]:
    busy, idle, planned = (_policy() for _ in range(3))
    ticks, gaps = itertools.count(START, 2), itertools.count(START, 30)

    def under_load() -> None:
        second = next(ticks)
        busy.observe(SecondOfLoad(second, 27.0 + second % 5, 100.0))
        busy.observe(SecondOfLoad(second + 1, 27.0 + second % 5, 100.0))
        busy.propose(_view(in_flight=27.0, scale=4, now_s=second + 2.0))

    def while_idle() -> None:
        idle.propose(_view(in_flight=0.0, scale=1, now_s=START + next(ticks) % 60))

    def new_gap() -> None:
        second = next(gaps)
        planned.observe(SecondOfLoad(second, 1.0, 1.0))
        planned.propose(_view(in_flight=0.0, scale=1, now_s=second + 20.0))

    yield Comparison(name="adaptive: two seconds of load and a decision", ours=under_load)
    yield Comparison(name="adaptive: a decision while idle", ours=while_idle)
    yield Comparison(name="adaptive: the first decision of a gap", ours=new_gap)


def _shadow_costs(running: str, name: str) -> Iterator[Comparison]:
    """Two seconds of load and a decision, then a decision while idle."""
    shadow, ticks = _shadow(running), itertools.count(START, 2)
    # The decider takes the same records: they are no cost of the shadow.
    loads = [Stat(concurrency=27.0 + one, request_count=100.0) for one in range(5)]

    def under_load() -> None:
        second = next(ticks)
        load = loads[second // 2 % 5]
        for one in (second, second + 1):
            _report(shadow, one, load=load)
        shadow.decide((), in_flight=load, present_scale=4, ready_count=4, start_s=2.0, now_s=second + 2.0)

    def while_idle() -> None:
        shadow.decide((), in_flight=Stat(), present_scale=0, ready_count=0, start_s=2.0, now_s=next(ticks) + 2.0)

    yield Comparison(name=f"adaptive: {name} in shadow, two seconds of load and a decision", ours=under_load)
    yield Comparison(name=f"adaptive: {name} in shadow, a decision while idle", ours=while_idle)


def _learning_cost() -> Comparison:
    """Two seconds of reports of each pod, a measurement and a look."""
    learner, ticks = _learner(), itertools.count(START, 2)

    def learn_under_load() -> None:
        second = next(ticks)
        for pod in range(2 * _PODS):
            learner.record(7.0 + (second + pod) % 3, 40.0, 0.2)
        learner.measure(8.0, 40.0, used=Resources(cpu_m=400, memory_bytes=90_000_000 + second % 7), limits=_LIMITS)
        learner.update(_SPEC, _LIMITS, period_s=30.0, total_max=1000.0, now_s=second + 2.0)

    return Comparison(name=f"adaptive: the learnt target of {_PODS} pods, two seconds", ours=learn_under_load)


def rows() -> Iterator[Comparison | Row]:
    """Times of the policy, of either policy in shadow and of the learnt target; then the memory of a revision."""
    yield from _policy_costs()
    yield from _shadow_costs(ADAPTIVE_POLICY, "Knative's policy")
    yield from _shadow_costs(KNATIVE_POLICY, "the adaptive policy")
    yield _learning_cost()
    yield kept_bytes("adaptive: state of a revision", _planned, KEPT)
    yield kept_bytes("adaptive: state of Knative's policy in shadow", lambda: _shadow(ADAPTIVE_POLICY), KEPT)
    yield kept_bytes("adaptive: state of a learnt target", _learner, KEPT)
