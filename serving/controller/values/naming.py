"""Names of the objects that the controller creates.

A child is named after its parent with a suffix. A name longer than a DNS label is cut and hashed by Knative's rule
(knative.dev/pkg kmeta.ChildName), so that names equal Knative's: ``deployment_name("hello-00001")`` is
"hello-00001-deployment".
"""

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence

from serving.core.model.knative import (
    BECAME_READY_ANNOTATION,
    FAILURE_ANNOTATION,
    FORMER_BECAME_READY_ANNOTATION,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
)
from serving.core.model.objects import Object, annotations_of, labels_of, merge_difference, nested
from serving.core.model.rollout import read_rollout

_LABEL_LENGTH_MAX = 63
_DIGEST_LENGTH = 32


def child_name(parent: str, suffix: str) -> str:
    """The parent's name and a suffix, in at most 63 characters. A longer parent is cut; the MD5 of its name follows."""
    if len(parent) + len(suffix) <= _LABEL_LENGTH_MAX:
        return parent + suffix
    head = _LABEL_LENGTH_MAX - _DIGEST_LENGTH - len(suffix)
    assert head > 0, suffix
    digest = hashlib.md5(parent.encode(), usedforsecurity=False).hexdigest()
    return parent[:head] + digest + suffix


def revision_name(configuration: str, generation: int) -> str:
    """The revision's name: generation 1 of "hello" is "hello-00001"."""
    return child_name(configuration, f"-{generation:05d}")


def deployment_name(revision: str) -> str:
    """The name of a revision's Deployment."""
    return child_name(revision, "-deployment")


def private_service_name(revision: str) -> str:
    """The name of the private Service that selects a revision's pods."""
    return child_name(revision, "-private")


class RoutingState(enum.StrEnum):
    """Whether traffic reaches a revision: yes (active), not yet (pending), or not at present (reserve)."""

    PENDING = "pending"
    ACTIVE = "active"
    RESERVE = "reserve"


def revisions_named_by(route: Object) -> Iterator[str]:
    """The revisions that a route sends or will send traffic to; names may repeat."""
    for part in ("spec", "status"):
        for target in nested(route, part, "traffic") or ():
            if target.get("revisionName"):
                yield target["revisionName"]
    for configuration in read_rollout(annotations_of(route)).configurations:
        yield from (share.revision_name for share in configuration.revisions)


def routing_state_of(*, routes: Sequence[str], is_newest: bool, is_awaited: bool, was_ready: bool) -> RoutingState:
    """The routing state of a revision. ``routes`` reference it; ``is_awaited``: a route uses the latest revision."""
    if routes:
        return RoutingState.ACTIVE
    may_come = is_newest and (is_awaited or not was_ready)
    return RoutingState.PENDING if may_come else RoutingState.RESERVE


def metadata_changes(
    revision: Object, *, routes: Iterable[str], state: RoutingState, was_ready: bool, now: str, failure: str = ""
) -> Object:
    """The patch of a revision's labels and annotations; {} without changes. ``failure`` is the message to store."""
    labels, annotations = labels_of(revision), annotations_of(revision)
    new_labels = {**labels, ROUTING_STATE_LABEL: state.value}
    written = {ROUTES_ANNOTATION, FAILURE_ANNOTATION}
    new_annotations = {key: value for key, value in annotations.items() if key not in written}
    names = ",".join(sorted(routes))
    if names:
        new_annotations[ROUTES_ANNOTATION] = names
    if failure:
        new_annotations[FAILURE_ANNOTATION] = failure
    if labels.get(ROUTING_STATE_LABEL) != state:
        new_annotations[ROUTING_STATE_MODIFIED_ANNOTATION] = now
    # Written together with the state, which changes in any case.
    if was_ready and state is not RoutingState.PENDING:
        first = new_annotations.pop(FORMER_BECAME_READY_ANNOTATION, now)
        new_annotations.setdefault(BECAME_READY_ANNOTATION, first)
    before = {"metadata": {"labels": labels, "annotations": annotations}}
    after = {"metadata": {"labels": new_labels, "annotations": new_annotations}}
    return merge_difference(before, after)
