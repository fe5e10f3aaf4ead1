"""Objects of the API as the page shows them: a few fields each, flat, and nothing that is secret.

Input: objects as the API has them. Output: plain dicts for JSON; None for what is not shown. No environment, no command and
no annotation but those about scaling leaves the cluster by this door.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from serving.model.errors import InvalidValue
from serving.model.quantity import parse_bytes, parse_millicores
from serving.model.resources import Resources
from serving.scheduler.pod import Container, Demand, Pod, pod_demand

__all__ = ["View", "amount", "demand_of", "node_view", "pod_view", "revision_view", "service_view"]

View = dict[str, Any]

_REVISION_LABEL = "serving.knative.dev/revision"
_SERVICE_LABEL = "serving.knative.dev/service"
_SCALING = "autoscaling.knative.dev/"


def service_view(found: Mapping[str, Any]) -> View:
    """A Service with its traffic."""
    status = found.get("status") or {}
    traffic = [
        {"revision": one.get("revisionName", ""), "percent": one.get("percent") or 0, "tag": one.get("tag", "")}
        for one in status.get("traffic") or ()
    ]
    return {
        **_named(found),
        "url": status.get("url", ""),
        "traffic": traffic,
        "conditions": _conditions(status),
        "ready": _status_of(status, "Ready"),
        "latest": status.get("latestReadyRevisionName", ""),
    }


def revision_view(found: Mapping[str, Any]) -> View:
    """A Revision."""
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return {
        **_named(found),
        "service": (metadata.get("labels") or {}).get(_SERVICE_LABEL, ""),
        "state": spec.get("servingState") or "Active",
        "concurrency": int(spec.get("containerConcurrency") or 0),
        "scaling": {
            name.removeprefix(_SCALING): value for name, value in annotations.items() if name.startswith(_SCALING)
        },
        "conditions": _conditions(status),
        "ready": _status_of(status, "Ready"),
        "active": _status_of(status, "Active"),
        "demand": demand_of(spec.get("containers") or ()),
    }


def pod_view(found: Mapping[str, Any]) -> View | None:
    """A Pod of a revision."""
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    revision = (metadata.get("labels") or {}).get(_REVISION_LABEL)
    if revision is None:
        return None
    containers = status.get("containerStatuses") or ()
    waiting: Mapping[str, str] = next(
        (one["state"]["waiting"] for one in containers if (one.get("state") or {}).get("waiting")), {}
    )
    return {
        **_named(found),
        "revision": revision,
        "phase": status.get("phase", "Pending"),
        "ready": _status_of(status, "Ready") == "True",
        "ending": bool(metadata.get("deletionTimestamp")),
        "node": spec.get("nodeName", ""),
        "ip": status.get("podIP", ""),
        "restarts": sum(one.get("restartCount", 0) for one in containers),
        "reason": waiting.get("reason") or status.get("reason", ""),
        "requests": _requests(spec.get("containers") or ()),
        "demand": demand_of(spec.get("containers") or ()),
    }


def node_view(found: Mapping[str, Any]) -> View:
    """A Node."""
    status, spec = found.get("status") or {}, found.get("spec") or {}
    allocatable = status.get("allocatable") or {}
    return {
        **_named(found),
        "ready": _status_of(status, "Ready"),
        "cpu_millicores": amount(allocatable.get("cpu"), is_cpu=True),
        "memory_bytes": amount(allocatable.get("memory"), is_cpu=False),
        "taints": [one.get("key", "") for one in spec.get("taints") or ()],
    }


def demand_of(containers: Iterable[Mapping[str, Any]]) -> Demand:
    """What containers ask for, as node scores count it."""
    resources = [one.get("resources") or {} for one in containers]
    found = [Container(request=_amounts(one.get("requests")), limit=_amounts(one.get("limits"))) for one in resources]
    return pod_demand(Pod(containers=tuple(found)))


def _amounts(written: Mapping[str, Any] | None) -> Resources:
    cpu, memory = (written or {}).get("cpu"), (written or {}).get("memory")
    return Resources(
        cpu_m=None if cpu is None else amount(cpu, is_cpu=True),
        memory_bytes=None if memory is None else amount(memory, is_cpu=False),
    )


def _named(found: Mapping[str, Any]) -> View:
    metadata = found["metadata"]
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp", ""),
    }


def _conditions(status: Mapping[str, Any]) -> list[View]:
    names = ("type", "status", "reason", "message")
    return [{name: one.get(name, "") for name in names} for one in status.get("conditions") or ()]


def _status_of(status: Mapping[str, Any], condition: str) -> str:
    conditions = status.get("conditions") or ()
    return next((one.get("status", "Unknown") for one in conditions if one.get("type") == condition), "Unknown")


def _requests(containers: Iterable[Mapping[str, Any]]) -> View:
    asked = [(one.get("resources") or {}).get("requests") or {} for one in containers]
    return {
        "cpu_millicores": sum(amount(one.get("cpu"), is_cpu=True) for one in asked),
        "memory_bytes": sum(amount(one.get("memory"), is_cpu=False) for one in asked),
    }


def amount(text: object, *, is_cpu: bool) -> int:
    """A quantity in millicores or bytes; 0 for none and for one that cannot be read."""
    try:
        return 0 if text is None else (parse_millicores if is_cpu else parse_bytes)(str(text))
    except InvalidValue:
        # Another's object may say what it likes; a page must not fail on it.
        return 0
