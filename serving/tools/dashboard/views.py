"""Views of API objects for the page: a few flat fields each, without secrets.

Input: API objects. Output: plain dicts for JSON; None for objects that the page does not show. Environment variables,
commands and annotations other than scaling are never included.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    COMMAND_ANNOTATION,
    CONDITION_ACTIVE,
    CONDITION_DORMANT,
    DORMANT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    QUEUE_PROXY,
    REVISION_LABEL,
    SERVICE_LABEL,
    TARGET_ANNOTATION,
    TEMPLATE_ANNOTATION,
    TargetMode,
)
from serving.core.model.quantity import parse_bytes, parse_millicores
from serving.core.scaling.revision import oom_kill_count_of
from serving.tools.dashboard.coldstarts import StartFacts

View = dict[str, Any]

_LEAN_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
# A program that runs Python apps, at the start of a command or of a part of it.
_PYTHON = re.compile(r"(^|[\s/])(python[\d.]*|uvicorn|gunicorn|hypercorn|waitress-serve|flask)(\s|$)")
_UNSPECIFIC = "ContainersNotReady"
_SCALING = f"{AUTOSCALING_GROUP}/"


class _SavedTarget(msgspec.Struct):
    total: float
    bound: str | None = None
    above: float | None = None


def service_view(service: Mapping[str, Any]) -> View:
    """The fields of a Service that the dashboard shows, with its traffic."""
    status = service.get("status") or {}
    traffic = [
        {
            "revision": target.get("revisionName", ""),
            "percent": target.get("percent") or 0,
            "tag": target.get("tag", ""),
            "is_latest": bool(target.get("latestRevision")),
        }
        for target in status.get("traffic") or ()
    ]
    return {
        **_named(service),
        "url": status.get("url", ""),
        "traffic": traffic,
        "conditions": _conditions(status),
        "ready": _status_of(status, "Ready"),
        "latest": status.get("latestReadyRevisionName", ""),
    }


def revision_view(revision: Mapping[str, Any]) -> View:
    """The fields of a Revision that the dashboard shows."""
    metadata, spec, status = revision["metadata"], revision.get("spec") or {}, revision.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return {
        **_named(revision),
        "service": (metadata.get("labels") or {}).get(SERVICE_LABEL, ""),
        "state": spec.get("servingState") or "Active",
        "concurrency": int(spec.get("containerConcurrency") or 0),
        "scaling": {
            name.removeprefix(_SCALING): value for name, value in annotations.items() if name.startswith(_SCALING)
        }
        | _learnt_target(annotations),
        # The state and the pods show whether it is active, also while the server has not written the condition.
        "conditions": [condition for condition in _conditions(status) if condition["type"] != CONDITION_ACTIVE],
        "ready": _status_of(status, "Ready"),
    }


def start_facts(revision: Mapping[str, Any]) -> StartFacts:
    """Facts that explain the start times of a Revision's pods, such as whether its command is Python."""
    metadata = revision["metadata"]
    annotations = metadata.get("annotations") or {}
    return StartFacts(
        service=(metadata.get("labels") or {}).get(SERVICE_LABEL) or metadata["name"],
        is_preloaded=annotations.get(TEMPLATE_ANNOTATION) == "preload",
        is_python=_PYTHON.search(annotations.get(COMMAND_ANNOTATION, "")) is not None,
        has_dormant=DORMANT_ANNOTATION in annotations,
    )


def _learnt_target(annotations: Mapping[str, str]) -> dict[str, str]:
    """The learnt target, in the format of ``serving why``; empty without a stored target."""
    try:
        learnt = msgspec.json.decode(annotations.get(LEARNT_TARGET_ANNOTATION, ""), type=_SavedTarget)
    except UNREADABLE:
        return {}
    why = "" if learnt.bound is None or learnt.above is None else f" ({learnt.bound}-bound above {learnt.above:.3g})"
    mode = {"learnt": TargetMode.USE.value}.get(
        annotations.get(TARGET_ANNOTATION, ""), annotations.get(TARGET_ANNOTATION)
    )
    used = "" if mode is None else ", in force" if mode == TargetMode.USE else f", {mode}"
    return {"learnt target": f"{learnt.total:.3g}{why}{used}"}


def pod_view(pod: Mapping[str, Any]) -> View | None:
    """The fields of a Pod that the dashboard shows; None for a pod without a revision."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    if revision is None:
        return None
    names = [str(container.get("name", "")) for container in spec.get("containers") or ()]
    containers = status.get("containerStatuses") or ()
    waiting: Mapping[str, str] = next(
        (container["state"]["waiting"] for container in containers if (container.get("state") or {}).get("waiting")), {}
    )
    return {
        **_named(pod),
        "revision": revision,
        "container": next((name for name in names if name != QUEUE_PROXY), ""),
        "phase": status.get("phase", "Pending"),
        "ready": _status_of(status, "Ready") == "True",
        "dormant": _status_of(status, CONDITION_DORMANT) == "True",
        "ending": bool(metadata.get("deletionTimestamp")),
        "node": spec.get("nodeName", ""),
        "ip": status.get("podIP", ""),
        "restarts": sum(container.get("restartCount", 0) for container in containers),
        "oom_kills": oom_kill_count_of(status),
        "memory_limit_bytes": _memory_limit_of(spec),
        "reason": waiting.get("reason") or status.get("reason") or _reason_of(status),
    }


def _reason_of(status: Mapping[str, Any]) -> str:
    """Why a pod with running containers is not ready, such as "NotListening"; "" if it is, or for an unspecific reason."""
    conditions = status.get("conditions") or ()
    reason = next((str(entry.get("reason") or "") for entry in conditions if entry.get("type") == "Ready"), "")
    return "" if reason == _UNSPECIFIC else reason


def _memory_limit_of(spec: Mapping[str, Any]) -> int:
    """The total memory limit of all containers; 0 if a container has no limit."""
    limits = [
        amount(((container.get("resources") or {}).get("limits") or {}).get("memory"), is_cpu=False)
        for container in spec.get("containers") or ()
    ]
    return sum(limits) if all(limits) else 0


def lean_pod(pod: Mapping[str, Any]) -> View:
    """A Pod reduced to the fields that the dashboard reads. The dashboard caches every pod of the cluster in this form."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return {
        "metadata": {
            **{name: metadata[name] for name in _LEAN_METADATA if name in metadata},
            # A workload selects its pods by any of them.
            "labels": metadata.get("labels") or {},
        },
        "spec": {
            **{name: spec[name] for name in ("nodeName", "overhead") if name in spec},
            **{
                kind: [
                    {"name": container.get("name", ""), "resources": container.get("resources") or {}}
                    for container in spec.get(kind) or ()
                ]
                for kind in ("containers", "initContainers")
            },
        },
        "status": {
            **{name: status[name] for name in ("phase", "podIP", "reason") if name in status},
            "conditions": [
                {name: condition.get(name, "") for name in ("type", "status", "reason")}
                for condition in status.get("conditions") or ()
                if condition.get("type") in {"Ready", CONDITION_DORMANT}
            ],
            "containerStatuses": [
                {
                    "restartCount": container_status.get("restartCount", 0),
                    "state": {name: (container_status.get("state") or {}).get(name) for name in ("waiting", "running")},
                    **_last_end(container_status),
                }
                for container_status in status.get("containerStatuses") or ()
            ],
        },
    }


def _last_end(container: Mapping[str, Any]) -> View:
    reason = ((container.get("lastState") or {}).get("terminated") or {}).get("reason")
    return {"lastState": {"terminated": {"reason": reason}}} if reason else {}


def node_view(node: Mapping[str, Any]) -> View:
    """The fields of a Node that the dashboard shows."""
    status, spec = node.get("status") or {}, node.get("spec") or {}
    allocatable = status.get("allocatable") or {}
    return {
        **_named(node),
        "ready": _status_of(status, "Ready"),
        "cpu_millicores": amount(allocatable.get("cpu"), is_cpu=True),
        "memory_bytes": amount(allocatable.get("memory"), is_cpu=False),
        "taints": [taint.get("key", "") for taint in spec.get("taints") or ()],
        "labels": dict(node["metadata"].get("labels") or {}),
    }


def _named(resource: Mapping[str, Any]) -> View:
    metadata = resource["metadata"]
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp", ""),
    }


def _conditions(status: Mapping[str, Any]) -> list[View]:
    names = ("type", "status", "reason", "message")
    return [{name: condition.get(name, "") for name in names} for condition in status.get("conditions") or ()]


def _status_of(status: Mapping[str, Any], condition: str) -> str:
    conditions = status.get("conditions") or ()
    return next((entry.get("status", "Unknown") for entry in conditions if entry.get("type") == condition), "Unknown")


def amount(text: object, *, is_cpu: bool) -> int:
    """A quantity in millicores or bytes; 0 if missing or unreadable."""
    try:
        return 0 if text is None else (parse_millicores if is_cpu else parse_bytes)(str(text))
    except InvalidValue:
        # Objects of other projects may contain anything; the page must not fail on them.
        return 0
