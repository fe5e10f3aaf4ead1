"""The number of pods that a revision starts with, and its deadline; afterwards only the autoscaler sets the scale.

Input: the revision's annotations and the autoscaler's settings, resolved by ``serving.scaling``; output: a ``StartScale``. Knative
starts with initial-scale and lets the autoscaler raise it to min-scale; here a revision starts with the larger of both.
"""

from collections.abc import Mapping

import msgspec

from serving.scaling.resolve import resolve_annotations
from serving.settings.autoscaler import HPA_CLASS, AutoscalerSettings


class StartScale(msgspec.Struct, frozen=True, kw_only=True):
    """``start_count`` pods must be ready once within ``progress_deadline_s``; later ``min_count`` are enough.

    With a ``start_count`` of 0 the revision is ready without a pod.
    """

    start_count: int
    min_count: int
    progress_deadline_s: float


def start_scale(annotations: Mapping[str, str], settings: AutoscalerSettings) -> StartScale:
    """The numbers of one revision. initial-scale 1 with min-scale 3 starts 3; with max-scale 2 it would start 2."""
    # The bounds depend on neither the concurrency of a pod nor its reachability.
    spec = resolve_annotations(annotations, settings, container_concurrency=0, reachable=True)
    # A HorizontalPodAutoscaler leaves a Deployment with 0 replicas alone.
    least = 1 if spec.class_name == HPA_CLASS else 0
    wanted = max(spec.initial_scale, spec.min_scale)
    return StartScale(
        start_count=max(min(wanted, spec.max_scale) if spec.max_scale else wanted, least),
        min_count=spec.min_scale,
        progress_deadline_s=spec.progress_deadline_s,
    )
