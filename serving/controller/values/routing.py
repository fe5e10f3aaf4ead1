"""The routing state of a revision, a label that the autoscaler and revision garbage collection read.

active: a route references the revision in its spec or status. reserve: no route does, so its min-scale does not apply and it ages.
pending: it is the newest of its configuration and may still get traffic, because it was not ready yet or because a route
follows the latest revision.

Follows knative/serving 98e5ef90, pkg/reconciler/labeler. There a revision that never became ready stays pending and is never
collected; here it becomes reserve when a newer revision exists.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence

from serving.model.knative import (
    BECAME_READY_ANNOTATION,
    FORMER_BECAME_READY_ANNOTATION,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
)
from serving.model.objects import Object, annotations_of, labels_of, merge_difference, nested
from serving.model.rollout import read_rollout


class RoutingState(enum.StrEnum):
    """Whether traffic reaches a revision."""

    PENDING = "pending"
    ACTIVE = "active"
    RESERVE = "reserve"


def revisions_named_by(route: Object) -> Iterator[str]:
    """The revisions that a route sends or will send traffic to; a name may be repeated."""
    for part in ("spec", "status"):
        for target in nested(route, part, "traffic") or ():
            if target.get("revisionName"):
                yield target["revisionName"]
    for one in read_rollout(annotations_of(route)).configurations:
        yield from (share.revision_name for share in one.revisions)


def routing_state_of(*, routes: Sequence[str], is_newest: bool, is_awaited: bool, was_ready: bool) -> RoutingState:
    """The state of a revision that these routes reference; ``is_awaited`` says that a route follows the latest one."""
    if routes:
        return RoutingState.ACTIVE
    may_come = is_newest and (is_awaited or not was_ready)
    return RoutingState.PENDING if may_come else RoutingState.RESERVE


def metadata_changes(
    revision: Object, *, routes: Iterable[str], state: RoutingState, was_ready: bool, now: str
) -> Object:
    """The patch of a revision's labels and annotations; {} if they are up to date."""
    labels, annotations = labels_of(revision), annotations_of(revision)
    new_labels = {**labels, ROUTING_STATE_LABEL: state.value}
    new_annotations = {key: value for key, value in annotations.items() if key != ROUTES_ANNOTATION}
    names = ",".join(sorted(routes))
    if names:
        new_annotations[ROUTES_ANNOTATION] = names
    if labels.get(ROUTING_STATE_LABEL) != state:
        new_annotations[ROUTING_STATE_MODIFIED_ANNOTATION] = now
    # Written together with the state, which changes anyway.
    if was_ready and state is not RoutingState.PENDING:
        first = new_annotations.pop(FORMER_BECAME_READY_ANNOTATION, now)
        new_annotations.setdefault(BECAME_READY_ANNOTATION, first)
    before = {"metadata": {"labels": labels, "annotations": annotations}}
    after = {"metadata": {"labels": new_labels, "annotations": new_annotations}}
    return merge_difference(before, after)
