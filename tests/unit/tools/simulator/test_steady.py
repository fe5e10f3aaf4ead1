"""Outcomes that later decisions repeat."""

import random

import msgspec
import pytest

from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.results import Quantiles, RevisionResult
from serving.tools.simulator.revision_run import RevisionRun, RunConfig


def busy(policy: str, seed: int, *, skips: bool, metric: str | None) -> RevisionResult:
    """A load for which two to eight pods are right, with pauses."""
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
def test_a_repeated_outcome_changes_nothing_under_load(policy: str, metric: str | None) -> None:
    for seed in range(4):
        full, repeated = (busy(policy, seed, skips=skips, metric=metric) for skips in (False, True))
        assert repeated.pod_starts > 2
        assert msgspec.structs.replace(repeated, decisions=0, waits=full.waits) == msgspec.structs.replace(
            full, decisions=0
        )
        assert repeated.waits.percentile(0.9, requests=full.requests) == full.waits.percentile(
            0.9, requests=full.requests
        )
