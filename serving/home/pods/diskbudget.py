"""Decides which pods exceed their disk limits, with messages of Kubernetes' kubelet.

A pod's use is its folder (volumes, writable layers of its containers) and its logs. Limits are those of its containers
(``ephemeral-storage``) and of its emptyDir volumes (``sizeLimit``). Source: kubernetes v1.36,
pkg/kubelet/eviction/eviction_manager.go.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Key, Object, nested
from serving.core.model.quantity import parse_bytes
from serving.home.pods.podplan import all_containers, container_name_of

EVICTED = "Evicted"
"""The reason of a pod that the kubelet ended for its use of a resource."""


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's bytes on disk: in total, by container (logs and writable layer), and by emptyDir volume."""

    total_bytes: int
    containers: Mapping[str, int] = {}
    volumes: Mapping[str, int] = {}


class PodOnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may be evicted. ``load`` is its number of used cores."""

    id: str
    use: DiskUse
    load: float


def has_budget(pod: Object) -> bool:
    """Whether a pod has any disk limit."""
    return bool(_container_limits(pod) or _volume_limits(pod))


def overuse(pod: Object, use: DiskUse) -> str:
    """The message about a pod above its disk limits; "" for a pod within them."""
    for name, (limit, text) in _volume_limits(pod).items():
        if use.volumes.get(name, 0) > limit:
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{text}". '
    limits = _container_limits(pod)
    if len(limits) == len(all_containers(pod)) and use.total_bytes > sum(limit for limit, _ in limits.values()):
        total = limits[next(iter(limits))][1] if len(limits) == 1 else str(sum(limit for limit, _ in limits.values()))
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
    for name, (limit, text) in limits.items():
        if use.containers.get(name, 0) > limit:
            return f'Container {name} exceeded its local ephemeral storage limit "{text}". '
    return ""


def pod_to_evict(
    pods: Collection[PodOnDisk], *, free_bytes: int, threshold_bytes: int, removable_bytes: int
) -> tuple[str, str]:
    """The pod to evict from a nearly full disk, and the message; ("", "") if no pod must be evicted or can help.

    The pod with the lowest load is evicted, among those that use at least ``removable_bytes``; others would free too
    little.
    """
    candidates = [pod for pod in pods if pod.use.total_bytes >= removable_bytes]
    if free_bytes >= threshold_bytes or not candidates:
        return "", ""
    least = min(candidates, key=lambda pod: (pod.load, -pod.use.total_bytes))
    reason = "The node was low on resource: ephemeral-storage. "
    return least.id, f"{reason}Threshold quantity: {threshold_bytes}, available: {free_bytes >> 10}Ki. "


def is_evicted(pod: Object) -> bool:
    """Whether a pod has ended by eviction."""
    return bool(nested(pod, "status", "phase") == "Failed" and nested(pod, "status", "reason") == EVICTED)


def owner_of(pod: Object) -> str:
    """The uid of the owner that replaces the pod; the pod's name if none does."""
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners), f"{metadata['namespace']}/{metadata['name']}")


def surplus_evicted(pods: Iterable[Object], *, per_owner: int, count_max: int) -> list[Key]:
    """The evicted pods to delete, oldest first.

    The youngest ``per_owner`` pods of each owner are kept, and at most ``count_max`` in total. Example: of 7 evicted
    pods of one Deployment, with 5 per owner, the two oldest are deleted.
    """
    youngest_first = sorted(filter(is_evicted, pods), key=_age_order, reverse=True)
    retained_count, surplus, by_owner = 0, [], Counter[str]()
    for pod in youngest_first:
        metadata = pod["metadata"]
        key: Key = (metadata["namespace"], metadata["name"])
        owner = owner_of(pod)
        if by_owner[owner] < per_owner and retained_count < count_max:
            by_owner[owner] += 1
            retained_count += 1
        else:
            surplus.append(key)
    return surplus[::-1]


def _age_order(pod: Object) -> tuple[str, str]:
    return str(pod["metadata"].get("creationTimestamp") or ""), str(pod["metadata"]["name"])


def _container_limits(pod: Object) -> dict[str, tuple[int, str]]:
    limits = {}
    for container in all_containers(pod):
        text = nested(container, "resources", "limits", "ephemeral-storage")
        if (limit := _bytes(text)) is not None:
            limits[container_name_of(container)] = (limit, str(text))
    return limits


def _volume_limits(pod: Object) -> dict[str, tuple[int, str]]:
    limits = {}
    for volume in pod["spec"].get("volumes") or ():
        text = nested(volume, "emptyDir", "sizeLimit")
        # 0 means no limit, as in Kubernetes.
        if limit := _bytes(text):
            limits[volume["name"]] = (limit, str(text))
    return limits


def _bytes(text: object) -> int | None:
    try:
        return None if text is None else parse_bytes(str(text))
    except InvalidValue:
        return None
