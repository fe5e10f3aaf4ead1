"""Rejects the name of a scaling policy that does not exist on this machine.

On a cluster only the autoscaler's image knows the installed policies; there a wrong name becomes the condition PolicyInForce.
"""

from collections.abc import Callable, Sequence
from typing import Any

from serving.core.model.errors import Invalid, Problem
from serving.core.model.knative import POLICY_ANNOTATION
from serving.core.model.objects import Object, name_of, nested
from serving.net.cluster.kinds import CONFIGURATION, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind

_OF_ANNOTATIONS = ("metadata", "annotations", POLICY_ANNOTATION)
_FIELDS: dict[Kind, tuple[str, ...]] = {
    SERVING_SERVICE: ("spec", "template", *_OF_ANNOTATIONS),
    CONFIGURATION: ("spec", "template", *_OF_ANNOTATIONS),
    REVISION: _OF_ANNOTATIONS,
    SCALED_WORKLOAD: ("spec", "scaling", "policy"),
}


def with_known_policy(kind: Kind, new: Object, old: Object | None, *, policies: Callable[[], Sequence[str]]) -> Object:
    """Return the object unchanged. Raises ``Invalid`` if a write sets a scaling policy that is not in ``policies``.

    An object with an owner is not checked, because it copies the name from its owner.
    """
    field = _FIELDS.get(kind)
    name: Any = nested(new, *field) if field else None
    if field is None or not name or name == nested(old, *field) or nested(new, "metadata", "ownerReferences"):
        return new
    known = policies()
    if name in known:
        return new
    where = f"annotation {POLICY_ANNOTATION}" if field[-1] == POLICY_ANNOTATION else ".".join(field)
    expected = f"one of {', '.join(known)}"
    problem = Problem(where=where, what=f'Invalid value: "{name}": no such policy', expected=expected)
    title = f'{kind.name}.{kind.group} "{name_of(new)}" is invalid'
    raise Invalid(f"{title}: {where}: {problem.what}; expected {expected}", [problem])
