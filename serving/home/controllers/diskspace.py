"""Frees disk space: removes unused images and snapshots.

Images pulled for a revision are removed after no pod, revision or template uses them; images of users stay. Snapshots
of folders are removed in the same way.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from serving.core.model.errors import ClusterError
from serving.core.model.knative import SNAPSHOT_ANNOTATION
from serving.core.model.objects import Object, annotations_of, nested, uid_of
from serving.home.images.source import ImagePins, images_used
from serving.home.images.store import ImageStore
from serving.home.pods.snapshot import collect
from serving.home.state import StateFolder
from serving.net.cluster.kinds import CONFIGURATION, DEPLOYMENT, POD, REVISION, SERVING_SERVICE
from serving.net.cluster.port import Cluster

_log = logging.getLogger("control")

_IMAGE_PERIOD_S = 300.0
# A deploy pulls the image before its revision exists.
_UNUSED_KEPT_S = 3600.0

_SNAPSHOT_PERIOD_S = 60.0


async def collect_images(cluster: Cluster, store: ImageStore) -> None:
    """Remove unused images every five minutes until cancelled. Images imported or pulled by users are kept."""
    while True:
        await asyncio.sleep(_IMAGE_PERIOD_S)
        try:
            revisions = (await cluster.list(REVISION)).items
            pods = [*revisions, *(await cluster.list(POD)).items]
            for kind in (SERVING_SERVICE, CONFIGURATION, DEPLOYMENT):
                pods += [nested(owner, "spec", "template") or {} for owner in (await cluster.list(kind)).items]
            removed = await asyncio.to_thread(_collect, store, pods, {uid_of(revision) for revision in revisions})
            if removed:
                _log.info("images.removed", extra={"ids": removed})
        except (ClusterError, OSError) as error:
            _log.warning("images.not_collected", extra={"error": str(error)})


def _collect(store: ImageStore, pods: Sequence[Object], revisions: Collection[str]) -> list[str]:
    used = ImagePins(store.folder).unpin(revisions).union(*(images_used(pod, store) for pod in pods))
    # The wall clock: an image's age counts from its import.
    return store.collect(used, now_s=time.time(), unused_kept_s=_UNUSED_KEPT_S)


async def used_snapshots(cluster: Cluster) -> frozenset[str]:
    """The snapshots of all revisions, and of templates that have no revision yet."""
    revisions = (await cluster.list(REVISION)).items
    parents = [parent for kind in (SERVING_SERVICE, CONFIGURATION) for parent in (await cluster.list(kind)).items]
    templates = [nested(parent, "spec", "template") for parent in parents]
    return frozenset(annotations_of(template).get(SNAPSHOT_ANNOTATION, "") for template in (*revisions, *templates))


async def collect_snapshots(cluster: Cluster, state: StateFolder) -> None:
    """Remove unused snapshots once a minute until cancelled."""
    while True:
        try:
            used = await used_snapshots(cluster)
            # The wall clock: a snapshot's age is its modification time.
            removed = await asyncio.to_thread(collect, state.snapshots, used, now_s=time.time())
            if removed:
                _log.info("snapshots.removed", extra={"names": removed})
        except ClusterError as error:
            _log.warning("snapshots.not_collected", extra={"error": str(error)})
        await asyncio.sleep(_SNAPSHOT_PERIOD_S)
