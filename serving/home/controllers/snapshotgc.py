"""Removes snapshots of application folders that no revision uses any more."""

import asyncio
import logging
import time

from serving.cluster.kinds import CONFIGURATION, REVISION, SERVING_SERVICE
from serving.cluster.port import Cluster
from serving.home.pods.snapshot import collect
from serving.home.state import StateFolder
from serving.model.errors import ClusterError
from serving.model.knative import SNAPSHOT_ANNOTATION
from serving.model.objects import annotations_of, nested

_log = logging.getLogger("control")

_PERIOD_S = 60.0


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
        await asyncio.sleep(_PERIOD_S)
