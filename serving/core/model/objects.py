"""Typed access to objects of the Kubernetes API: metadata, owners, conditions, and the difference between two objects.

A missing field reads as empty, so an incomplete object never raises. No function changes its argument. The module is
independent of kinds.
"""

import calendar
import re
from collections.abc import Iterable, Mapping
from typing import Any

from serving.core.model.knative import ConditionStatus

Object = dict[str, Any]
"""An object as the API has it: decoded JSON."""

# Fields whose empty map has a meaning: it selects a handler, a source, or all objects.
_MEANINGFUL_WHEN_EMPTY = frozenset(
    {
        *("exec", "grpc", "httpGet", "livenessProbe", "sleep", "startupProbe", "tcpSocket"),
        *("configMap", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret", "serviceAccountToken"),
        *("labelSelector", "namespaceSelector", "preference"),
    }
)
_DNS_SUBDOMAIN_MAX = 253
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z\Z")

FINISHED_PHASES = frozenset({"Failed", "Succeeded"})
"""Pod phases in which all containers have ended for the last time: the pod needs no resources, and serves nothing."""

Key = tuple[str, str]
"""Namespace ("" for kinds without one) and name."""
_HANDLERS = ("httpGet", "tcpSocket")
_PLAIN = "HTTP"


def is_dns_label(text: str) -> bool:
    """Whether the text is a DNS label, the form of namespace names."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether the text is DNS labels separated by dots, the form of host names."""
    return len(text) <= _DNS_SUBDOMAIN_MAX and all(map(is_dns_label, text.split(".")))


def nested(value: object, *path: str | int) -> Any:  # noqa: ANN401 - JSON
    """The value at a path of keys and list indexes; None if any step is missing."""
    for key in path:
        # Hot: a decision calls this a thousand times. JSON objects decode to dict, so no other mapping is supported.
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def object_at(value: Mapping[str, Any], key: str) -> Object:
    """The object in a field of unvalidated JSON; {} if the field has no object."""
    child = value.get(key)
    return child if isinstance(child, dict) else {}


def objects_at(value: Mapping[str, Any], key: str) -> list[Object]:
    """The objects in a list field of unvalidated JSON. Other elements are left out."""
    children = value.get(key)
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []


def key_of(resource: Mapping[str, Any]) -> Key:
    """The namespace and name of an object."""
    metadata = resource["metadata"]
    return (metadata.get("namespace", ""), metadata["name"])


def name_of(resource: object) -> str:
    """``metadata.name``."""
    return str(nested(resource, "metadata", "name") or "")


def namespace_of(resource: object) -> str:
    """``metadata.namespace``; "" for cluster-scoped kinds."""
    return str(nested(resource, "metadata", "namespace") or "")


def uid_of(resource: object) -> str:
    """``metadata.uid``."""
    return str(nested(resource, "metadata", "uid") or "")


def version_of(resource: object) -> str:
    """``metadata.resourceVersion``."""
    return str(nested(resource, "metadata", "resourceVersion") or "")


def is_older_version(version: str, other: str) -> bool:
    """Whether one resourceVersion is older than another of the same kind; False unless both are numbers (KEP-5504)."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def labels_of(resource: object) -> dict[str, str]:
    """A copy of the labels."""
    return dict(nested(resource, "metadata", "labels") or {})


def annotations_of(resource: object) -> dict[str, str]:
    """A copy of the annotations."""
    return dict(nested(resource, "metadata", "annotations") or {})


def generation_of(resource: object) -> int:
    """``metadata.generation``; 0 before the server has set it."""
    return int(nested(resource, "metadata", "generation") or 0)


def is_being_deleted(resource: object) -> bool:
    """Whether the object has a deletion timestamp. A finalizer or a grace period may delay the deletion."""
    return nested(resource, "metadata", "deletionTimestamp") is not None


def owner_reference(owner: Object) -> Object:
    """The ownerReference that makes ``owner`` the controller of a child; garbage collection and adoption use it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_controlled_by(child: object, owner: Object) -> bool:
    """Whether ``owner`` controls ``child``. A controller must not change a child that another owner controls."""
    references = nested(child, "metadata", "ownerReferences") or ()
    return any(reference.get("controller") and reference.get("uid") == uid_of(owner) for reference in references)


def controller_uid_of(resource: object) -> str:
    """The uid of an object's controlling owner; "" if it has none."""
    references = nested(resource, "metadata", "ownerReferences") or ()
    return next((str(reference.get("uid") or "") for reference in references if reference.get("controller")), "")


def conditions_of(resource: object) -> list[Object]:
    """``status.conditions``; [] without a status."""
    return nested(resource, "status", "conditions") or []


def condition_of(resource: object, condition_type: str) -> Object:
    """The condition of this type; {} if it is missing."""
    for condition in conditions_of(resource):
        if condition.get("type") == condition_type:
            return condition
    return {}


def with_transition_time(condition: Mapping[str, Any], before: Mapping[str, Any], *, now: str) -> Object:
    """A condition with the time at which its status changed: ``now``, unless ``before`` has the same status."""
    since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
    return {**condition, "lastTransitionTime": since or now}


def is_true(resource: object, condition_type: str) -> bool:
    """Whether the condition of this type is True."""
    return condition_of(resource, condition_type).get("status") == ConditionStatus.TRUE


def meant(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A JSON value without nulls, empty maps and empty lists, which mean the same as an omitted field.

    Go clients write ``resources: {}`` for an omitted field. Example: {"a": {"b": []}, "emptyDir": {}} gives
    {"emptyDir": {}}. Elements of a list stay.
    """
    if isinstance(value, list):
        return [meant(child) for child in value]
    if not isinstance(value, dict):
        return value
    below = {key: meant(child) for key, child in value.items() if child is not None}
    return {
        key: child
        for key, child in below.items()
        if (child or not isinstance(child, dict | list)) or (child == {} and key in _MEANINGFUL_WHEN_EMPTY)
    }


def merge_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The smallest merge patch that turns ``old`` into ``new``; {} if they are equal. A removed key becomes null.

    Example: from {"a": 1, "b": {"c": 2, "d": 3}} to {"b": {"c": 4, "d": 3}} the patch is {"a": null, "b": {"c": 4}}.
    """
    patch: Object = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def timestamp_s(stamp: object) -> float | None:
    """Seconds since the epoch of an API timestamp; None if ``stamp`` is not a timestamp.

    "1970-01-02T00:00:00Z" is 86400.
    """
    match = _STAMP.match(stamp) if isinstance(stamp, str) else None
    if not match:
        return None
    *whole, fraction = match.groups()
    return calendar.timegm((*(int(part) for part in whole), 0, 0, 0)) + float(fraction or 0)


def runs_in_queue_proxy(probe: object) -> bool:
    """Whether the queue-proxy can run a readiness probe of the serving container: plain HTTP or TCP to the same pod."""
    handlers = [action for handler in _HANDLERS if (action := nested(probe, handler)) is not None]
    return bool(handlers) and not any(
        nested(action, "host") or (nested(action, "scheme") or _PLAIN).upper() != _PLAIN for action in handlers
    )


def tcp_ports_of(containers: Iterable[Object]) -> list[int]:
    """The TCP ports of a pod's containers, except the first port of the serving container."""
    return [int(port["containerPort"]) for container in containers for port in (container.get("ports") or ())[1:]]


def with_kubernetes_scheme(probe: Object) -> Object:
    """A readiness probe with the scheme that Kubernetes accepts: "HTTP", where Knative also accepts "http"."""
    if not (runs_in_queue_proxy(probe) and nested(probe, "httpGet", "scheme")):
        return probe
    return {**probe, "httpGet": {**probe["httpGet"], "scheme": _PLAIN}}


def kubelet_decides(containers: Iterable[object]) -> bool:
    """Whether the kubelet, not the queue-proxy, runs a readiness probe of any container of a revision.

    A single container counts as the serving container even without ``ports``.
    """
    listed = list(containers)
    return any(
        probe and not ((len(listed) == 1 or nested(container, "ports")) and runs_in_queue_proxy(probe))
        for container in listed
        if (probe := nested(container, "readinessProbe"))
    )
