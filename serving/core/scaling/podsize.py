"""Decides the requests of dormant, starting and running pods, as patches for in-place resizes.

Input: a pod, whether its app sleeps, and the use of its containers. Output: patches, or None without a change. A
dormant container requests the smallest amount of cpu, and its used memory with a margin. An annotation of the pod has
the requests of the running app. For pods with ``serving.dev/start-cpu`` the controller writes the annotation, and their
requests are lowered to it once they are ready.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.knative import AWAKE_RESOURCES_ANNOTATION, QUEUE_PROXY
from serving.core.model.objects import Object, annotations_of, nested
from serving.core.model.quantity import Resources, format_bytes, resources_of

LEAST_CPU = "1m"
"""The smallest cpu request of Kubernetes."""
# Margin above the measured memory: a tenth, and what a first request may allocate.
_MEMORY_MARGIN_DIVISOR = 10
_MEMORY_MARGIN_BYTES = 8 * 2**20
_MIB = 2**20
_RESTARTS = "RestartContainer"

ContainerResources = dict[str, dict[str, str]]
"""Requests and limits of a container, as in a pod's spec."""


def awake_resources(pod: Object) -> dict[str, ContainerResources]:
    """Resources of the app's containers while they run, by name: from the annotation, else from the spec."""
    try:
        return msgspec.json.decode(
            annotations_of(pod).get(AWAKE_RESOURCES_ANNOTATION, ""), type=dict[str, ContainerResources]
        )
    except UNREADABLE:
        return {name: {"requests": dict(requests)} for name, requests in _requests(pod).items() if _amounts(requests)}


def resources_patch(pod: Object) -> Object | None:
    """The patch that records the resources of an awake pod in an annotation; None if there is nothing to record."""
    resources = awake_resources(pod)
    if not resources or AWAKE_RESOURCES_ANNOTATION in annotations_of(pod):
        return None
    return {"metadata": {"annotations": {AWAKE_RESOURCES_ANNOTATION: msgspec.json.encode(resources).decode()}}}


def resize_of(pod: Object, *, is_dormant: bool, used: Mapping[str, Resources]) -> Object | None:
    """The strategic merge patch for ``pods/resize``; None if the pod already has the wanted size.

    Example: a container that requests 1 cpu and 1Gi, and uses 100Mi, requests 1m and 118Mi while it is dormant.
    """
    changes = []
    for name, awake in awake_resources(pod).items():
        wanted = _dormant(awake, used.get(name, Resources())) if is_dormant else awake
        present = {kind: nested(_container(pod, name), "resources", kind) or {} for kind in wanted}
        differs = {
            kind: {
                resource: text
                for resource, text in amounts.items()
                if resource in _resizable(pod, name)
                and resources_of({resource: present[kind].get(resource)}) != resources_of({resource: text})
            }
            for kind, amounts in wanted.items()
        }
        if any(differs.values()):
            changes.append({"name": name, "resources": {kind: amounts for kind, amounts in differs.items() if amounts}})
    return {"spec": {"containers": changes}} if changes else None


def start_resources(container: Object, start_cpu: str) -> ContainerResources:
    """The resources of a starting container: it requests at least ``start_cpu``, up to its cpu limit."""
    written = container.get("resources") or {}
    resources: ContainerResources = {
        kind: dict(amounts) for kind, amounts in written.items() if kind in {"requests", "limits"}
    }
    for kind in ("requests", *(["limits"] if "cpu" in resources.get("limits", {}) else [])):
        before = resources_of(resources.get(kind)).cpu_m or 0
        if before < (resources_of({"cpu": start_cpu}).cpu_m or 0):
            resources[kind] = {**resources.get(kind, {}), "cpu": start_cpu}
    return resources


def started_resources(container: Object) -> ContainerResources:
    """The cpu of a container after its start.

    Kubernetes cannot remove a pod's requests, so a container without a cpu request gets the smallest one.
    """
    written = container.get("resources") or {}
    limits, requests = written.get("limits") or {}, written.get("requests") or {}
    # Kubernetes copies a missing request from the limit.
    resources = {"requests": {"cpu": str(requests.get("cpu") or limits.get("cpu") or LEAST_CPU)}}
    return {**resources, "limits": {"cpu": str(limits["cpu"])}} if "cpu" in limits else resources


def _dormant(awake: ContainerResources, used: Resources) -> ContainerResources:
    requests = awake.get("requests", {})
    amounts = resources_of(requests)
    dormant = {"cpu": LEAST_CPU} if amounts.cpu_m else {}
    if amounts.memory_bytes is not None:
        dormant["memory"] = requests["memory"]
        if used.memory_bytes is not None:
            needed = used.memory_bytes + used.memory_bytes // _MEMORY_MARGIN_DIVISOR + _MEMORY_MARGIN_BYTES
            rounded = -(-needed // _MIB) * _MIB
            dormant["memory"] = format_bytes(rounded) if rounded < amounts.memory_bytes else requests["memory"]
    return {"requests": dormant}


def _requests(pod: Object) -> dict[str, dict[str, str]]:
    return {
        str(container.get("name", "")): nested(container, "resources", "requests") or {}
        for container in nested(pod, "spec", "containers") or ()
        if container.get("name") != QUEUE_PROXY
    }


def _amounts(requests: Mapping[str, Any]) -> bool:
    return bool({"cpu", "memory"} & requests.keys())


def _container(pod: Object, name: str) -> Object:
    return next(
        (container for container in nested(pod, "spec", "containers") or () if container.get("name") == name), {}
    )


def _resizable(pod: Object, name: str) -> set[str]:
    """Resources that can change without a container restart."""
    policies = _container(pod, name).get("resizePolicy") or ()
    return {"cpu", "memory"} - {
        policy.get("resourceName") for policy in policies if policy.get("restartPolicy") == _RESTARTS
    }
