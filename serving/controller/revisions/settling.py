"""Decides when a new revision takes over traffic, and when the traffic returns to the older revision.

A revision may fail just after it became ready: for example, its port opened before the app was loaded, or a worker
exited. So a new revision becomes the latest ready one only after its pods were ready for its settle time without a
restart. A revision stays Ready while its pods restart, so its counts and the condition Active decide that. If it fails within its first minute of traffic, the traffic returns to the older revision. The failed revision then gets
traffic again only after a whole minute. If no older revision can serve, a new revision does not wait. A settle time of
0 disables all this, as in Knative.
"""

import math
from collections.abc import Sequence

import msgspec

from serving.controller.revisions.revision_status import RESTARTED, was_ready
from serving.core.model.knative import (
    BECAME_READY_ANNOTATIONS,
    CONDITION_ACTIVE,
    CONDITION_READY,
    CONFIGURATION_GENERATION_LABEL,
    ConditionStatus,
)
from serving.core.model.objects import Object, annotations_of, condition_of, labels_of, name_of, nested, timestamp_s
from serving.core.settings.controller import FROM_START

TRIAL_S = 60.0
"""How long after taking over traffic a failing revision returns it, in seconds."""

_SETTLE_MIN_S, _SETTLE_MAX_S = 1.0, 10.0
# Condition times may be whole seconds.
_GRAIN_S = 1.0


class LatestReady(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is the revision that gets new traffic; "" if there is none.

    ``settling`` is the revision that replaces it after ``settles_in_s`` seconds; None while it wants pods and none is
    ready. ``failed`` is a revision that failed and loses its traffic.
    """

    name: str
    settling: str = ""
    settles_in_s: float | None = None
    failed: Object | None = None


def latest_ready_of(
    present: Object | None,
    usable: Sequence[Object],
    latest: Object | None,
    *,
    settle_time_s: float,
    now_s: float,
    gave_back: bool = False,
) -> LatestReady:
    """The latest ready revision of a Configuration now.

    ``present`` is the latest ready revision so far. ``usable`` are the revisions that may serve. ``latest`` is the
    revision of the present generation. ``gave_back``: ``latest`` had the traffic, failed, and lost it.
    """
    candidate = latest if latest is not None and is_ready(latest) else None
    if present is None:
        return LatestReady(
            name=name_of(candidate) if candidate else _newest([revision for revision in usable if was_ready(revision)])
        )
    if candidate is None:
        floor = generation_of(present)
        newer = [revision for revision in usable if generation_of(revision) > floor and is_ready(revision)]
        candidate = max(newer, key=generation_of, default=present)
    if name_of(candidate) == name_of(present):
        return _unless_failed(present, usable, is_on=settle_time_s != 0)
    settled_at_s = _settled_at_s(candidate, settle_time_s, gave_back=gave_back) if is_ready(present) else 0.0
    if settled_at_s > now_s:
        settles_in_s = settled_at_s - now_s if math.isfinite(settled_at_s) else None
        return LatestReady(name=name_of(present), settling=name_of(candidate), settles_in_s=settles_in_s)
    return LatestReady(name=name_of(candidate))


def is_settled(revision: Object, latest_ready: Object | None, *, newest: str) -> bool:
    """Whether the scale of a revision does not decide whether it gets traffic.

    True for the latest ready revision, and for older ones except the ``newest``, which the template is again.
    """
    if latest_ready is None or name_of(revision) == name_of(latest_ready):
        return latest_ready is not None
    return name_of(revision) != newest and generation_of(revision) <= generation_of(latest_ready)


def is_ready(revision: Object) -> bool:
    """Whether a revision is Ready."""
    return bool(condition_of(revision, CONDITION_READY).get("status") == ConditionStatus.TRUE)


def generation_of(revision: Object) -> int:
    """The generation of the Configuration that created a revision; 0 if unknown."""
    text = labels_of(revision).get(CONFIGURATION_GENERATION_LABEL, "")
    return int(text) if text.isdecimal() else 0


def _unless_failed(present: Object, usable: Sequence[Object], *, is_on: bool) -> LatestReady:
    if not is_on or not _failed_in_trial(present):
        return LatestReady(name=name_of(present))
    floor = generation_of(present)
    older = [
        revision
        for revision in usable
        if generation_of(revision) < floor and was_ready(revision) and not _is_failing(revision)
    ]
    if not older:
        return LatestReady(name=name_of(present))
    return LatestReady(name=_newest(older), failed=present)


def _failed_in_trial(revision: Object) -> bool:
    failed_s = timestamp_s(condition_of(revision, CONDITION_READY).get("lastTransitionTime"))
    since_s = _traffic_since_s(revision)
    return _is_failing(revision) and None not in (failed_s, since_s) and (failed_s or 0.0) - (since_s or 0.0) <= TRIAL_S


def _is_failing(revision: Object) -> bool:
    return bool(condition_of(revision, CONDITION_READY).get("status") == ConditionStatus.FALSE)


def _traffic_since_s(revision: Object) -> float | None:
    """When a route first referenced a ready revision; None if never."""
    annotations = annotations_of(revision)
    stamps = (timestamp_s(annotations.get(key)) for key in BECAME_READY_ANNOTATIONS)
    return next((stamp for stamp in stamps if stamp is not None), None)


def _settled_at_s(revision: Object, settle_time_s: float, *, gave_back: bool) -> float:
    """When a ready revision may get traffic, in seconds since the epoch; infinity without a ready pod, 0 immediately."""
    desired = nested(revision, "status", "desiredReplicas")
    if settle_time_s and desired and not nested(revision, "status", "actualReplicas"):
        return math.inf
    kinds = (CONDITION_READY, RESTARTED, *((CONDITION_ACTIVE,) if desired else ()))
    changed = [condition_of(revision, kind).get("lastTransitionTime") for kind in kinds]
    times_s = [at_s for at_s in map(timestamp_s, changed) if at_s is not None]
    if not settle_time_s or not times_s:
        return 0.0
    if settle_time_s == FROM_START:
        created_s = timestamp_s(nested(revision, "metadata", "creationTimestamp"))
        took_s = 0.0 if created_s is None else times_s[0] - created_s
        settle_time_s = min(max(took_s, _SETTLE_MIN_S), _SETTLE_MAX_S)
    if gave_back:
        settle_time_s = max(settle_time_s, TRIAL_S)
    return max(times_s) + settle_time_s + _GRAIN_S


def _newest(revisions: Sequence[Object]) -> str:
    return name_of(max(revisions, key=generation_of)) if revisions else ""
