"""Computes the object resulting from a write, before admission and versioning. Pure, on JSON objects.

Inputs: the stored object (a new copy), the body as sent, a uid, a time and a name suffix. Output: the object to store.
The body is never changed. The main resource ignores ``status``, ``/status`` ignores all other fields, and ``/scale``
sets only the replicas. Clients cannot change name, uid and timestamps. Follows Kubernetes' API conventions
(sig-architecture/api-conventions.md) and k8s.io/apiserver's registry.
"""

from collections.abc import Mapping
from typing import Any

from serving.core.model.errors import Conflict, Invalid, NotFound, Problem
from serving.core.model.objects import FINISHED_PHASES, Object, meant, object_at
from serving.home.schemas.patch import same_json
from serving.home.schemas.records import ObjectMetadata, read_metadata
from serving.net.aio.clock import stamp as stamp_of
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    REVISION,
    ROUTE,
    SECRET,
    SERVICE,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.port import Delete, Propagation, Subresource

PROPAGATION_FINALIZERS: Mapping[Propagation, str] = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
"""The finalizer that keeps an owner until the collector has handled its dependents."""

# Fields set by the server only; ``ownership`` sets managedFields after a write is settled.
_OWN_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_DROPPED_FIELDS = ("managedFields", "selfLink", "resourceVersion")
_NO_GENERATION = frozenset({CONFIG_MAP, SECRET, EVENT, LEASE, NAMESPACE, NODE, SERVICE})
# Knative's webhook stores these as Go does, where empty and absent are equal.
_COMPARED_BY_MEANING = frozenset({SERVING_SERVICE, CONFIGURATION, REVISION, ROUTE})
_FIRST_STATUS: Mapping[Kind, Mapping[str, str]] = {POD: {"phase": "Pending"}, NAMESPACE: {"phase": "Active"}}
# Keeps a deleted namespace until the collector has emptied it.
_NAMESPACE_FINALIZER = "kubernetes"
# A longer grace period would end after the latest representable time.
_GRACE_MAX_S = 10 * 366 * 86400
# Kubernetes' default of terminationGracePeriodSeconds.
_POD_GRACE_S = 30
_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata", "status"})


def fresh(kind: Kind, body: Mapping[str, Any], *, stamp: str, suffix: str) -> Object:
    """A new object from a body, without its uid. ``suffix`` completes a ``generateName``."""
    check_type(kind, body)
    sent_metadata = read_metadata(body)
    if sent_metadata.resource_version:
        raise Invalid("resourceVersion should not be set on objects to be created")
    metadata = _own_metadata(body)
    for key in _OWN_FIELDS:
        metadata.pop(key, None)
    if not sent_metadata.name and sent_metadata.generate_name:
        metadata["name"] = sent_metadata.generate_name + suffix
    if kind.namespaced:
        metadata["namespace"] = sent_metadata.namespace or "default"
    else:
        metadata.pop("namespace", None)
    metadata["creationTimestamp"] = stamp
    if kind not in _NO_GENERATION:
        metadata["generation"] = 1
    new: Object = {**body, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
    if kind.has_status:
        new.pop("status", None)
    if kind in _FIRST_STATUS:
        new["status"] = dict(_FIRST_STATUS[kind])
    if kind == NAMESPACE:
        new["spec"] = {"finalizers": [_NAMESPACE_FINALIZER]}
    return new


def _own_metadata(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a body, without fields that are not stored and without empty lists and maps."""
    metadata = sent.get("metadata") or {}
    return {key: value for key, value in metadata.items() if key not in _DROPPED_FIELDS and value not in (None, {}, [])}


def check_type(kind: Kind, body: Mapping[str, Any]) -> None:
    """Raise ``Invalid`` if a body names another kind."""
    for field, right in (("apiVersion", kind.api_version), ("kind", kind.name)):
        value = body.get(field)
        if value not in (None, "", right):
            raise Invalid(f"{field} of the data ({value}) does not match the expected {field} ({right})")


def check_subresource(kind: Kind, subresource: Subresource | None) -> None:
    """Raise ``NotFound`` if a kind has no such subresource."""
    served = {"status": kind.has_status, "scale": kind.has_scale, "resize": kind == POD}
    if subresource is not None and not served[subresource]:
        raise NotFound(f"{kind.resource} has no {subresource}")


def check_identity(kind: Kind, old: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Raise ``Conflict`` if a body has another version or uid, ``Invalid`` if it has another name."""
    is_now = old["metadata"]
    if sent.get("metadata") is is_now:
        return
    wanted = read_metadata(sent)
    if wanted.name not in (None, "", is_now["name"]):
        raise Invalid(f"the name of the object ({wanted.name}) does not match the name on the URL ({is_now['name']})")
    if wanted.namespace not in (None, "", is_now.get("namespace", "")):
        raise Invalid("the namespace of the provided object does not match the namespace sent on the request")
    if wanted.uid not in (None, "", is_now["uid"]):
        raise Conflict(
            f'{kind.resource} "{is_now["name"]}": uid {wanted.uid} is not that of the object, {is_now["uid"]}'
        )
    if wanted.resource_version not in (None, "", "0", is_now["resourceVersion"]):
        raise Conflict(modified_text(kind, is_now["name"]))


def modified_text(kind: Kind, name: str) -> str:
    """Kubernetes' message for a version conflict."""
    return (
        f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; please apply your'
        " changes to the latest version and try again"
    )


def settled(kind: Kind, old: Object, sent: Mapping[str, Any], *, subresource: Subresource | None) -> Object:
    """The object after a replacement by ``sent``, of the whole object or of the part that is the ``subresource``.

    Fields that clients cannot set stay as in ``old``.
    """
    if subresource == "scale":
        return _scaled(old, sent)
    if subresource == "status":
        return _with_part(old, "status", sent)
    if subresource == "resize":
        return _with_part(old, "spec", sent)
    check_type(kind, sent)
    before = old["metadata"]
    metadata = _own_metadata(sent)
    metadata["name"] = before["name"]
    for key in ("namespace", "generateName", *_OWN_FIELDS):
        metadata.pop(key, None)
        if key in before:
            metadata[key] = before[key]
    metadata["resourceVersion"] = before["resourceVersion"]
    updated: Object = {**sent, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
    if kind.has_status:
        updated = _with_part(updated, "status", old)
    if kind == NAMESPACE and "deletionTimestamp" not in before:
        updated = _with_part(updated, "spec", old)
    _check_finalizers(old, updated)
    return updated


def _with_part(target: Object, part: str, origin: Mapping[str, Any]) -> Object:
    body = {key: value for key, value in target.items() if key != part}
    if part in origin:
        body[part] = origin[part]
    return body


def _check_finalizers(old: Object, new: Object) -> None:
    if "deletionTimestamp" not in old["metadata"]:
        return
    before, after = read_metadata(old).finalizers or [], read_metadata(new).finalizers or []
    if set(after) - set(before):
        raise Invalid("metadata.finalizers: no new finalizers can be added while the object is being deleted")


def scale_of(whole: Mapping[str, Any]) -> Object:
    """An object's ``/scale``, in the form of ``autoscaling/v1``."""
    metadata, spec, status = whole["metadata"], object_at(whole, "spec"), object_at(whole, "status")
    labels = object_at(object_at(spec, "selector"), "matchLabels")
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: metadata[key] for key in names if key in metadata},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def _scaled(old: Object, sent: Mapping[str, Any]) -> Object:
    replicas = object_at(sent, "spec").get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        problem = Problem(where="spec.replicas", what=f"{replicas!r}", expected="a whole number, 0 or more")
        raise Invalid(f"spec.replicas: Invalid value: {replicas!r}: must be a whole number, 0 or more", [problem])
    return {**old, "spec": {**object_at(old, "spec"), "replicas": replicas}}


def with_generation(kind: Kind, old: Object, new: Object) -> Object:
    """The object ``new``, with an incremented generation if anything except metadata and status has changed.

    For Knative's kinds, empty fields of the spec are ignored: adding ``resources: {}`` is no change.
    """
    generation = old["metadata"].get("generation")
    if generation is None or kind in _NO_GENERATION:
        return new
    before, after = content_of(old), content_of(new)
    if same_json(before, after) or (kind in _COMPARED_BY_MEANING and same_json(meant(before), meant(after))):
        return new
    return {**new, "metadata": {**new["metadata"], "generation": generation + 1}}


def content_of(whole: Object) -> Object:
    """The content of an object without its type, metadata and status."""
    return {key: value for key, value in whole.items() if key not in _NOT_CONTENT}


def is_held(kind: Kind, whole: Mapping[str, Any], metadata: ObjectMetadata) -> bool:
    """Whether finalizers or a pod's grace period delay the deletion."""
    if metadata.finalizers or metadata.deletion_grace_period_seconds:
        return True
    return kind == NAMESPACE and bool(object_at(whole, "spec").get("finalizers"))


def marked_for_deletion(delete: Delete, old: Object, *, wall_s: float) -> Object:
    """The object with a deletion timestamp, for a deletion that is delayed (``is_held``)."""
    metadata = {**old["metadata"]}
    before = read_metadata(old)
    finalizers = list(before.finalizers or ())
    if before.deletion_timestamp is None:
        finalizers = [finalizer for finalizer in finalizers if finalizer not in PROPAGATION_FINALIZERS.values()]
    wanted = PROPAGATION_FINALIZERS.get(delete.propagation)
    if wanted is not None and wanted not in finalizers:
        finalizers.append(wanted)
    metadata.pop("finalizers", None)
    if finalizers:
        metadata["finalizers"] = finalizers
    grace = _grace_s(delete.kind, old, delete.grace_s)
    remaining = before.deletion_grace_period_seconds
    if before.deletion_timestamp is None or (
        delete.grace_s is not None and remaining is not None and grace < remaining
    ):
        metadata["deletionTimestamp"] = stamp_of(wall_s + grace)
        metadata["deletionGracePeriodSeconds"] = grace
    updated: Object = {**old, "metadata": metadata}
    if delete.kind == NAMESPACE:
        updated["status"] = {**object_at(old, "status"), "phase": "Terminating"}
    return updated


def _grace_s(kind: Kind, whole: Object, requested_s: int | None) -> int:
    """A pod's grace period in seconds; 0 if the pod has no node or has ended."""
    if kind != POD:
        return 0
    spec, phase = object_at(whole, "spec"), object_at(whole, "status").get("phase")
    if phase in FINISHED_PHASES or (phase == "Pending" and not spec.get("nodeName")):
        return 0
    if requested_s is None:
        requested_s = spec.get("terminationGracePeriodSeconds")
    return min(max(0, requested_s), _GRACE_MAX_S) if isinstance(requested_s, int) else _POD_GRACE_S
