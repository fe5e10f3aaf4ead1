"""The adaptive policy of one revision."""

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.adaptive.policy import AdaptivePolicy, adaptive_policy
from serving.core.scaling.adaptive.regret import KeepRegret
from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, RegretReason, SecondOfLoad
from serving.core.scaling.decision.records import DecisionCause, InFlight
from serving.core.scaling.decision.step import RevisionState, StepInputs, step
from serving.core.scaling.kpa.decide import KpaState
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateState
from serving.core.settings.autoscaler import SAFE, AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import facts_of

ADAPTIVE = spec_with(policy="adaptive", cold_start_worth_s=120.0)
TAIL = Proposal(decider="kpa", desired=1, reason="stable")
NONE = Proposal(decider="kpa", desired=0, reason="stable")


def new_policy(**changes: object) -> AdaptivePolicy:
    return adaptive_policy(ADAPTIVE, AutoscalerSettings(adaptive=msgspec.convert(changes, AdaptiveSettings)))


class UncountedRegret(KeepRegret):
    is_counted = False


def called_every(period_s: int, policy: AdaptivePolicy, *, times: int = 40) -> int:
    """Record one request per period from second 0; return the second of the last request."""
    for call in range(times):
        policy.observe(SecondOfLoad(call * period_s, 0.2, 1.0))
    return (times - 1) * period_s


def advice_at(
    policy: AdaptivePolicy, now_s: float, algorithm: Proposal = TAIL, *, in_flight: float | None = 0.0, scale: int = 1
) -> Advice:
    return policy.propose(
        PolicyView(
            now_s=now_s, algorithm=algorithm, in_flight=in_flight, present_scale=scale, ready_count=scale, spec=ADAPTIVE
        )
    )


def wanted(advice: Advice) -> int:
    assert advice.proposals is not None
    return max(proposal.desired for proposal in advice.proposals if isinstance(proposal.desired, int))


def test_policy_without_history_gives_neutral_advice() -> None:
    assert advice_at(new_policy(), 100.0) is NEUTRAL


def test_requests_in_flight_or_unknown_give_neutral_advice() -> None:
    policy = new_policy()
    last = called_every(10, policy)

    assert advice_at(policy, last + 5.0, in_flight=1.0) is NEUTRAL
    assert advice_at(policy, last + 5.0, in_flight=None) is NEUTRAL


def test_request_in_flight_retains_pod_while_windows_are_empty() -> None:
    policy = new_policy()
    at_s = called_every(90, policy) + 89.0
    inputs = StepInputs(
        at_s=at_s,
        cause=DecisionCause.PERIOD,
        view=facts_of(1),
        in_flight=InFlight(present=Stat(concurrency=1.0), is_waiting=False),
        observed=Observation(stable=0.0, panic=0.0),
        spec=ADAPTIVE,
        quirks=SAFE,
    )
    gate = GateState(since_s=0.0, phase=GatePhase.ACTIVE, reason=None, is_initialized=True)

    state, outcome = step(RevisionState(kpa=KpaState(), gate=gate), inputs, policy)

    assert (state.gate.phase, state.latest_count, outcome.to_prove) == (GatePhase.ACTIVE, 1, False)


def test_last_pod_is_retained_while_requests_are_expected() -> None:
    policy = new_policy()
    last = called_every(90, policy)

    advice = advice_at(policy, last + 88.0, NONE)

    assert wanted(advice) == 1
    assert advice.keep is not None
    assert advice.keep.probability > 0.8
    assert round(advice.keep.gaps_ended) == round(advice.keep.gaps_lasted) == 30


def test_last_pod_is_removed_early_if_no_request_is_expected() -> None:
    policy = new_policy()
    last = called_every(3000, policy)

    advice = advice_at(policy, last + 8.0)

    assert wanted(advice) == 0
    assert advice.active_min_s == 6.0


def test_pod_is_started_ahead_of_periodic_request() -> None:
    policy = new_policy()
    last = called_every(600, policy)

    early, ahead = advice_at(policy, last + 300.0, NONE, scale=0), advice_at(policy, last + 598.0, NONE, scale=0)

    assert wanted(early) == 0
    assert wanted(ahead) == 1
    assert ahead.proposals is not None
    assert ahead.proposals[-1].decider == "pre-warming"
    assert early.recheck_in_s is not None
    assert last + 300.0 + early.recheck_in_s <= last + 598.0


def test_advice_after_last_window_needs_no_recheck() -> None:
    policy = new_policy()
    last = called_every(600, policy)

    advice = advice_at(policy, last + 20_000.0, NONE, scale=0)

    assert wanted(advice) == 0
    assert advice.recheck_in_s is None


def test_spent_budget_starts_no_pod_ahead() -> None:
    policy = new_policy(pre_warming_per_minute=1)
    last = called_every(600, policy)
    first = advice_at(policy, last + 598.0, NONE, scale=0)
    again = advice_at(policy, last + 599.0, NONE, scale=0)
    policy.observe(SecondOfLoad(last + 600, 0.2, 1.0))
    policy._budget._permits = 0.0
    policy._budget._at_s = last + 1199.0

    refused = advice_at(policy, last + 1199.0, NONE, scale=0)

    assert (wanted(first), wanted(again), wanted(refused)) == (1, 1, 0)
    assert refused.recheck_in_s == 60.0


def test_missing_data_does_not_lower_scale() -> None:
    policy = new_policy()
    last = called_every(3000, policy)
    silent = Proposal(decider="kpa", desired=NoData(missing="stats"), reason="")

    assert advice_at(policy, last + 8.0, silent).proposals == (silent,)


def test_disabled_keep_alive_gives_neutral_advice() -> None:
    policy = new_policy(keep_alive=False)
    last = called_every(3000, policy)

    assert advice_at(policy, last + 8.0) is NEUTRAL


def test_seconds_without_requests_or_in_the_past_are_not_counted() -> None:
    policy = new_policy()
    policy.observe(SecondOfLoad(100, 0.5, 1.0))
    policy.observe(SecondOfLoad(150, 0.0, 0.0))
    policy.observe(SecondOfLoad(90, 0.5, 1.0))
    policy.observe(SecondOfLoad(101, 0.5, 0.0))

    assert policy.curve() is None


def test_slow_starts_start_pod_earlier() -> None:
    policy = new_policy()
    for _ in range(40):
        policy.started(30.0)
    policy.started(float("nan"))
    last = called_every(600, policy)

    assert wanted(advice_at(policy, last + 575.0, NONE, scale=0)) == 1


def test_learnt_gaps_are_restored_after_restart() -> None:
    before, after = new_policy(), new_policy()
    last = called_every(600, before)
    learnt = before.due_save(50.0)
    assert learnt is not None
    after.load(learnt)
    advice_at(after, last + 1.0, NONE)

    assert wanted(advice_at(after, last + 30.0, NONE)) == 0
    assert wanted(advice_at(after, last + 599.0, NONE, scale=0)) == 1


@pytest.mark.parametrize("worth_s", [10.0, 1000.0])
def test_higher_cold_start_worth_retains_pod_longer(worth_s: float) -> None:
    policy = new_policy()
    for call, gap_s in enumerate([20, 400, 90, 800, 50, 300] * 8):
        policy.observe(SecondOfLoad(call * 1000 + gap_s, 0.2, 1.0))
    policy.update(spec_with(policy="adaptive", cold_start_worth_s=worth_s))

    assert wanted(advice_at(policy, 47_300.0 + 200.0)) == (worth_s > 100)


def test_policy_is_neutral_until_five_gaps_are_recorded() -> None:
    few, many = new_policy(), new_policy()
    last = called_every(90, few, times=5)
    assert advice_at(few, last + 15.0) is NEUTRAL
    last = called_every(90, many, times=9)
    assert advice_at(many, last + 15.0) is not NEUTRAL


def test_last_pod_is_retained_for_at_least_three_start_durations() -> None:
    policy = new_policy(keep_alive_start_max_s=30.0)
    last = called_every(3000, policy)
    for _ in range(50):
        policy.started(8.0)

    assert wanted(advice_at(policy, last + 23.0)) == 1
    assert wanted(advice_at(policy, last + 26.0, NONE)) == 0
    for _ in range(50):
        policy.started(100.0)
    assert wanted(advice_at(policy, last + 29.0)) == 1
    assert wanted(advice_at(policy, last + 32.0, NONE)) == 0


def test_learnt_gaps_are_saved_when_changed_at_most_every_300_s() -> None:
    policy = new_policy()
    assert policy.due_save(0.0) is None

    called_every(600, policy, times=3)
    saved = [policy.due_save(at_s) is not None for at_s in (10.0, 20.0)]
    policy.observe(SecondOfLoad(9000, 0.2, 1.0))
    later = [policy.due_save(at_s) is not None for at_s in (30.0, 311.0, 700.0)]

    assert saved == [True, False]
    assert later == [False, True, False]


def test_loaded_history_counts_in_shared_prior_up_to_its_maximum_weight() -> None:
    rates = []
    for saved_count in (50.0, 100.0):
        prior = GapPrior(SHIPPED_PRIOR)
        adaptive_policy(ADAPTIVE, AutoscalerSettings(), prior=prior).load(f'{{"30": {saved_count}}}')
        rates.append(prior.rates)
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize("learnt", ["", "[]", '{"a": 1}', '{"3": "x"}'])
def test_invalid_history_is_rejected(learnt: str) -> None:
    with pytest.raises(InvalidValue):
        new_policy().load(learnt)


def test_bursts_at_gap_end_retain_pod_longer() -> None:
    """Gaps of two minutes, ended once by one request and once by twenty within the time of a start."""

    def kept_until(count: int) -> float:
        policy, last = new_policy(), 0
        policy._regret.record(-1e4, -1.0)
        for call in range(40):
            last = call * 120 if call % 4 else call * 120 - 90
            policy.observe(SecondOfLoad(max(0, last), 0.2, float(count)))
        return next((age for age in range(7, 600) if not wanted(advice_at(policy, last + 1.0 + age))), 600)

    assert kept_until(20) > kept_until(1)


def test_advice_without_explanations_has_no_keep_reason() -> None:
    policy = adaptive_policy(ADAPTIVE, AutoscalerSettings(), explains=False)
    last = called_every(90, policy)

    advice = advice_at(policy, last + 88.0)
    assert (wanted(advice), advice.keep) == (1, None)


def test_unchanged_for_s_is_time_until_pod_is_removed() -> None:
    policy = new_policy()
    assert policy.unchanged_for_s(in_flight=0.0, now_s=1.0) is None
    policy._regret.record(-1e4, -1.0)
    last = called_every(10, policy)

    for age_s in (0.5, 3.0, 5.96, 7.0, 15.5):
        assert (
            policy.unchanged_for_s(in_flight=0.0, now_s=last + 1.0 + age_s)
            == advice_at(policy, last + 1.0 + age_s).recheck_in_s
        )
    assert policy.unchanged_for_s(in_flight=1.0, now_s=last + 1.0) == float("inf")
    assert policy.unchanged_for_s(in_flight=0.0, now_s=last + 40.0) is None, "the pod is removed"
    assert policy.unchanged_for_s(in_flight=1.0, now_s=last + 100.0) is None, "the windows are empty"
    once = new_policy()
    once.observe(SecondOfLoad(0, 0.2, 1.0))
    assert once.unchanged_for_s(in_flight=0.0, now_s=3.0) == 55.0, "no gap is known: as long as the windows have a load"


def test_curve_has_rates_and_windows() -> None:
    policy = new_policy()
    called_every(600, policy)
    curve = policy.curve()

    assert curve is not None
    assert curve == policy.curve()
    assert curve.gap_count == 39
    assert curve.threshold == pytest.approx(1 / 120)
    # Calls every ten minutes: the pod is removed, and started ahead of the next call.
    assert len(curve.windows) == 2
    first, second = curve.windows
    assert first[1] < 120.0 < second[0] <= 599.0 <= second[1]
    rates = dict(zip(curve.ages_s, curve.rates, strict=True))
    above = [age_s for age_s, rate in rates.items() if rate >= curve.threshold and age_s > 120.0]
    assert min(above) == pytest.approx(second[0], rel=0.05)
    assert max(above) < second[1] <= max(rates)


def regretted(*, cold_requests: float) -> tuple[AdaptivePolicy, int]:
    """A policy with this regret and gaps of 90 s, which outlast Knative's last pod; and the second of the last call."""
    before, after = new_policy(), new_policy()
    last = called_every(90, before)
    learnt = before.due_save(0.0)
    assert learnt is not None
    counts = msgspec.json.decode(learnt, type=dict[str, float])
    after.load(msgspec.json.encode(counts | {"regret-pod-seconds": 0.0, "regret-cold": cold_requests}).decode())
    after.observe(SecondOfLoad(last, 0.2, 1.0))
    return after, last


def test_regret_of_cold_requests_restores_keep_alive_of_knative() -> None:
    policy, last = regretted(cold_requests=3.0)

    advice = advice_at(policy, last + 80.0, NONE)

    assert advice.proposals is None
    assert advice.active_min_s is None
    assert advice.regret == RegretReason(pod_seconds=0.0, cold_requests=3.0)
    assert policy.unchanged_for_s(in_flight=0.0, now_s=last + 20.0) == 60.0 - 3.0 - 19.0
    assert policy.unchanged_for_s(in_flight=0.0, now_s=last + 57.0) is None


def test_learnt_keep_alive_applies_again_when_regret_is_gone() -> None:
    policy, last = regretted(cold_requests=3.0)
    for _ in range(6):
        last += 90
        policy.observe(SecondOfLoad(last, 0.2, 1.0))

    assert wanted(advice_at(policy, last + 80.0, NONE)) == 1


def test_regret_is_restored_after_restart() -> None:
    policy, last = regretted(cold_requests=3.0)
    policy.observe(SecondOfLoad(last + 90, 0.2, 1.0))
    learnt = policy.due_save(1e6)

    assert learnt is not None
    assert msgspec.json.decode(learnt)["regret-cold"] == 3.0


def test_no_pod_is_anticipated_before_first_plan() -> None:
    assert new_policy().anticipated_count(ahead_s=30.0, now_s=0.0) == 0


def test_uncounted_regret_records_no_gap_plan() -> None:
    policy = new_policy()
    policy._regret = UncountedRegret()
    called_every(90, policy)
    assert policy._unsettled is None
