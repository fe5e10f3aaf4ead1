"""How many pods a revision starts with, and how long it has for them; afterwards the autoscaler alone sets the scale.

Input: the revision's annotations and the autoscaler's settings; output: a ``StartScale``. An annotation goes before a
setting. Knative starts with initial-scale and lets the autoscaler raise it to min-scale; we start with what it would be.
"""

import functools
from collections.abc import Mapping

import msgspec

from serving.model.knative import PROGRESS_DEADLINE_ANNOTATION, SERVING_GROUP
from serving.settings.annotations import GROUP, read_annotations
from serving.settings.autoscaler import HPA_CLASS, AutoscalerSettings

__all__ = ["StartScale", "start_scale"]

# What is asked of the autoscaler outside of its own group, in both spellings.
_OTHER_KEYS = {PROGRESS_DEADLINE_ANNOTATION, f"{SERVING_GROUP}/progressDeadline"}
_CACHED_MAX = 1024


class StartScale(msgspec.Struct, frozen=True, kw_only=True):
    """``start_count`` pods must have been ready once within ``progress_deadline_s``; then ``min_count`` are enough.

    A ``start_count`` of 0 means that the revision is ready without ever having had a pod.
    """

    start_count: int
    min_count: int
    progress_deadline_s: float


def start_scale(annotations: Mapping[str, str], settings: AutoscalerSettings) -> StartScale:
    """The numbers of one revision. initial-scale 1 with min-scale 3 starts 3; with max-scale 2 it would start 2."""
    asked = ((key, text) for key, text in annotations.items() if key.startswith(GROUP) or key in _OTHER_KEYS)
    return _start_scale(tuple(sorted(asked)), settings)


# Every decision about a revision asks, and few say anything: reading them is most of the cost of a decision.
@functools.lru_cache(maxsize=_CACHED_MAX)
def _start_scale(asked: tuple[tuple[str, str], ...], settings: AutoscalerSettings) -> StartScale:
    scaling = read_annotations(dict(asked), settings).scaling
    initial = settings.initial_scale if scaling.initial_scale is None else scaling.initial_scale
    low = settings.min_scale if scaling.min_scale is None else scaling.min_scale
    high = (settings.max_scale if scaling.max_scale is None else scaling.max_scale) or settings.max_scale_limit
    # An hpa knows no zero: it leaves a Deployment alone that has none.
    least = 1 if (scaling.class_name or settings.pod_autoscaler_class) == HPA_CLASS else 0
    bounded = max(min(max(initial, low), high) if high else max(initial, low), least)
    deadline_s = scaling.progress_deadline_s
    return StartScale(
        start_count=bounded,
        min_count=low,
        progress_deadline_s=settings.progress_deadline_s if deadline_s is None else deadline_s,
    )
