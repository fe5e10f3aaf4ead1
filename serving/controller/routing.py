"""Whether traffic reaches a revision: its routing state, as a label that the autoscaler and the collection go by.

active: a route names it, in its spec or in what it assigned; reserve: none does, so that its min-scale is not kept and
it gets older; pending: it is the newest of its configuration and traffic may still come, because it has not been ready or
because a route is about to move to the latest.
Follows knative/serving 98e5ef90, pkg/reconciler/labeler, in which a revision that never became ready stays pending for
ever and is never collected; ours goes to reserve when a newer one is there.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence

from serving.model.knative import (
    BECAME_READY_ANNOTATION,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
)
from serving.model.objects import Object, annotations_of, labels_of, merge_difference, nested
from serving.model.rollout import read_rollout

__all__ = ["RoutingState", "metadata_changes", "revisions_named_by", "routing_state_of"]


class RoutingState(enum.StrEnum):
    """Whether traffic reaches a revision."""

    PENDING = "pending"
    ACTIVE = "active"
    RESERVE = "reserve"


def revisions_named_by(route: Object) -> Iterator[str]:
    """Names of revisions that a route sends traffic to, or is to send it to; a name may come more than once."""
    for part in ("spec", "status"):
        for target in nested(route, part, "traffic") or ():
            if target.get("revisionName"):
                yield target["revisionName"]
    for one in read_rollout(annotations_of(route)).configurations:
        yield from (share.revision_name for share in one.revisions)


def routing_state_of(*, routes: Sequence[str], is_newest: bool, is_awaited: bool, was_ready: bool) -> RoutingState:
    """The state of a revision that these routes name; ``is_awaited`` says that a route goes with the latest of it."""
    if routes:
        return RoutingState.ACTIVE
    may_come = is_newest and (is_awaited or not was_ready)
    return RoutingState.PENDING if may_come else RoutingState.RESERVE


def metadata_changes(
    revision: Object, *, routes: Iterable[str], state: RoutingState, was_ready: bool, now: str
) -> Object:
    """The patch that makes a revision's labels and annotations say so; {} if they do."""
    labels, annotations = labels_of(revision), annotations_of(revision)
    new_labels = {**labels, ROUTING_STATE_LABEL: state.value}
    new_annotations = {key: value for key, value in annotations.items() if key != ROUTES_ANNOTATION}
    names = ",".join(sorted(routes))
    if names:
        new_annotations[ROUTES_ANNOTATION] = names
    if labels.get(ROUTING_STATE_LABEL) != state:
        new_annotations[ROUTING_STATE_MODIFIED_ANNOTATION] = now
    # With the state that follows, so that it costs no write of its own.
    if was_ready and state is not RoutingState.PENDING:
        new_annotations.setdefault(BECAME_READY_ANNOTATION, now)
    before = {"metadata": {"labels": labels, "annotations": annotations}}
    after = {"metadata": {"labels": new_labels, "annotations": new_annotations}}
    return merge_difference(before, after)
