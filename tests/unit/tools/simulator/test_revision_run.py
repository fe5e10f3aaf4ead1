"""One simulated revision: cold requests, pod-seconds, queues, paths, and periods that are skipped."""

import math
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.slo import read_slo
from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import (
    ADAPTIVE_POLICY,
    KNATIVE_POLICY,
    ORIGINAL,
    SAFE,
    AutoscalerSettings,
)
from serving.core.settings.queueproxy import QueueProxySettings
from serving.tools.simulator.results import Quantiles, RevisionResult, RunLog
from serving.tools.simulator.revision_run import RevisionRun, RunConfig
from tests.unit.core.scaling.scaler_builders import WaitingPolicy

HALF_SECOND = Quantiles(p50_s=0.5, p99_s=0.5)


def config(
    *,
    scaling: ScalingAnnotations | None = None,
    autoscaler: AutoscalerSettings | None = None,
    concurrency: int = 10,
    start_s: float = 2.0,
) -> RunConfig:
    autoscaler = autoscaler or AutoscalerSettings(policy=KNATIVE_POLICY)
    scaling = scaling or ScalingAnnotations()
    return RunConfig(
        settings=autoscaler,
        spec=resolve(autoscaler, scaling, container_concurrency=concurrency, reachable=True),
        queue_proxy=QueueProxySettings(container_concurrency=concurrency),
        concurrency=concurrency,
        start=Quantiles(p50_s=start_s, p99_s=start_s),
        service=HALF_SECOND,
        probe_delay_s=0.0,
    )


def simulated(*times_s: float, run_config: RunConfig | None = None, until_s: float = 600.0) -> RevisionResult:
    arrivals = iter([(at_s, math.nan) for at_s in sorted(times_s)])
    return RevisionRun("f", arrivals, run_config or config(), until_s=until_s).run()


def test_single_request_is_cold_and_its_pod_is_removed_after_the_window() -> None:
    result = simulated(10.0)
    assert (result.requests, result.cold_requests, result.pod_starts, result.flaps) == (1, 1, 1, 1)
    assert result.waits.percentile(0.5, requests=1) == pytest.approx(2.0)
    # Two seconds to start, half a second of work, a window of 60 s, two periods of the gate, and 5 s to drain.
    assert 66.0 < result.pod_seconds < 75.0
    assert result.wasted_pod_seconds == pytest.approx(result.pod_seconds - 2.0 - 0.5 - 5.0)


def test_idle_revision_needs_at_most_8_decisions_per_day() -> None:
    assert simulated(10.0, until_s=86_400.0).decisions <= 8


def test_request_within_the_window_is_warm_and_later_one_is_cold() -> None:
    assert simulated(10.0, 50.0).cold_requests == 1
    assert simulated(10.0, 150.0).cold_requests == 2
    autoscaler_settings = AutoscalerSettings(policy=KNATIVE_POLICY, scale_to_zero_pod_retention_period_s=240.0)
    assert simulated(10.0, 150.0, run_config=config(autoscaler=autoscaler_settings)).cold_requests == 1


def test_burst_from_zero_starts_all_pods_and_with_quirks_one_first() -> None:
    burst = [10.0 + index / 1000 for index in range(70)]
    waiting = msgspec.structs.replace(config(), policy_of=lambda *_, **__: WaitingPolicy())
    result = simulated(*burst, run_config=waiting)
    assert (result.cold_requests, result.pod_starts) == (70, 10)
    assert result.waits.percentile(0.99, requests=70) < 2.1
    knative = simulated(
        *burst, run_config=config(autoscaler=AutoscalerSettings(policy=KNATIVE_POLICY, quirks=ORIGINAL))
    )
    assert knative.waits.percentile(0.99, requests=70) > 2.4


def test_max_scale_limits_pods_and_requests_wait_for_slots() -> None:
    result = simulated(*([10.0] * 30), run_config=config(scaling=ScalingAnnotations(overrides=(("max_scale", 1),))))
    assert result.pod_starts == 1
    assert result.waits.percentile(0.999, requests=30) == pytest.approx(3.0)
    assert result.late_requests == 30


def test_full_queue_rejects_requests() -> None:
    run_config = config()
    activator = msgspec.structs.replace(run_config.activator, queue_depth_max=5)
    assert simulated(*([10.0] * 8), run_config=msgspec.structs.replace(run_config, activator=activator)).refused == 3


def test_request_beyond_the_maximum_wait_is_rejected() -> None:
    run_config = config(start_s=30.0)
    activator = msgspec.structs.replace(run_config.activator, queue_wait_max_s=10.0)
    result = simulated(10.0, 35.0, run_config=msgspec.structs.replace(run_config, activator=activator))
    assert (result.refused, result.cold_requests) == (1, 1)


def test_pods_without_activator_queue_and_reject_requests() -> None:
    """Without burst capacity, requests go to the one pod, which runs 1 and queues 10."""
    direct = config(
        concurrency=1, scaling=ScalingAnnotations(overrides=(("target_burst_capacity", 0.0), ("max_scale", 1)))
    )
    result = simulated(10.0, *([20.0] * 15), run_config=direct)
    assert result.refused == 4
    assert result.waits.percentile(1.0, requests=12) == pytest.approx(5.0)
    revision_result = simulated(
        10.0, *([20.0] * 15), run_config=msgspec.structs.replace(direct, has_burst_switch=False)
    )
    assert revision_result.refused == 0


def test_failed_pod_start_is_retried_after_a_pause() -> None:
    run_config = msgspec.structs.replace(config(), failing_starts=0.5)
    result = simulated(*(10.0 + 500.0 * index for index in range(8)), run_config=run_config, until_s=5000.0)
    assert (result.failed_starts > 0, result.requests, result.cold_requests) == (True, 8, 8)
    # 2 s to fail, 10 s of pause, 2 s to start.
    assert result.waits.percentile(1.0, requests=8) >= 14.0


def test_draining_pod_is_counted_until_its_last_request_ends() -> None:
    arrivals = iter([(10.0, 200.0)])
    result = RevisionRun("f", arrivals, config(), until_s=1000.0).run()
    assert result.pod_seconds > 200.0


def outcome(result: RevisionResult) -> bytes:
    """A result without its decision count, rounded to microseconds, because sums differ in the last bits."""
    values = msgspec.structs.asdict(msgspec.structs.replace(result, decisions=0))
    del values["waits"]
    waits = [round(result.waits.percentile(share / 50, requests=result.requests), 6) for share in range(51)]
    series = [round(pods, 6) for pods in values.pop("pod_series")]
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
    return msgspec.json.encode((rounded, waits, series))


@pytest.mark.parametrize("policy", [KNATIVE_POLICY, ADAPTIVE_POLICY])
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 150), marks=pytest.mark.slow)])
def test_skipped_periods_change_no_result_and_save_3_of_4_decisions(policy: str, seeds: range) -> None:
    decision_counts = Counter[bool]()
    for seed in seeds:
        dice = random.Random(f"{policy}:{seed}")
        times_s = [dice.uniform(0, 800) for _ in range(dice.randint(1, dice.choice([2, 10, 40, 150, 600])))]
        if dice.random() < 0.3:
            period_s = dice.uniform(20, 150)
            times_s = [index * period_s + dice.random() for index in range(int(800 / period_s))]
        autoscaler = AutoscalerSettings(
            policy=policy,
            scale_to_zero_pod_retention_period_s=dice.choice([0.0, 0.0, 45.0]),
            quirks=ORIGINAL if dice.random() < 0.3 else SAFE,
        )
        run_config = msgspec.structs.replace(
            config(
                autoscaler=autoscaler,
                concurrency=dice.choice([0, 1, 4, 10]),
                start_s=dice.choice([0.5, 2.0, 7.0]),
            ),
            service=Quantiles(p50_s=dice.choice([0.05, 0.5, 3.0]), p99_s=3.0),
            probe_delay_s=0.02,
            has_burst_switch=dice.random() < 0.7,
        )
        full, skipped = (
            simulated(*times_s, run_config=msgspec.structs.replace(run_config, skips=skips), until_s=1500.0)
            for skips in (False, True)
        )
        assert outcome(skipped) == outcome(full), seed
        decision_counts[False] += full.decisions
        decision_counts[True] += skipped.decisions
    assert decision_counts[True] < decision_counts[False] / 4


@settings(max_examples=60, deadline=None)
@given(
    times_s=st.lists(st.floats(0, 60), max_size=80),
    concurrency=st.integers(0, 4),
    start_s=st.floats(0.01, 5),
    policy=st.sampled_from([KNATIVE_POLICY, ADAPTIVE_POLICY]),
)
def test_every_request_is_served_and_scale_returns_to_zero(
    times_s: list[float], concurrency: int, start_s: float, policy: str
) -> None:
    run = RevisionRun(
        "f",
        iter([(at_s, math.nan) for at_s in sorted(times_s)]),
        config(concurrency=concurrency, start_s=start_s, autoscaler=AutoscalerSettings(policy=policy)),
        until_s=2000.0,
    )
    result = run.run()
    assert result.requests == len(times_s)
    assert result.refused == 0
    assert (run._inside, run.pods.scale) == (0, 0)
    busy_s = result.pod_seconds - result.wasted_pod_seconds
    assert busy_s >= 0.5 * bool(times_s)
    assert sum(result.pod_series) / len(result.pod_series) * 2000.0 == pytest.approx(result.pod_seconds)


def test_policy_of_the_run_replaces_the_product_policy() -> None:
    times_s = [10.0 + 90.0 * index for index in range(12)]
    adaptive = config(autoscaler=AutoscalerSettings(policy=ADAPTIVE_POLICY))
    none = msgspec.structs.replace(adaptive, policy_of=lambda *_, **__: RevisionPolicy())
    cold = [simulated(*times_s, run_config=run_config, until_s=2000.0).cold_requests for run_config in (adaptive, none)]
    assert cold[0] < cold[1] == 12


@pytest.mark.parametrize("policy", [KNATIVE_POLICY, ADAPTIVE_POLICY])
def test_only_first_request_to_a_slow_new_app_is_cold(policy: str) -> None:
    """Three requests, each 20 s after the last response, to an app that starts in 10 s."""
    run_config = config(autoscaler=AutoscalerSettings(policy=policy), start_s=10.0)
    assert simulated(10.0, 41.0, 62.0, run_config=run_config).cold_requests == 1


def logged(
    *times_s: float, run_config: RunConfig | None = None, until_s: float = 200.0
) -> tuple[RunLog, RevisionResult]:
    log = RunLog()
    arrivals = iter([(at_s, math.nan) for at_s in sorted(times_s)])
    logging = msgspec.structs.replace(run_config or config(), log=log)
    return log, RevisionRun("f", arrivals, logging, until_s=until_s).run()


def test_run_log_has_decisions_with_reasons() -> None:
    log, result = logged(10.5)
    assert len(log.moments) > 90
    woken = next(moment for moment in log.moments if moment.scale)
    assert (woken.at_s, woken.scale, woken.ready_count, woken.running_count, woken.waiting_count) == (10.5, 1, 0, 0, 1)
    assert woken.reason.startswith("0 → 1: ")
    assert log.moments[-1].scale == 0
    assert log.latencies_s == [2.5]
    assert result.requests == 1


@pytest.mark.parametrize(
    ("at_s", "load"),
    [
        # The report follows 0.1 s after the requests: a mean of 4, then 4 requests for 0.4 of a second.
        (40.4, 4.0 + 1.6),
        # 0.8 s after: 4 requests for 0.5 of 0.8 s.
        (39.7, 2.5),
        # 0.3 s after an earlier request's report, the period is a whole second: 4 requests for 0.5 s.
        (20.8, 1.0 + 0.4 + 2.0),
    ],
)
def test_first_activator_report_is_the_mean_since_the_first_request(at_s: float, load: float) -> None:
    run_config = msgspec.structs.replace(config(), report_at=0.5)
    log, _ = logged(10.0, 20.4, *([at_s] * 4), run_config=run_config)
    observed = [moment.decision for moment in log.moments if at_s < moment.at_s < at_s + 4.0]
    panic = max(decision.observed_panic for decision in observed if isinstance(decision, ScaleDecision))
    assert panic * 6 == pytest.approx(load, abs=1e-5)


def test_pod_report_is_the_mean_of_a_second() -> None:
    scaling = ScalingAnnotations(overrides=(("target_burst_capacity", 0),))
    run_config = msgspec.structs.replace(config(scaling=scaling), report_at=0.5)
    log, _ = logged(10.0, *([40.4] * 4), run_config=run_config)
    decisions = [moment.decision for moment in log.moments if 40.4 < moment.at_s < 44.4]
    panic = max(decision.observed_panic for decision in decisions if isinstance(decision, ScaleDecision))
    assert panic * 6 == pytest.approx(4 * 0.5, abs=1e-5)


def test_simultaneous_requests_from_zero_are_one_report() -> None:
    log, result = logged(*([10.5] * 10), run_config=config(concurrency=2))
    assert next(moment.scale for moment in log.moments if moment.at_s == 10.5) == 8, "10 / 1.4 = 7.1"
    assert result.pod_starts == 8


def test_run_log_counts_requests_queued_in_pods() -> None:
    bypass = config(
        concurrency=1, scaling=ScalingAnnotations(overrides=(("max_scale", 1), ("target_burst_capacity", 0)))
    )
    log, _ = logged(10.0, *([30.0] * 6), run_config=bypass, until_s=60.0)
    assert max(moment.waiting_count for moment in log.moments) == 5
    assert max(log.latencies_s) == pytest.approx(3.0)


@settings(max_examples=25, deadline=None)
@given(
    times_s=st.lists(st.floats(0, 60), max_size=80),
    concurrency=st.integers(0, 4),
    start_s=st.floats(0.01, 5),
)
def test_every_request_has_a_latency_or_is_rejected(times_s: list[float], concurrency: int, start_s: float) -> None:
    log, result = logged(*times_s, run_config=config(concurrency=concurrency, start_s=start_s), until_s=1000.0)
    assert len(log.latencies_s) + result.refused == len(times_s)
    assert log.moments[-1].scale == 0


def test_dormant_pod_seconds_are_counted_at_a_fifth() -> None:
    plain = simulated(10.0)
    annotations = ScalingAnnotations(overrides=(("dormant", "after=10s"),))
    dormant = simulated(10.0, run_config=config(scaling=annotations))
    assert dormant.dormant_seconds == pytest.approx(plain.wasted_pod_seconds - 10.0)
    saved_s = 0.8 * dormant.dormant_seconds
    assert dormant.pod_seconds == pytest.approx(plain.pod_seconds - saved_s)
    assert dormant.wasted_pod_seconds == pytest.approx(plain.wasted_pod_seconds - saved_s)


def test_request_to_a_dormant_pod_is_warm() -> None:
    annotations = ScalingAnnotations(overrides=(("dormant", "after=10s"),))
    assert simulated(10.0, 40.0, run_config=config(scaling=annotations)).cold_requests == 1


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize("start_s", [0.1, 10.0])
def test_adaptive_policy_equals_knative_under_continuous_load(concurrency: int, start_s: float) -> None:
    load = [5.0 + index * 0.03 + 3.0 * (index % 40 == 0) for index in range(4000)]
    adaptive, knative = (
        simulated(
            *sorted(load),
            run_config=config(concurrency=concurrency, start_s=start_s, autoscaler=AutoscalerSettings(policy=policy)),
        )
        for policy in (ADAPTIVE_POLICY, KNATIVE_POLICY)
    )
    assert adaptive.pod_starts > 1
    assert _figures(adaptive) == _figures(knative)


def _figures(result: RevisionResult) -> tuple[float, ...]:
    return (
        result.cold_requests,
        result.late_requests,
        result.pod_starts,
        result.flaps,
        result.waits.percentile(0.99, requests=result.requests),
    )


def test_slo_in_the_spec_improves_the_ratio_of_minutes_within_it() -> None:
    """Four requests of 0.5 s per second; a pod takes over 1 s for more than one request at once."""
    usual = msgspec.structs.replace(config(concurrency=0, start_s=1.0), knee=1.0)
    goal = read_slo("p95<1s")
    times_s = [number / 4 for number in range(2400)]
    alone = simulated(*times_s, run_config=msgspec.structs.replace(usual, slo=goal))
    spec = msgspec.structs.replace(usual.spec, slo=goal)
    led = simulated(*times_s, run_config=msgspec.structs.replace(usual, spec=spec))
    assert sum(count for count, _ in led.minutes.values()) == pytest.approx(2400, abs=60)
    assert alone.held_ratio(goal) < 0.5 < led.held_ratio(goal)
    assert RevisionResult(name="idle").held_ratio(goal) == 1.0
