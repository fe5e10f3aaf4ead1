"""Maintains PersistentVolumeClaims: creates their folders, and removes those of deleted claims once unused.

The file system enforces the size of a claim. If it cannot, the folder is measured, and a warning reports a folder above
its size.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from serving.core.model.errors import InvalidValue, NotFound
from serving.core.model.event import EventText, about, digest, new_event
from serving.core.model.objects import Key, Object, is_being_deleted, is_true
from serving.home.pods.claims import (
    FINALIZER,
    OVER_SIZE,
    claim_bytes,
    claim_folder,
    claim_status,
    is_over_size,
    make_claim_folder,
    users_of,
)
from serving.home.pods.diskbudget import is_evicted
from serving.home.pods.volumequota import limit_folder, quota_gap, tree_bytes
from serving.home.trees import remove_tree
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import write_once
from serving.net.cluster.kinds import PERSISTENT_VOLUME_CLAIM, POD, REVISION
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import Reflector
from serving.net.cluster.workqueue import WorkQueue

# Recheck of a claim in use, or whose folder could not be created or removed, in seconds.
_AGAIN_S = 1.0
# Pause between walks over all folders, relative to their duration: a walk of 10 s is repeated after five minutes.
_MEASURE_PERIOD_S, _MEASURE_PAUSE_RATIO = 30.0, 30

_log = logging.getLogger("claims")


class ClaimKeeper:
    """Watches PersistentVolumeClaims, and creates and removes their folders."""

    def __init__(self, cluster: Cluster, volumes: Path) -> None:
        self._cluster = cluster
        self._volumes = volumes
        self._claims = Reflector(cluster, PERSISTENT_VOLUME_CLAIM, on_change=lambda change: self._queue.add(change.key))
        self._queue: WorkQueue[Key] = WorkQueue("claims")
        # Sizes of folders without a quota.
        self._used_bytes: dict[Key, int] = {}

    async def run(self) -> None:
        """Watch the claims, and maintain their folders and statuses, until cancelled."""
        async with supervise() as group:
            group.start(self._claims.run(), name="claims")
            await self._claims.synced.wait()
            group.start(self._measure(), name="volume sizes")
            await self._queue.run(1, self._work)

    async def _measure(self) -> None:
        """Measure the folders whose size no quota limits, and warn of those larger than their claims request."""
        while True:
            started_s = now_s()
            for key in [*self._used_bytes]:
                with contextlib.suppress(InvalidValue):
                    await self._measure_one(key)
            await asyncio.sleep(_MEASURE_PERIOD_S + _MEASURE_PAUSE_RATIO * (now_s() - started_s))

    async def _measure_one(self, key: Key) -> None:
        claim = self._claims.cache.get(key)
        if claim is None:
            del self._used_bytes[key]
            return
        used = await asyncio.to_thread(tree_bytes, claim_folder(self._volumes, *key))
        if key in self._used_bytes:
            self._used_bytes[key] = used
        if is_over_size(claim, used) != is_true(claim, OVER_SIZE):
            self._queue.add(key)

    async def _work(self, key: Key) -> float | None:
        claim = self._claims.cache.get(key)
        if claim is None:
            return None
        try:
            folder = claim_folder(self._volumes, *key)
            is_done = await (self._remove if is_being_deleted(claim) else self._provision)(claim, key, folder)
        except NotFound:
            return None
        except (OSError, InvalidValue) as error:
            _log.warning("claim.failed", extra={"claim": "/".join(key), "error": str(error)})
            is_done = False
        return None if is_done else _AGAIN_S

    async def _provision(self, claim: Object, key: Key, folder: Path) -> bool:
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch=patch)
        gap = await asyncio.to_thread(_create_folder, folder, claim_bytes(claim))
        if gap and key not in self._used_bytes:
            self._used_bytes[key] = await asyncio.to_thread(tree_bytes, folder)
        status = claim_status(claim, gap=gap, used_bytes=self._used_bytes.get(key), now=stamp())
        if claim.get("status") != status:
            await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch={"status": status}, subresource="status")
            if is_true({"status": status}, OVER_SIZE) and not is_true(claim, OVER_SIZE):
                await write_once(self._cluster, _over_size(claim))
        return True

    async def _remove(self, claim: Object, key: Key, folder: Path) -> bool:
        """Remove the folder and release the claim; return False while a pod uses it."""
        pods, revisions = [(await self._cluster.list(kind, key[0])).items for kind in (POD, REVISION)]
        if users_of(key[1], [pod for pod in pods if not is_evicted(pod)], revisions):
            return False
        await asyncio.to_thread(_remove_folder, folder)
        self._used_bytes.pop(key, None)
        remaining = [finalizer for finalizer in claim["metadata"].get("finalizers") or [] if finalizer != FINALIZER]
        patch = {"metadata": {"finalizers": remaining or None}}
        await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch=patch)
        return True


def _create_folder(folder: Path, byte_count: int) -> str:
    """Create a claim's folder and limit its size. Returns why the limit is not enforced, or ""."""
    make_claim_folder(folder)
    gap = quota_gap(folder)
    if not gap:
        try:
            limit_folder(folder, byte_count)
        except OSError as error:
            return f"the file system takes no limit: {error.strerror}"
    return gap


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        # The next folder with the same project number starts without the limit.
        if not quota_gap(folder):
            limit_folder(folder, 0)
    remove_tree(folder)


def _over_size(claim: Object) -> Object:
    size, name = claim["spec"]["resources"]["requests"]["storage"], claim["metadata"]["name"]
    message = f"the volume {name} holds more than its size of {size}; nothing enforces the size on this file system"
    _log.warning("claim.over_size", extra={"claim": name, "size": size})
    text = EventText(reason=OVER_SIZE, message=message, is_warning=True)
    return new_event(about(claim), text, suffix=digest(name, stamp()), component="claims", now=stamp())
