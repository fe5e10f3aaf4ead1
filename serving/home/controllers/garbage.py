"""Collects garbage: dependents of deleted owners, contents of terminating namespaces, old Events.

The collector checks the suspects of a ``MemoryCluster`` (``home/store/owners.py``); a real cluster has its own
collector. An object is collected when all its owners are gone. An owner deleted in the foreground waits for its
dependents. An owner deleted with orphaned dependents waits until they no longer reference it. Follows Kubernetes'
garbage collector.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from serving.core.model.errors import Conflict, Gone, NotFound
from serving.core.model.objects import Key, Object
from serving.home.schemas.records import ObjectMetadata, read_metadata
from serving.home.store.memory import MemoryCluster
from serving.home.store.owners import Reference
from serving.home.store.writes import PROPAGATION_FINALIZERS
from serving.net.aio.clock import now_s
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import EVENT, KINDS, NAMESPACE
from serving.net.cluster.port import EventType, WatchEvent

# Deletions of durable objects wait for the disk, together.
_WORKERS = 16
_EVENTS_PAUSE_S = 10.0

EVENT_AGE_MAX_S = 3600.0
"""How long an Event is stored, in seconds: a kube-apiserver's --event-ttl."""

EVENT_COUNT_MAX = 1_000
"""Most Events stored, about 3 MB. A kube-apiserver has no such limit, but etcd's disk has."""


async def collect_garbage(cluster: MemoryCluster, *, workers: int = _WORKERS) -> None:
    """Delete objects without living owners, contents of deleted namespaces, and old Events, until cancelled.

    A failure, such as a conflict or a full disk, is retried.
    """

    async def check(suspect: Reference) -> None:
        try:
            await _check(cluster, suspect)
        except NotFound:
            # Another client deleted it first.
            return

    async with supervise() as group:
        group.start(collect_events(cluster), name="old events")
        await cluster.owners.suspects.run(workers, check)


async def _check(cluster: MemoryCluster, suspect: Reference) -> None:
    kind, (namespace, name) = suspect
    whole = await cluster.get(kind, namespace, name)
    metadata = read_metadata(whole)
    finalizers = metadata.finalizers or ()
    if metadata.deletion_timestamp is None:
        owners = metadata.owner_references or ()
        living = [owner for owner in owners if cluster.owners.is_living(owner.uid, namespace=namespace)]
        if owners and not living:
            await cluster.delete(kind, namespace, name, uid=metadata.uid)
    elif PROPAGATION_FINALIZERS["Orphan"] in finalizers:
        await _orphan_dependents(cluster, suspect, metadata)
    elif PROPAGATION_FINALIZERS["Foreground"] in finalizers:
        await _delete_dependents(cluster, suspect, metadata)
    elif kind == NAMESPACE:
        await _empty(cluster, name)


async def _orphan_dependents(cluster: MemoryCluster, owner: Reference, metadata: ObjectMetadata) -> None:
    uid = metadata.uid or ""
    for dependent in cluster.owners.dependents_of(uid):
        child = await cluster.get(dependent[0], *dependent[1])
        remaining = [
            owner_reference for owner_reference in child["metadata"]["ownerReferences"] if owner_reference["uid"] != uid
        ]
        await _patch_metadata(cluster, dependent, child, change={"ownerReferences": remaining or None})
    await _release(cluster, owner, PROPAGATION_FINALIZERS["Orphan"])


async def _delete_dependents(cluster: MemoryCluster, owner: Reference, metadata: ObjectMetadata) -> None:
    dependents = cluster.owners.dependents_of(metadata.uid or "")
    for kind, (namespace, name) in dependents:
        await cluster.delete(kind, namespace, name)
    if not cluster.owners.dependents_of(metadata.uid or ""):
        await _release(cluster, owner, PROPAGATION_FINALIZERS["Foreground"])


async def _release(cluster: MemoryCluster, suspect: Reference, finalizer: str) -> None:
    whole = await cluster.get(suspect[0], *suspect[1])
    remaining = [name for name in whole["metadata"].get("finalizers", ()) if name != finalizer]
    await _patch_metadata(cluster, suspect, whole, change={"finalizers": remaining or None})


async def _patch_metadata(cluster: MemoryCluster, target: Reference, seen: Object, *, change: dict[str, Any]) -> None:
    """Patch an object's metadata. Raises ``Conflict`` if the object differs from ``seen``."""
    kind, (namespace, name) = target
    versioned = {**change, "resourceVersion": seen["metadata"]["resourceVersion"]}
    await cluster.patch(kind, namespace, name, patch={"metadata": versioned})


async def _empty(cluster: MemoryCluster, namespace: str) -> None:
    """Delete the contents of a namespace; once it is empty, remove its finalizers. Called after each removal."""
    remaining = False
    for kind in filter(lambda kind: kind.namespaced, KINDS):
        for content in (await cluster.list(kind, namespace)).items:
            remaining = True
            if "deletionTimestamp" not in content["metadata"]:
                await cluster.delete(kind, namespace, content["metadata"]["name"])
    if not remaining:
        await cluster.patch(NAMESPACE, "", namespace, patch={"spec": {"finalizers": None}})


class EventAges:
    """The Events of a store, sorted by last write, to find Events that are too old or too many."""

    def __init__(self, *, age_max_s: float = EVENT_AGE_MAX_S, count_max: int = EVENT_COUNT_MAX) -> None:
        self._age_max_s = age_max_s
        self._count_max = count_max
        self._written: dict[Key, tuple[float, str]] = {}

    def put(self, seen: WatchEvent, *, now_s: float) -> None:
        """Record a change of an Event."""
        metadata = seen.object["metadata"]
        key = (metadata["namespace"], metadata["name"])
        # At the end, where the youngest are.
        self._written.pop(key, None)
        if seen.type is not EventType.DELETED:
            self._written[key] = (now_s, metadata["resourceVersion"])

    def pop_expired(self, *, now_s: float) -> Iterator[tuple[Key, str]]:
        """Remove and yield the keys and versions of the Events to delete, oldest first."""
        while self._written:
            key, (at_s, version) = next(iter(self._written.items()))
            if len(self._written) <= self._count_max and now_s - at_s <= self._age_max_s:
                return
            del self._written[key]
            yield key, version


async def collect_events(
    cluster: MemoryCluster, ages: EventAges | None = None, *, pause_s: float = _EVENTS_PAUSE_S
) -> NoReturn:
    """Delete old Events until cancelled."""
    ages = ages or EventAges()

    async def watch_events() -> None:
        while True:
            with contextlib.suppress(Gone):
                async with cluster.watch(EVENT, resource_version="0") as events:
                    async for seen in events:
                        ages.put(seen, now_s=now_s())

    async with supervise() as group:
        group.start(watch_events(), name="events")
        while True:
            for (namespace, name), version in ages.pop_expired(now_s=now_s()):
                # An Event written since then is returned again later.
                with contextlib.suppress(NotFound, Conflict):
                    await cluster.delete(EVENT, namespace, name, resource_version=version)
            await next_beat(pause_s)
