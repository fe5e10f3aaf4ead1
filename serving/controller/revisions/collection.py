"""Garbage collection of revisions: which ones of a configuration are old enough to be deleted.

Input: the configuration, its revisions, the settings and the time; output: revisions, the longest without traffic first. These are
kept: revisions that a route references or may soon reference (routing state active or pending), the latest created and the
latest ready one, those with ``serving.knative.dev/no-gc: "true"``. Of the others, revisions older than both retention times are
collected, down to ``min_non_active_revisions``; above ``max_non_active_revisions`` the oldest are collected at any age.

With 25 revisions without traffic for a week and the defaults, the 5 oldest are collected. Follows knative/serving 98e5ef90,
pkg/reconciler/gc.
"""

from collections.abc import Sequence

from serving.controller.revisions.revision_status import serving_state_of
from serving.controller.values.routing import RoutingState
from serving.model.knative import NO_GC_ANNOTATION, ROUTING_STATE_LABEL, ROUTING_STATE_MODIFIED_ANNOTATION, ServingState
from serving.model.objects import (
    Object,
    annotations_of,
    is_being_deleted,
    labels_of,
    name_of,
    nested,
    timestamp_s,
)
from serving.settings.controller import DISABLED, ControllerSettings


def collectable(
    configuration: Object, revisions: Sequence[Object], settings: ControllerSettings, *, now: str
) -> list[Object]:
    """The revisions to retire now, the longest without traffic first."""
    now_s = timestamp_s(now)
    assert now_s is not None, now
    idle = sorted(
        (one for one in revisions if _may_go(one, configuration)), key=lambda one: (_active_s(one), name_of(one))
    )
    stale = [one for one in idle if _is_stale(one, settings, now_s)]
    gone = stale[: max(0, len(idle) - settings.min_non_active_revisions)]
    if settings.max_non_active_revisions != DISABLED:
        gone_names = {name_of(one) for one in gone}
        rest = [one for one in idle if name_of(one) not in gone_names]
        gone += rest[: max(0, len(rest) - settings.max_non_active_revisions)]
    return gone


def _may_go(revision: Object, configuration: Object) -> bool:
    status = nested(configuration, "status") or {}
    kept = {status.get("latestReadyRevisionName"), status.get("latestCreatedRevisionName")}
    return (
        labels_of(revision).get(ROUTING_STATE_LABEL) == RoutingState.RESERVE
        and name_of(revision) not in kept
        and annotations_of(revision).get(NO_GC_ANNOTATION, "").lower() != "true"
        and serving_state_of(revision) is not ServingState.RETIRED
        and not is_being_deleted(revision)
    )


def _is_stale(revision: Object, settings: ControllerSettings, now_s: float) -> bool:
    ages = (
        (settings.retain_since_create_time_s, _created_s(revision)),
        (settings.retain_since_last_active_time_s, _active_s(revision)),
    )
    asked = [(keep_s, since_s) for keep_s, since_s in ages if keep_s != DISABLED]
    return bool(asked) and all(now_s - since_s >= keep_s for keep_s, since_s in asked)


def _created_s(revision: Object) -> float:
    """The creation time; infinity if unknown, so that the revision is kept."""
    stamp = timestamp_s(nested(revision, "metadata", "creationTimestamp"))
    return float("inf") if stamp is None else stamp


def _active_s(revision: Object) -> float:
    """When a route referenced the revision last; else its creation time."""
    stamp = timestamp_s(annotations_of(revision).get(ROUTING_STATE_MODIFIED_ANNOTATION))
    return _created_s(revision) if stamp is None else stamp
