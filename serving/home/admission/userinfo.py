"""The annotations ``serving.knative.dev/creator`` and ``lastModifier``: who made an object, and who changed its spec last.

Input: an object that is about to be stored, the object before and the user; output: the object with the annotations, or
problems if the writer changed them. Objects that a controller made for another object carry neither. Follows
knative/serving 98e5ef90, pkg/apis/serving/metadata_validation.go (``SetUserInfo``), and knative.dev/pkg,
apis/metadata_validation.go (``ValidateCreatorAndModifier``). Pure.
"""

from collections.abc import Iterator

from serving.cluster.kinds import CONFIGURATION, DOMAIN_MAPPING, ROUTE, SERVING_SERVICE, Kind
from serving.home.schemas.patch import same_json
from serving.model.errors import Problem
from serving.model.knative import CREATOR_ANNOTATION, LAST_MODIFIER_ANNOTATION
from serving.model.objects import Object, annotations_of, nested

_ANNOTATIONS = (CREATOR_ANNOTATION, LAST_MODIFIER_ANNOTATION)
_ANNOTATED = {SERVING_SERVICE, CONFIGURATION, ROUTE, DOMAIN_MAPPING}


def _is_annotated(kind: Kind, one: Object) -> bool:
    return kind in _ANNOTATED and not nested(one, "metadata", "ownerReferences")


def with_user_info(kind: Kind, new: Object, old: Object | None, *, user: str) -> Object:
    """Set both annotations on a new object, and the modifier when the spec changes; "" is a write of the system.

    An annotation that a writer left out stays as it was, so that a whole manifest can be written again. Knative refuses it.
    """
    if not _is_annotated(kind, new):
        return new
    given = annotations_of(new)
    before = annotations_of(old)
    stamped = {key: before[key] for key in _ANNOTATIONS if key in before and key not in given}
    if user and old is None:
        stamped |= dict.fromkeys(_ANNOTATIONS, user)
    elif user and old is not None and not same_json(new.get("spec"), old.get("spec")):
        stamped[LAST_MODIFIER_ANNOTATION] = user
    if given.items() >= stamped.items():
        return new
    return {**new, "metadata": {**new["metadata"], "annotations": given | stamped}}


def user_info_problems(kind: Kind, new: Object, old: Object | None) -> Iterator[Problem]:
    """Yield a problem for each annotation that a writer changed; the modifier may change with the spec."""
    if old is None or not _is_annotated(kind, new):
        return
    given, before = annotations_of(new), annotations_of(old)
    if given.get(CREATOR_ANNOTATION) != before.get(CREATOR_ANNOTATION):
        yield _immutable(CREATOR_ANNOTATION, before)
    is_same_spec = same_json(new.get("spec"), old.get("spec"))
    if is_same_spec and given.get(LAST_MODIFIER_ANNOTATION) != before.get(LAST_MODIFIER_ANNOTATION):
        yield _immutable(LAST_MODIFIER_ANNOTATION, before)


def _immutable(annotation: str, before: dict[str, str]) -> Problem:
    where = f"metadata.annotations[{annotation}]"
    kept = before.get(annotation, "no value")
    return Problem(where=where, what="Invalid value: annotation value is immutable", expected=kept)
