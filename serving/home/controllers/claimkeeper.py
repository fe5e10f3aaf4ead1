"""Keeps PersistentVolumeClaims: makes their folders, and removes a deleted claim's folder once nothing uses it."""

import asyncio
import logging
from pathlib import Path

from serving.cluster.kinds import PERSISTENT_VOLUME_CLAIM, POD, REVISION
from serving.cluster.port import Cluster
from serving.cluster.reflector import Reflector
from serving.cluster.workqueue import WorkQueue
from serving.home.pods.claims import FINALIZER, claim_folder, claim_status, make_claim_folder, users_of
from serving.home.pods.diskbudget import is_evicted
from serving.home.trees import remove_tree
from serving.model.errors import InvalidValue, NotFound
from serving.model.objects import Key, Object, is_being_deleted

# A claim that is used is looked at again, and so is one whose folder could not be made or removed.
_AGAIN_S = 1.0

_log = logging.getLogger("claims")


class ClaimKeeper:
    """Runs until cancelled."""

    def __init__(self, cluster: Cluster, volumes: Path) -> None:
        self._cluster, self._volumes = cluster, volumes
        self._claims = Reflector(cluster, PERSISTENT_VOLUME_CLAIM)
        self._queue: WorkQueue[Key] = WorkQueue("claims")
        self._claims.on_change(lambda change: self._queue.add(change.key))

    async def run(self) -> None:
        """Follow and write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run(), name="claims")
            await self._claims.synced.wait()
            await self._queue.run(1, self._work)

    async def _work(self, key: Key) -> float | None:
        claim = self._claims.cache.get(key)
        if claim is None:
            return None
        try:
            folder = claim_folder(self._volumes, *key)
            is_done = await (self._remove if is_being_deleted(claim) else self._keep)(claim, key, folder)
        except NotFound:
            return None
        except (OSError, InvalidValue) as error:
            _log.warning("claim.failed", extra={"claim": "/".join(key), "error": str(error)})
            is_done = False
        return None if is_done else _AGAIN_S

    async def _keep(self, claim: Object, key: Key, folder: Path) -> bool:
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch=patch)
        await asyncio.to_thread(make_claim_folder, folder)
        status = claim_status(claim)
        if claim.get("status") != status:
            await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch={"status": status}, subresource="status")
        return True

    async def _remove(self, claim: Object, key: Key, folder: Path) -> bool:
        """Remove the folder and let the claim go; returns False while something uses it."""
        pods, revisions = [(await self._cluster.list(kind, key[0])).items for kind in (POD, REVISION)]
        if users_of(key[1], [one for one in pods if not is_evicted(one)], revisions):
            return False
        await asyncio.to_thread(remove_tree, folder)
        left = [one for one in claim["metadata"].get("finalizers") or [] if one != FINALIZER]
        patch = {"metadata": {"finalizers": left or None}}
        await self._cluster.patch(PERSISTENT_VOLUME_CLAIM, *key, patch=patch)
        return True
