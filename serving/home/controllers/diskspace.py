"""Removes images that were pulled for a revision and that no revision or template of this machine names any more."""

import asyncio
import logging
import time

from serving.cluster.kinds import CONFIGURATION, REVISION, SERVING_SERVICE
from serving.cluster.port import Cluster
from serving.home.images.source import ImagePins
from serving.home.images.store import ImageStore
from serving.home.pods.snapshot import collect
from serving.home.state import StateFolder
from serving.model.errors import ClusterError, InvalidValue
from serving.model.knative import SNAPSHOT_ANNOTATION
from serving.model.objects import annotations_of, nested, uid_of

_log = logging.getLogger("control")

_PERIOD_S = 300.0
# A deploy pulls the image before its revision exists.
_UNUSED_KEPT_S = 3600.0


async def collect_images(cluster: Cluster, store: ImageStore) -> None:
    """Collect every five minutes until cancelled. Images that a user imported or pulled stay."""
    while True:
        await asyncio.sleep(_PERIOD_S)
        try:
            revisions = (await cluster.list(REVISION)).items
            parents = [one for kind in (SERVING_SERVICE, CONFIGURATION) for one in (await cluster.list(kind)).items]
            specs = [nested(one, "spec") for one in revisions]
            specs += [nested(one, "spec", "template", "spec") for one in parents]
            lists = [nested(spec, field) or () for spec in specs for field in ("containers", "initContainers")]
            names = {container.get("image", "") for listed in lists for container in listed}
            uids = {uid_of(one) for one in revisions}
            removed = await asyncio.to_thread(_collect, store, names, uids)
            if removed:
                _log.info("images.removed", extra={"ids": removed})
        except (ClusterError, OSError) as error:
            _log.warning("images.not_collected", extra={"error": str(error)})


def _collect(store: ImageStore, names: set[str], revisions: set[str]) -> list[str]:
    used = set(ImagePins(store.folder).unpin(revisions))
    for name in names:
        try:
            found = store.find(name)
        except InvalidValue:
            continue
        used |= {found.id} if found else set()
    # The wall clock: the age of an image is the time of its import.
    return store.collect(used, now_s=time.time(), unused_kept_s=_UNUSED_KEPT_S)


_SNAPSHOTGC_PERIOD_S = 60.0


async def used_snapshots(cluster: Cluster) -> frozenset[str]:
    """The snapshots of all revisions, and of the templates that may yet become one."""
    revisions = (await cluster.list(REVISION)).items
    parents = [one for kind in (SERVING_SERVICE, CONFIGURATION) for one in (await cluster.list(kind)).items]
    templates = [nested(one, "spec", "template") for one in parents]
    return frozenset(annotations_of(one).get(SNAPSHOT_ANNOTATION, "") for one in (*revisions, *templates))


async def collect_snapshots(cluster: Cluster, state: StateFolder) -> None:
    """Collect once a minute until cancelled."""
    while True:
        try:
            used = await used_snapshots(cluster)
            # The wall clock: the age of a snapshot is its modification time.
            removed = await asyncio.to_thread(collect, state.snapshots, used, now_s=time.time())
            if removed:
                _log.info("snapshots.removed", extra={"names": removed})
        except ClusterError as error:
            _log.warning("snapshots.not_collected", extra={"error": str(error)})
        await asyncio.sleep(_SNAPSHOTGC_PERIOD_S)
