"""Skipped decisions whose outcome repeats the previous one."""

import random

import msgspec
import pytest

from serving.core.scaling.resolve import resolve
from serving.core.scaling.spec import WindowKind
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.results import Quantiles, RevisionResult
from serving.tools.simulator.revision_run import RevisionRun, RunConfig


def busy(policy: str, seed: int, *, skips: bool, metric: str | None) -> RevisionResult:
    """A load for two to eight pods, with pauses."""
    dice = random.Random(f"busy:{seed}")
    at_s, arrivals = 0.0, []
    while at_s < 600:
        arrivals.append((at_s, dice.expovariate(0.7)))
        at_s += dice.expovariate(dice.choice([0.5, 1.5])) if dice.random() < 0.98 else 50.0
    settings = AutoscalerSettings(policy=policy)
    limit = dice.choice([1, 2])
    spec = resolve(settings, ScalingAnnotations(metric=metric), container_concurrency=limit, reachable=True)
    if metric == "rps":
        spec = msgspec.structs.replace(spec, target_value=0.4, total_value=0.5)
    config = RunConfig(
        settings=settings,
        spec=msgspec.structs.replace(spec, max_scale=dice.choice([0, 3]), scale_down_delay_s=dice.choice([0.0, 11.0])),
        concurrency=limit,
        start=Quantiles(p50_s=1.0, p99_s=1.0),
        skips=skips,
    )
    return RevisionRun("f", iter(arrivals), config, until_s=800.0).run()


@pytest.mark.parametrize("metric", [None, "rps"])
@pytest.mark.parametrize("policy", [KNATIVE_POLICY, ADAPTIVE_POLICY])
def test_repeated_outcomes_change_no_result_under_load(policy: str, metric: str | None) -> None:
    for seed in range(4):
        full, repeated = (busy(policy, seed, skips=skips, metric=metric) for skips in (False, True))
        assert repeated.pod_starts > 2
        assert msgspec.structs.replace(repeated, decisions=0, waits=full.waits) == msgspec.structs.replace(
            full, decisions=0
        )
        assert repeated.waits.percentile(0.9, requests=full.requests) == full.waits.percentile(
            0.9, requests=full.requests
        )


def bursts(seed: int, *, skips: bool, policy: str) -> RevisionResult:
    """Bursts and single requests with pauses; each drawn setting can affect a skipped period."""
    dice = random.Random(f"bursts:{seed}")
    at_s, arrivals = 0.0, []
    while at_s < 1900:
        count = dice.choice([1, 1, 2, 6])
        arrivals += [(at_s + dice.random(), dice.choice([0.001, 0.3, 3.0])) for _ in range(count)]
        at_s += dice.choice([1.5, 12.0, 50.0, 70.0, 200.0])
    settings = AutoscalerSettings(policy=policy)
    limit = dice.choice([1, 2, 10])
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=limit, reachable=True)
    spec = msgspec.structs.replace(
        spec,
        scale_to_zero_pod_retention_s=dice.choice([0.0, 0.0, 45.0]),
        scale_down_delay_s=dice.choice([0.0, 0.0, 11.0]),
        target_burst_capacity=dice.choice([-1.0, 0.0, 2.0, 211.0]),
        window_kind=dice.choice(list(WindowKind)),
        min_scale=dice.choice([0, 0, 1]),
    )
    config = RunConfig(
        settings=settings,
        spec=spec,
        concurrency=limit,
        has_burst_switch=dice.choice([True, False]),
        start=Quantiles(p50_s=1.0, p99_s=1.0),
        skips=skips,
    )
    return RevisionRun("f", iter(sorted(arrivals)), config, until_s=2040.0).run()


@pytest.mark.parametrize("policy", [KNATIVE_POLICY, ADAPTIVE_POLICY])
def test_skipped_periods_of_idle_pods_change_no_result(policy: str) -> None:
    skipped_count = 0
    for seed in range(16):
        full, skipped = (bursts(seed, skips=skips, policy=policy) for skips in (False, True))
        assert skipped.pod_starts > 0
        skipped_count += full.decisions - skipped.decisions
        assert msgspec.structs.replace(skipped, decisions=0, waits=full.waits) == msgspec.structs.replace(
            full, decisions=0
        ), seed
        assert skipped.waits.count == full.waits.count
    assert skipped_count > 5_000


def steady(policy: str, seed: int, *, skips: bool) -> RevisionResult:
    """A load for several pods, with rate changes and pauses."""
    dice = random.Random(f"steady:{seed}")
    rates = [dice.choice([0.4, 0.9, 1.5, 4.0]) for _ in range(6)]
    at_s, arrivals = 0.0, []
    while at_s < 1800:
        arrivals.append((at_s, dice.choice([0.5, 2.0, 2.0])))
        at_s += dice.expovariate(rates[int(at_s / 300)]) if dice.random() < 0.99 else dice.choice([3.0, 15.0, 90.0])
    settings = AutoscalerSettings(policy=policy)
    limit = dice.choice([1, 1, 2])
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=limit, reachable=True)
    spec = msgspec.structs.replace(
        spec,
        max_scale=dice.choice([0, 0, 4]),
        target_burst_capacity=dice.choice([-1.0, 0.0, 5.0, 211.0]),
        panic_threshold_ratio=dice.choice([2.0, 1.5]),
        window_kind=dice.choice([WindowKind.LINEAR, WindowKind.LINEAR, WindowKind.WEIGHTED_EXPONENTIAL]),
    )
    config = RunConfig(
        settings=settings,
        spec=spec,
        concurrency=limit,
        has_burst_switch=dice.random() < 0.5,
        start=Quantiles(p50_s=dice.choice([0.5, 2.0]), p99_s=2.0),
        skips=skips,
    )
    return RevisionRun("f", iter(arrivals), config, until_s=2000.0).run()


@pytest.mark.parametrize("policy", [KNATIVE_POLICY, ADAPTIVE_POLICY])
@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 60), marks=pytest.mark.slow)])
def test_skipped_periods_of_several_pods_change_no_result(policy: str, seeds: range) -> None:
    full_count = skipped_count = 0
    for seed in seeds:
        full, skipped = (steady(policy, seed, skips=skips) for skips in (False, True))
        full_count, skipped_count = full_count + full.decisions, skipped_count + skipped.decisions
        # Sums of times differ in their last bits.
        assert skipped.pod_series == pytest.approx(full.pod_series, abs=1e-9), seed
        assert msgspec.structs.replace(
            skipped, decisions=0, waits=full.waits, pod_series=full.pod_series
        ) == msgspec.structs.replace(full, decisions=0), seed
        assert skipped.waits.percentile(0.9, requests=full.requests) == full.waits.percentile(
            0.9, requests=full.requests
        )
    assert skipped_count < 0.75 * full_count
