"""Each kind of decision, and its explanation."""

import enum
import math
import re
from collections.abc import Callable, Mapping

import msgspec
import pytest

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.slo import read_slo
from serving.core.model.stat import Stat
from serving.core.scaling.budget import Allowance, AllowanceReason
from serving.core.scaling.classic.classic import ClassicDecision, ClassicLimit, ClassicMode
from serving.core.scaling.decision.budgeted import Limit
from serving.core.scaling.decision.records import Decided, DecisionCause, DecisionInputs, InFlight, ScalerOutcome
from serving.core.scaling.decision.step import conclude
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, ScaleLimit, decide
from serving.core.scaling.kpa.delay import DelayWindow
from serving.core.scaling.kpa.merge import Proposal, ScaleBound
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateReason, GateState
from serving.core.scaling.scaler.explain import _BOUNDS, _CLASSIC_LIMITS, _GATE, _LIMITS, explain
from serving.core.scaling.slo import SloOutcome, SloVerdict
from serving.core.scaling.spec import MeasuredMetric
from serving.core.settings.autoscaler import SAFE
from tests.unit.core.scaling.kpa_builders import spec_with

NOW_S = 1000.0
LONG_AGO = GateState(since_s=0.0, phase=GatePhase.ACTIVE, reason=None, is_initialized=True)
UNHEARD = NoData(missing="no stat in the stable window")

IDLE = "stable; 60 s average 0.0 in flight over 1 ready pod, target 7 each"


def gate_of(phase: GatePhase, *, for_s: float = 500.0, is_initialized: bool = True) -> GateState:
    return GateState(since_s=NOW_S - for_s, phase=phase, is_initialized=is_initialized)


def sentence_of(
    stable: float | NoData,
    panic: float | None = None,
    *,
    ready: int = 3,
    scale: int | None = None,
    state: KpaState | None = None,
    gate: GateState = LONG_AGO,
    proposals: tuple[Proposal, ...] = (),
    waiting: float = 0.0,
    decided: Decided | None = None,
    proved: bool = False,
    proxied_s: float | None = None,
    recorded: bool = True,
    is_failed: bool = False,
    limit: Limit | None = None,
    **spec: object,
) -> str:
    """The sentence about one decision on these averages, at 7 in flight a pod."""
    return explain(outcome_of(stable, panic, ready=ready, scale=scale, state=state, gate=gate, proposals=proposals,
                              waiting=waiting, decided=decided, proved=proved, proxied_s=proxied_s, recorded=recorded, is_failed=is_failed,
                              limit=limit, **spec))  # fmt: skip


def outcome_of(
    stable: float | NoData,
    panic: float | None,
    *,
    ready: int,
    scale: int | None,
    state: KpaState | None,
    gate: GateState,
    proposals: tuple[Proposal, ...],
    waiting: float,
    decided: Decided | None,
    proved: bool,
    proxied_s: float | None = None,
    recorded: bool = True,
    is_failed: bool = False,
    limit: Limit | None = None,
    **spec: object,
) -> ScalerOutcome:
    numbers = spec_with(**({"target_value": 7.0, "total_value": 10.0} | spec))
    before = state or KpaState()
    observed = (
        stable if isinstance(stable, NoData) else Observation(stable=stable, panic=stable if panic is None else panic)
    )
    _, detail = decide(before, observed=observed, ready_count=ready, spec=numbers, now_s=NOW_S)
    desired = detail if isinstance(detail, NoData) else detail.desired_count
    present_scale = ready if scale is None else scale
    inputs = DecisionInputs(
        at_s=NOW_S,
        cause=DecisionCause.PERIOD,
        view=ScalerView(
            present_scale=present_scale,
            ready_count=ready,
            serving_state=ServingState.ACTIVE if present_scale or waiting else ServingState.RESERVE,
            is_recorded=recorded,
            is_failed=is_failed,
            proved_at_s=NOW_S - 0.1 if proved else None,
            has_public=proxied_s is not None,
            proxy_since_s=None if proxied_s is None else NOW_S - proxied_s,
        ),
        in_flight=InFlight(present=Stat(concurrency=waiting, request_count=waiting), is_waiting=waiting > 0),
        proposals=proposals,
        spec=numbers,
        quirks=SAFE,
        kpa=before,
        gate=gate,
    )
    new_decided = decided or Decided(proposal=Proposal(decider="kpa", desired=desired, reason="x"), detail=detail)
    return conclude(inputs, new_decided, limit)[1]


def allowing(count: int, reason: AllowanceReason, *, price: float = 0.0) -> Limit:
    """A budget of 10 pods, of which 14 are wanted."""
    return lambda demand: Allowance(
        count=count, wanted=demand.wanted, reason=reason, budget="10 pods", all_wanted=14, price=price
    )


def short_of_memory(count: int) -> Limit:
    return lambda demand: Allowance(
        count=count, wanted=demand.wanted, reason=AllowanceReason.MEMORY, budget="1 MiB of 9 are available"
    )


def classic(mode: ClassicMode, limit: ClassicLimit | None = None, *, count: int = 3, reason: str = "x") -> Decided:
    detail = ClassicDecision(
        desired_count=count,
        mode=mode,
        limited_by=limit,
        target_concurrency=10.0,
        idle_s=301.0,
        observed_pod_count=1,
        observed_stable_concurrency=15.0,
        observed_panic_concurrency=None if mode is ClassicMode.STABLE else 40.0,
    )
    return Decided(proposal=Proposal(decider="classic", desired=count, reason=reason), detail=detail)


def proposal(desired: int | NoData, reason: str, *, is_content: bool = False) -> tuple[Proposal, ...]:
    return (Proposal(decider="trigger cpu", desired=desired, reason=reason, is_content=is_content),)


def sentence_of_goal(verdict: SloVerdict, quantile_s: float = 0.41, more_count: int = 0) -> str:
    """The explanation of an SLO of 300 ms."""
    outcome = outcome_of(20.0, None, ready=3, scale=None, state=None, gate=LONG_AGO, proposals=(), waiting=0.0, decided=None, proved=False)  # fmt: skip
    slo = SloOutcome(
        slo=read_slo("p95<300ms"), verdict=verdict, quantile_s=quantile_s, target=7.25, more_count=more_count
    )
    inputs = msgspec.structs.replace(outcome.inputs, slo=slo)
    return explain(msgspec.structs.replace(outcome, inputs=inputs)).rpartition("; ")[2]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (sentence_of_goal(SloVerdict.LATE, more_count=2), "p95 410 ms over 300: 2 more pods"),
        (sentence_of_goal(SloVerdict.LATE, more_count=1), "p95 410 ms over 300: 1 more pod"),
        (sentence_of_goal(SloVerdict.LATE), "p95 410 ms over 300: target 7.25 each"),
        (sentence_of_goal(SloVerdict.SETTLING, more_count=2), "p95 410 ms over 300: waits for 2 more pods"),
        (sentence_of_goal(SloVerdict.SETTLING), "p95 410 ms over 300: target 7.25 each is being tried"),
        (sentence_of_goal(SloVerdict.BOUNDED), "p95 410 ms over 300: max-scale allows no more pods"),
        (
            sentence_of_goal(SloVerdict.HOPELESS),
            "p95 410 ms over 300: pods with hardly a request each were late too, so that the revision's own target counts",
        ),
        (sentence_of_goal(SloVerdict.HELD, 0.25), "p95 250 ms of 300"),
        (sentence_of_goal(SloVerdict.ROOM, 0.1), "p95 100 ms of 300: room for 7.25 each"),
        (sentence_of_goal(SloVerdict.UNKNOWN, 0.0), "too few requests to judge p95 of 300 ms, target 7.25 each"),
    ],
)
def test_each_slo_verdict_is_explained(sentence: str, expected: str) -> None:
    assert sentence == expected


CASES: dict[str, tuple[Callable[[], str], str]] = {
    "stable": (
        lambda: sentence_of(20.0, ready=2),
        "2 → 3: stable; 60 s average 20.0 in flight over 2 ready pods, target 7 each",
    ),
    "stable without change": (
        lambda: sentence_of(20.0),
        "stays 3: stable; 60 s average 20.0 in flight over 3 ready pods, target 7 each",
    ),
    "requests a second": (
        lambda: sentence_of(20.0, ready=1, metric="rps", panic_threshold_ratio=10.0),
        "1 → 3: stable; 60 s average 20.0 requests a second over 1 ready pod, target 7 each",
    ),
    "a gauge that an idle pod does not report": (
        lambda: sentence_of(0.0, ready=1, metric="gauge:vllm:waitin", min_scale=1),
        (
            "stays 1: stable; 60 s average 0.0 vllm:waitin over 1 ready pod, target 7 each; no pod reports the gauge "
            "vllm:waitin; raised to min-scale 1"
        ),
    ),
    "a further gauge that an idle pod does not report": (
        lambda: sentence_of(
            20.0,
            further_metrics=(MeasuredMetric(metric="gauge:cache", target_value=1.0, total_value=1.0),),
            proposals=proposal(1, "0 in all, target 1 each", is_content=True),
        ),
        "stays 3: stable; 60 s average 20.0 in flight over 3 ready pods, target 7 each; no pod reports the gauge cache",
    ),
    "a gauge without data is named once": (
        lambda: sentence_of(NoData(missing="no pod reports the gauge g"), metric="gauge:g"),
        "stays 3: no data (no pod reports the gauge g); nothing is changed",
    ),
    "a gauge of a revision without pods": (
        lambda: sentence_of(0.0, ready=0, metric="gauge:g", gate=gate_of(GatePhase.INACTIVE)),
        "stays 0: stable; 60 s average 0.0 g over 0 ready pods, target 7 each; already at 0",
    ),
    "panic": (
        lambda: sentence_of(10.0, 41.0, max_scale=8, panic_threshold_ratio=2.0),
        "3 → 6: panic; 6 s average 41.0 in flight over 3 ready pods, target 7 each",
    ),
    "a budget that is divided": (
        lambda: sentence_of(40.0, limit=allowing(2, AllowanceReason.SHARE, price=2.857)),
        (
            "3 → 2: panic; 6 s average 40.0 in flight over 3 ready pods, target 7 each; the budget of 10 pods allows 2 of 6: "
            "all under it want 14, and with one more pod the most loaded would have 2.9 times its target"
        ),
    ),
    "budget below the sum of min-scale": (
        lambda: sentence_of(40.0, limit=allowing(3, AllowanceReason.FLOORS, price=math.inf)),
        (
            "stays 3: panic; 6 s average 40.0 in flight over 3 ready pods, target 7 each; the budget of 10 pods allows 3 of 6: "
            "min-scale of all under it is more than it has"
        ),
    ),
    "a dormant pod removed because memory is short": (
        lambda: sentence_of(20.0, limit=short_of_memory(2)),
        (
            "3 → 2: stable; 60 s average 20.0 in flight over 3 ready pods, target 7 each; "
            "the machine's memory is short: 1 MiB of 9 are available"
        ),
    ),
    "the last pod of a revision that wants none": (
        lambda: sentence_of(0.0, enable_scale_to_zero=False, limit=short_of_memory(0), gate=LONG_AGO),
        (
            "stays 3, heading for 0: stable; 60 s average 0.0 in flight over 3 ready pods, target 7 each; max-scale-down-rate 2 keeps 1; "
            "the machine's memory is short: 1 MiB of 9 are available; idle, so it is marked inactive and the activator takes over"
        ),
    ),
    "panic that the maximum limits": (
        lambda: sentence_of(10.0, 71.0, max_scale=8),
        "3 → 8: panic; 6 s average 71.0 in flight over 3 ready pods, target 7 each; limited by max-scale 8",
    ),
    "panic retains its maximum": (
        lambda: sentence_of(10.0, state=KpaState(panic_since_s=NOW_S - 9, panic_count_max=3)),
        "stays 3: panic; 6 s average 10.0 in flight over 3 ready pods, target 7 each; panic keeps 3, the most it asked for",
    ),
    "requests waiting at zero": (
        lambda: sentence_of(100.0, ready=0, waiting=100.0, gate=gate_of(GatePhase.INACTIVE)),
        "0 → 15: panic; 100.0 in flight and no pod to serve them, target 7 each",
    ),
    "woken before any load is reported": (
        lambda: sentence_of(UNHEARD, ready=0, waiting=1.0, gate=gate_of(GatePhase.INACTIVE)),
        "0 → 1: no data (no stat in the stable window); woken by the activator",
    ),
    "min-scale": (
        lambda: sentence_of(0.0, ready=1, min_scale=2),
        "1 → 2: stable; 60 s average 0.0 in flight over 1 ready pod, target 7 each; raised to min-scale 2",
    ),
    "initial-scale": (
        lambda: sentence_of(
            1.0, ready=0, scale=1, initial_scale=4, gate=gate_of(GatePhase.ACTIVATING, is_initialized=False)
        ),
        (
            "1 → 4: stable; 60 s average 1.0 in flight over 0 ready pods, target 7 each; "
            "raised to initial-scale 4, which must be ready once"
        ),
    ),
    "activation-scale": (
        lambda: sentence_of(1.0, ready=1, activation_scale=3),
        "1 → 3: stable; 60 s average 1.0 in flight over 1 ready pod, target 7 each; any load starts activation-scale 3",
    ),
    "max-scale-up-rate": (
        lambda: sentence_of(70.0, ready=2, max_scale_up_rate=2.0),
        "2 → 4: panic; 6 s average 70.0 in flight over 2 ready pods, target 7 each; max-scale-up-rate 2 allows 4",
    ),
    "max-scale-down-rate": (
        lambda: sentence_of(7.0, ready=8),
        "8 → 4: stable; 60 s average 7.0 in flight over 8 ready pods, target 7 each; max-scale-down-rate 2 keeps 4",
    ),
    "scale-down-delay": (
        lambda: sentence_of(14.0, scale_down_delay_s=60.0, state=KpaState(delay=DelayWindow(peaks=((495, 3),)))),
        (
            "stays 3: stable; 60 s average 14.0 in flight over 3 ready pods, target 7 each; "
            "scale-down-delay 60 s keeps 3, now 2 would do"
        ),
    ),
    "after a restart": (
        lambda: sentence_of(7.0, ready=2, state=KpaState(start_hold_count=2)),
        (
            "stays 2: stable; 60 s average 7.0 in flight over 2 ready pods, target 7 each; "
            "until 60 s of load are known, the scale found at the start keeps 2"
        ),
    ),
    "a load that rounds to another count": (
        lambda: sentence_of(49.04, ready=7),
        "7 → 8: stable; 60 s average 49.0 in flight over 7 ready pods, target 7 each, so 8",
    ),
    "no data": (
        lambda: sentence_of(UNHEARD),
        "stays 3: no data (no stat in the stable window); nothing is changed",
    ),
    "a trigger that wants more": (
        lambda: sentence_of(14.0, ready=2, proposals=proposal(5, "usage 0.92 above 0.8")),
        (
            "2 → 5: stable; 60 s average 14.0 in flight over 2 ready pods, target 7 each; "
            "trigger cpu wants 5 (usage 0.92 above 0.8)"
        ),
    ),
    "a trigger in its cooldown": (
        lambda: sentence_of(14.0, proposals=proposal(3, "cooldown: 41 s more")),
        (
            "stays 3: stable; 60 s average 14.0 in flight over 3 ready pods, target 7 each; "
            "trigger cpu wants 3 (cooldown: 41 s more)"
        ),
    ),
    "trigger that wants fewer pods is not explained": (
        lambda: sentence_of(20.0, proposals=proposal(1, "usage low")),
        "stays 3: stable; 60 s average 20.0 in flight over 3 ready pods, target 7 each",
    ),
    "content trigger is not explained": (
        lambda: sentence_of(20.0, proposals=proposal(3, "in-sync: 40 % of the requested cpu", is_content=True)),
        "stays 3: stable; 60 s average 20.0 in flight over 3 ready pods, target 7 each",
    ),
    "content trigger is not explained when others change the count": (
        lambda: sentence_of(
            20.0, ready=2, proposals=proposal(2, "in-sync: 40 % of the requested cpu", is_content=True)
        ),
        "2 → 3: stable; 60 s average 20.0 in flight over 2 ready pods, target 7 each",
    ),
    "content trigger is explained if it decides": (
        lambda: sentence_of(14.0, proposals=proposal(3, "in-sync: 70 % of the requested cpu", is_content=True)),
        (
            "stays 3: stable; 60 s average 14.0 in flight over 3 ready pods, target 7 each; "
            "trigger cpu wants 3 (in-sync: 70 % of the requested cpu)"
        ),
    ),
    "a trigger that is silent": (
        lambda: sentence_of(7.0, proposals=proposal(NoData(missing="no usage"), "no usage")),
        (
            "stays 3: stable; 60 s average 7.0 in flight over 3 ready pods, target 7 each; "
            "3 kept because trigger cpu cannot be heard; trigger cpu has no data (no usage)"
        ),
    ),
    "a trigger that is silent on the way up": (
        lambda: sentence_of(20.0, ready=2, proposals=proposal(NoData(missing="no usage"), "no usage")),
        "2 → 3: stable; 60 s average 20.0 in flight over 2 ready pods, target 7 each; trigger cpu has no data (no usage)",
    ),
    "classic, stable": (
        lambda: sentence_of(0.0, decided=classic(ClassicMode.STABLE)),
        "stays 3: classic stable; average 15.0 in flight a pod over 1 pod that reported, target 10 each",
    ),
    "classic, panic at its rate": (
        lambda: sentence_of(0.0, decided=classic(ClassicMode.PANIC, ClassicLimit.SCALE_UP_RATE, count=10)),
        (
            "3 → 10: classic panic; average 40.0 in flight a pod over 1 pod that reported, target 10 each; "
            "max-scale-up-rate allows 10"
        ),
    ),
    "classic, panic that holds": (
        lambda: sentence_of(0.0, decided=classic(ClassicMode.PANIC, ClassicLimit.PANIC_HOLD)),
        (
            "stays 3: classic panic; average 40.0 in flight a pod over 1 pod that reported, target 10 each; "
            "panic keeps 3, the most it asked for"
        ),
    ),
    "classic, not idle for long enough": (
        lambda: sentence_of(0.0, ready=1, decided=classic(ClassicMode.STABLE, ClassicLimit.AT_LEAST_ONE, count=1)),
        (
            "stays 1: classic stable; average 15.0 in flight a pod over 1 pod that reported, target 10 each; "
            "1 stays until it is idle for long enough"
        ),
    ),
    "classic, after a restart": (
        lambda: sentence_of(0.0, decided=classic(ClassicMode.STABLE, reason="start-hold")),
        (
            "stays 3: classic stable; average 15.0 in flight a pod over 1 pod that reported, target 10 each; "
            "the scale found at the start keeps 3"
        ),
    ),
    "classic, idle": (
        lambda: sentence_of(0.0, ready=1, decided=classic(ClassicMode.IDLE, count=0)),
        "stays 1, heading for 0: classic; no request for 301 s; idle, so it is marked inactive and the activator takes over",
    ),
}

ZERO: dict[str, tuple[Callable[[], str], str]] = {
    "1: the first pods are still starting": (
        lambda: sentence_of(0.0, ready=0, scale=1, gate=gate_of(GatePhase.ACTIVATING, for_s=10)),
        (
            "stays 1: stable; 60 s average 0.0 in flight over 0 ready pods, target 7 each; "
            "its first pods have 620 s more to become ready"
        ),
    ),
    "1: the first pods never became ready": (
        lambda: sentence_of(0.0, ready=0, scale=1, gate=gate_of(GatePhase.ACTIVATING, for_s=700)),
        (
            "1 → 0: stable; 60 s average 0.0 in flight over 0 ready pods, target 7 each; "
            "its first pods did not become ready within 600 s; into reserve first"
        ),
    ),
    "1: the revision failed and has no route": (
        lambda: sentence_of(
            0.0, ready=0, scale=1, gate=gate_of(GatePhase.ACTIVATING, for_s=5), is_failed=True, reachable=False
        ),
        (
            "1 → 0: stable; 60 s average 0.0 in flight over 0 ready pods, target 7 each; "
            "it failed, and no route names it; into reserve first"
        ),
    ),
    "2: active for a shorter time than the window": (
        lambda: sentence_of(0.0, ready=1, gate=gate_of(GatePhase.ACTIVE, for_s=48)),
        f"stays 1: {IDLE}; 1 stays until it was active for the stable window of 60 s, 12 s more",
    ),
    "2: the controller has not recorded the first pod": (
        lambda: sentence_of(0.0, ready=1, recorded=False),
        f"stays 1: {IDLE}; 1 stays until the controller has recorded that its first pods were ready",
    ),
    "3: idle": (
        lambda: sentence_of(0.0, ready=1),
        f"stays 1, heading for 0: {IDLE}; idle, so it is marked inactive and the activator takes over",
    ),
    "4: the hand-off to the activator is not proved": (
        lambda: sentence_of(0.0, ready=1, gate=gate_of(GatePhase.INACTIVE)),
        f"stays 1, heading for 0: {IDLE}; first the activator must prove that it answers in the pods' place",
    ),
    "5: the last pod is retained": (
        lambda: sentence_of(
            0.0, ready=1, gate=gate_of(GatePhase.INACTIVE, for_s=20), proved=True, scale_to_zero_pod_retention_s=50.0
        ),
        f"stays 1, heading for 0: {IDLE}; the last pod is retained for 50 s, 30 s more",
    ),
    "5: the activator is in the path for less than the grace period": (
        lambda: sentence_of(0.0, ready=1, gate=gate_of(GatePhase.INACTIVE, for_s=20), proved=True, proxied_s=10.0),
        (
            f"stays 1, heading for 0: {IDLE}; "
            "the activator is in the path for less than the grace period of 30 s, 10 s more"
        ),
    ),
    "6: proved": (
        lambda: sentence_of(0.0, ready=1, gate=gate_of(GatePhase.INACTIVE, for_s=20), proved=True),
        f"1 → 0: {IDLE}; the activator is proved to answer in the pods' place; into reserve first",
    ),
    "6: inactive for long": (
        lambda: sentence_of(0.0, ready=1, gate=gate_of(GatePhase.INACTIVE), proved=True),
        f"1 → 0: {IDLE}; inactive for longer than the grace period of 30 s and the retention of 0 s; into reserve first",
    ),
    "7: already at zero": (
        lambda: sentence_of(0.0, ready=0, gate=gate_of(GatePhase.PROVED), proved=True),
        "stays 0: stable; 60 s average 0.0 in flight over 0 ready pods, target 7 each; already at 0",
    ),
    "never, if scale to zero is disabled": (
        lambda: sentence_of(0.0, ready=1, enable_scale_to_zero=False),
        f"stays 1: {IDLE}; 1 stays, for scale to zero is disabled",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_cause_of_a_count_is_explained(case: tuple[Callable[[], str], str]) -> None:
    make, sentence = case
    assert make() == sentence


@pytest.mark.parametrize("case", ZERO.values(), ids=ZERO)
def test_each_step_to_zero_is_explained(case: tuple[Callable[[], str], str]) -> None:
    make, sentence = case
    assert make() == sentence


@pytest.mark.parametrize(
    ("rules", "words"),
    [(ScaleLimit, _LIMITS), (ClassicLimit, _CLASSIC_LIMITS), (ScaleBound, _BOUNDS), (GateReason, _GATE)],
)
def test_each_rule_has_a_phrase_and_a_case(rules: type[enum.StrEnum], words: Mapping[enum.StrEnum, str]) -> None:
    assert words.keys() == set(rules)
    sentences = "\n".join(sentence for _, sentence in (*CASES.values(), *ZERO.values()))
    # The longest part of the phrase between its numbers.
    pieces = {rule: max(re.split(r"\{[^}]*\}", text), key=len) for rule, text in words.items()}
    assert [rule for rule, piece in pieces.items() if piece not in sentences] == []


def test_outcome_round_trips_through_json() -> None:
    outcome = outcome_of(20.0, 50.0, ready=2, scale=2, state=None, gate=LONG_AGO, proposals=proposal(5, "hot"), waiting=0.0,
                         decided=None, proved=False)  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ScalerOutcome) == outcome
