"""Warnings about a pod, written to the store as Events."""

import asyncio
import logging

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT
from serving.cluster.port import Cluster
from serving.home.containers.bundle import security_of
from serving.home.containers.podbox import PodBox
from serving.home.kubelet.podevents import pod_event
from serving.home.pods.limits import warnings_of
from serving.home.pods.podplan import all_containers
from serving.model.errors import AlreadyExists, ClusterError
from serving.model.objects import Object, name_of

_log = logging.getLogger("kubelet")


class PodWarnings:
    """Warnings about one pod. ``group`` runs those that are sent later."""

    def __init__(self, cluster: Cluster, manifest: Object, group: asyncio.TaskGroup) -> None:
        self._cluster, self._manifest, self._group = cluster, manifest, group

    def __repr__(self) -> str:
        return f"PodWarnings({name_of(self._manifest)})"

    def send_later(self, reason: str, message: str) -> None:
        """Write a warning without waiting for the store."""
        self._group.create_task(self.send(reason, message), name="warn")

    async def send(self, reason: str, message: str) -> None:
        """Write a warning. One with the same words is there already: nothing happens."""
        try:
            await self._cluster.create(EVENT, pod_event(self._manifest, reason=reason, message=message, now=stamp()))
        except AlreadyExists:
            return
        except ClusterError as error:
            _log.warning("event.failed", extra={"pod": name_of(self._manifest), "error": str(error)})

    async def send_not_enforced(self, box: PodBox | None) -> None:
        """Warn of what containers ask for and do not get on this machine. ``box`` is where they run."""
        refused = box.refused_limits if box and box.has_containers else None
        is_rootless = box is not None and box.is_rootless
        for container in all_containers(self._manifest):
            security = security_of(self._manifest, container)
            for warning in warnings_of(container, security=security, refused=refused, is_rootless=is_rootless):
                await self.send(*warning)
