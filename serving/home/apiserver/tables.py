"""Server-side printing: a ``Table`` of ``meta.k8s.io``, and ``PartialObjectMetadata``.

The columns of custom resources come from their CRD; those of Kubernetes' own kinds are functions of the object and the
time.
"""

import datetime as dt
import functools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from serving.core.model.knative import CONDITION_DORMANT
from serving.core.model.objects import Object, is_being_deleted, nested
from serving.home.apiserver.jsonpath import compiled
from serving.home.schemas.crds import Column, crds
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    INGRESS,
    LEASE,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
)

_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86_400, 365 * 86_400
_UNITS = {1: "s", _MINUTE_S: "m", _HOUR_S: "h", _DAY_S: "d", _YEAR_S: "y"}
# Upper bound in seconds, and the two units shown below it; 0 for no second unit. Source: k8s.io/apimachinery
# util/duration.
_STEPS = (
    (2 * _MINUTE_S, 1, 0),
    (10 * _MINUTE_S, _MINUTE_S, 1),
    (3 * _HOUR_S, _MINUTE_S, 0),
    (8 * _HOUR_S, _HOUR_S, _MINUTE_S),
    (2 * _DAY_S, _HOUR_S, 0),
    (8 * _DAY_S, _DAY_S, _HOUR_S),
    (2 * _YEAR_S, _DAY_S, 0),
    (8 * _YEAR_S, _YEAR_S, _DAY_S),
)
_UNKNOWN = "<unknown>"

Cell = Callable[[Object, float], Any]
_NONE = "<none>"
_SHOWN_MAX = 3


def age(stamp: object, *, now_s: float) -> str:
    """The time since an API timestamp such as "2026-11-21T04:30:00Z"; "<unknown>" for other text."""
    if not isinstance(stamp, str):
        return _UNKNOWN
    try:
        then_s = dt.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return _UNKNOWN
    return duration(now_s - then_s)


def duration(seconds: float) -> str:
    """A duration in at most two units, such as "119s", "2m5s" or "121m".

    The larger the duration, the larger its smallest unit. The remainder is cut off: 121 minutes and 40 seconds are
    "121m".
    """
    whole = int(seconds)
    if seconds < 0:
        # Clocks may differ slightly; a larger difference is shown as invalid.
        return "0s" if seconds > -2 else "<invalid>"
    for below_s, large_s, small_s in _STEPS:
        if whole < below_s:
            large, small = whole // large_s, whole % large_s // small_s if small_s else 0
            return f"{large}{_UNITS[large_s]}" + (f"{small}{_UNITS[small_s]}" if small else "")
    return f"{whole // _YEAR_S}y"


class CellColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table, and the function that computes its cells."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


def _column(name: str, cell: Callable[[Object], Any], *, kind: str = "string", wide: bool = False) -> CellColumn:
    return CellColumn(name=name, cell=lambda whole, _: cell(whole), type=kind, priority=1 if wide else 0)


def _listed(whole: object, *keys: str) -> list[Any]:
    value = nested(whole, *keys)
    return value if isinstance(value, list) else []


def _reference(whole: Object) -> str:
    return f"{nested(whole, 'spec', 'scaleTargetRef', 'kind')}/{nested(whole, 'spec', 'scaleTargetRef', 'name')}"


def _joined(texts: Iterable[Any]) -> str:
    return ",".join(str(text) for text in texts if text not in (None, "")) or _NONE


def _pairs(labels: object) -> str:
    return _joined(f"{key}={value}" for key, value in labels.items()) if isinstance(labels, dict) else _NONE


def _first(texts: list[str]) -> str:
    more = len(texts) - _SHOWN_MAX
    return _joined(texts[:_SHOWN_MAX]) + (f" + {more} more..." if more > 0 else "")


_NAME = CellColumn(name="Name", cell=lambda whole, _: nested(whole, "metadata", "name"), format="name")
_AGE = CellColumn(
    name="Age",
    cell=lambda whole, now_s: age(nested(whole, "metadata", "creationTimestamp"), now_s=now_s),
    type="string",
)


def _claim_phase(claim: Object) -> str:
    """A claim's phase as kubectl prints it."""
    return "Terminating" if is_being_deleted(claim) else str(nested(claim, "status", "phase") or "Pending")


def _pod_status(pod: Object) -> str:
    """A pod's status as kubectl prints it: the reason of the first failing container, or the phase.

    It is "Terminating" for a deleted pod, and "Dormant" for a pod whose app is frozen.
    """
    if is_being_deleted(pod):
        return "Terminating"
    before = _init_status(pod)
    if before:
        return before
    for container in _listed(pod, "status", "containerStatuses"):
        reason = nested(container, "state", "waiting", "reason") or nested(container, "state", "terminated", "reason")
        if reason:
            return str(reason)
    for condition in _listed(pod, "status", "conditions"):
        if nested(condition, "type") == CONDITION_DORMANT and nested(condition, "status") == "True":
            return "Dormant"
    return str(nested(pod, "status", "reason") or nested(pod, "status", "phase") or "Unknown")


def _init_status(pod: Object) -> str:
    """The STATUS column during init containers: "Init:1/2", or a failure; "" once all have ended."""
    statuses = _listed(pod, "status", "initContainerStatuses")
    for number, container in enumerate(statuses):
        ended = nested(container, "state", "terminated")
        if ended is not None and not nested(ended, "exitCode"):
            continue
        reason = nested(ended, "reason") if ended else nested(container, "state", "waiting", "reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{number}/{len(statuses)}"
    return ""


def _pod_ready(pod: Object) -> str:
    statuses = _listed(pod, "status", "containerStatuses")
    ready = sum(bool(nested(status, "ready")) for status in statuses)
    return f"{ready}/{len(statuses) or len(_listed(pod, 'spec', 'containers'))}"


def _restarts(pod: Object) -> int:
    return sum(nested(status, "restartCount") or 0 for status in _listed(pod, "status", "containerStatuses"))


def _ports(service: Object) -> str:
    return _joined(
        f"{nested(port, 'port')}/{nested(port, 'protocol') or 'TCP'}" for port in _listed(service, "spec", "ports")
    )


def _node_status(node: Object) -> str:
    ready = {
        nested(condition, "type"): nested(condition, "status") for condition in _listed(node, "status", "conditions")
    }.get("Ready")
    state = "Ready" if ready == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if nested(node, "spec", "unschedulable") else state


def _roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    return _joined(
        key.removeprefix(prefix) for key in nested(node, "metadata", "labels") or () if key.startswith(prefix)
    )


def _text(value: object) -> str:
    return "N/A" if value is None else str(value)


def _containers(whole: Object, field: str) -> str:
    return _joined(nested(container, field) for container in _listed(whole, "spec", "template", "spec", "containers"))


def _addresses(endpoint_slice: Object) -> str:
    return _first(
        [address for endpoint in _listed(endpoint_slice, "endpoints") for address in _listed(endpoint, "addresses")]
    )


def _seen(event: Object, now_s: float) -> str:
    stamp = (
        nested(event, "lastTimestamp") or nested(event, "eventTime") or nested(event, "metadata", "creationTimestamp")
    )
    return age(stamp, now_s=now_s)


def _used(quota: Object, *, is_limit: bool) -> str:
    """Usage and limit by resource: "pods: 2/4, requests.cpu: 200m/1".

    ``is_limit`` selects the resources "limits.*", otherwise all others.
    """
    hard, used = nested(quota, "status", "hard") or {}, nested(quota, "status", "used") or {}
    return ", ".join(
        f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard) if name.startswith("limits") is is_limit
    )


def _involved(event: Object) -> str:
    return f"{str(nested(event, 'involvedObject', 'kind')).lower()}/{nested(event, 'involvedObject', 'name')}"


COLUMNS: dict[Kind, tuple[CellColumn, ...]] = {
    NAMESPACE: (_NAME, _column("Status", lambda whole: nested(whole, "status", "phase") or "Active"), _AGE),
    NODE: (
        _NAME,
        _column("Status", _node_status),
        _column("Roles", _roles),
        _AGE,
        _column("Version", lambda whole: nested(whole, "status", "nodeInfo", "kubeletVersion")),
    ),
    POD: (
        _NAME,
        _column("Ready", _pod_ready),
        _column("Status", _pod_status),
        _column("Restarts", _restarts, kind="integer"),
        _AGE,
        _column("IP", lambda whole: nested(whole, "status", "podIP") or _NONE, wide=True),
        _column("Node", lambda whole: nested(whole, "spec", "nodeName") or _NONE, wide=True),
    ),
    SERVICE: (
        _NAME,
        _column("Type", lambda whole: nested(whole, "spec", "type") or "ClusterIP"),
        _column("Cluster-IP", lambda whole: nested(whole, "spec", "clusterIP") or _NONE),
        _column("External-IP", lambda whole: nested(whole, "spec", "externalName") or _NONE),
        _column("Port(s)", _ports),
        _AGE,
        _column("Selector", lambda whole: _pairs(nested(whole, "spec", "selector")), wide=True),
    ),
    CONFIG_MAP: (_NAME, _column("Data", lambda whole: len(nested(whole, "data") or ()), kind="integer"), _AGE),
    SECRET: (
        _NAME,
        _column("Type", lambda whole: nested(whole, "type") or "Opaque"),
        _column("Data", lambda whole: len(nested(whole, "data") or ()), kind="integer"),
        _AGE,
    ),
    SERVICE_ACCOUNT: (_NAME, _column("Secrets", lambda whole: len(_listed(whole, "secrets")), kind="integer"), _AGE),
    RESOURCE_QUOTA: (
        _NAME,
        _column("Request", lambda whole: _used(whole, is_limit=False)),
        _column("Limit", lambda whole: _used(whole, is_limit=True)),
        _AGE,
    ),
    PERSISTENT_VOLUME_CLAIM: (
        _NAME,
        _column("Status", _claim_phase),
        _column("Volume", lambda whole: nested(whole, "spec", "volumeName")),
        _column("Capacity", lambda whole: nested(whole, "status", "capacity", "storage")),
        _column("Access Modes", lambda whole: _joined(_listed(whole, "spec", "accessModes"))),
        _column("StorageClass", lambda whole: nested(whole, "spec", "storageClassName")),
        _AGE,
    ),
    LIMIT_RANGE: (
        _NAME,
        CellColumn(name="Created At", cell=lambda whole, _: nested(whole, "metadata", "creationTimestamp")),
    ),
    EVENT: (
        CellColumn(name="Last Seen", cell=_seen),
        _column("Type", lambda whole: nested(whole, "type")),
        _column("Reason", lambda whole: nested(whole, "reason")),
        _column("Object", _involved),
        _column("Message", lambda whole: str(nested(whole, "message") or "").strip()),
        _column("Count", lambda whole: nested(whole, "count") or 1, kind="integer", wide=True),
        _column("Name", lambda whole: nested(whole, "metadata", "name"), wide=True),
    ),
    DEPLOYMENT: (
        _NAME,
        _column(
            "Ready",
            lambda whole: f"{nested(whole, 'status', 'readyReplicas') or 0}/{nested(whole, 'spec', 'replicas') or 0}",
        ),
        _column("Up-to-date", lambda whole: nested(whole, "status", "updatedReplicas") or 0, kind="integer"),
        _column("Available", lambda whole: nested(whole, "status", "availableReplicas") or 0, kind="integer"),
        _AGE,
        _column("Containers", lambda whole: _containers(whole, "name"), wide=True),
        _column("Images", lambda whole: _containers(whole, "image"), wide=True),
        _column("Selector", lambda whole: _pairs(nested(whole, "spec", "selector", "matchLabels")), wide=True),
    ),
    ENDPOINT_SLICE: (
        _NAME,
        _column("AddressType", lambda whole: nested(whole, "addressType")),
        _column("Ports", lambda whole: _joined(nested(port, "port") for port in _listed(whole, "ports"))),
        _column("Endpoints", _addresses),
        _AGE,
    ),
    HORIZONTAL_POD_AUTOSCALER: (
        _NAME,
        _column("Reference", _reference),
        _column("MinPods", lambda whole: nested(whole, "spec", "minReplicas")),
        _column("MaxPods", lambda whole: nested(whole, "spec", "maxReplicas")),
        _column("Replicas", lambda whole: nested(whole, "status", "currentReplicas") or 0),
        _AGE,
    ),
    HTTP_ROUTE: (_NAME, _column("Hostnames", lambda whole: _joined(_listed(whole, "spec", "hostnames"))), _AGE),
    INGRESS: (
        _NAME,
        _column("Class", lambda whole: nested(whole, "spec", "ingressClassName") or _NONE),
        _column(
            "Hosts", lambda whole: _joined(nested(rule, "host") or "*" for rule in _listed(whole, "spec", "rules"))
        ),
        _AGE,
    ),
    POD_DISRUPTION_BUDGET: (
        _NAME,
        _column("Min Available", lambda whole: _text(nested(whole, "spec", "minAvailable"))),
        _column("Max Unavailable", lambda whole: _text(nested(whole, "spec", "maxUnavailable"))),
        _AGE,
    ),
    LEASE: (_NAME, _column("Holder", lambda whole: nested(whole, "spec", "holderIdentity")), _AGE),
}


def table(
    kind: Kind, objects: Iterable[Object], metadata: Object, *, version: str, include: str, now_s: float
) -> Object:
    """A Table of objects. ``include`` selects the part of the object in each row: "None", "Metadata" or "Object"."""
    columns = _columns(kind)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [
            {"cells": [column.cell(whole, now_s) for column in columns], **_carried(whole, version, include)}
            for whole in objects
        ],
    }


def partial_metadata(whole: Object, version: str) -> Object:
    """An object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": whole.get("metadata", {}),
    }


def metadata_list(objects: Iterable[Object], metadata: Object, version: str) -> Object:
    """A list with only the metadata of its objects."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "items": [partial_metadata(whole, version) for whole in objects],
    }


def _carried(whole: Object, version: str, include: str) -> Object:
    match include:
        case "None":
            return {}
        case "Object":
            return {"object": whole}
        case _:
            return {"object": partial_metadata(whole, version)}


@functools.cache
def _columns(kind: Kind) -> tuple[CellColumn, ...]:
    if kind in COLUMNS:
        return COLUMNS[kind]
    crd = crds().get(kind)
    name = CellColumn(name="Name", cell=lambda whole, _: whole.get("metadata", {}).get("name"), format="name")
    return (name, *(_column_of(column) for column in (crd.columns if crd else ())))


def _column_of(column: Column) -> CellColumn:
    return CellColumn(
        name=column.name,
        cell=_cell(column),
        type=column.type,
        format=column.format,
        priority=column.priority,
        description=column.description,
    )


def _cell(column: Column) -> Cell:
    find = compiled(column.json_path)

    def cell(whole: Object, now_s: float) -> Any:  # noqa: ANN401 - JSON
        value = find(whole)
        if column.type == "date":
            return age(value, now_s=now_s)
        if column.type in {"integer", "number", "boolean"} or value is None:
            return value
        return str(value)

    return cell
