"""Writes the reasons in pods' reports for not being ready into their conditions, for the controller.

An unchanged reason is not written again. A reason that changes each second is written once in ten seconds.
"""

import logging
import math

from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.knative import CONDITION_LISTENS
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.supervise import TaskOwner
from serving.net.cluster.kinds import POD
from serving.net.cluster.port import Cluster, PatchType

_log = logging.getLogger("autoscaler")

PodKey = tuple[str, str]
_PAUSE_S = 10.0


class UnreadyPods:
    """The reasons of all unready pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written: dict[PodKey, str] = {}
        self._tried_s: dict[PodKey, float] = {}
        self._tasks = TaskOwner()

    def update(self, key: PodKey, reason: str) -> None:
        """Process a pod's report; ``reason`` is "" if the pod is ready, or the reason is unknown."""
        if reason == self._written.get(key, "") or now_s() - self._tried_s.get(key, -math.inf) < _PAUSE_S:
            return
        self._tried_s[key] = now_s()
        self._tasks.start(self._write(key, reason), name=f"condition {key[1]}")

    def forget(self, key: PodKey) -> None:
        """Drop a deleted pod."""
        self._written.pop(key, None)
        self._tried_s.pop(key, None)

    async def end(self) -> None:
        """Cancel pending writes."""
        await self._tasks.close()

    async def _write(self, key: PodKey, reason: str) -> None:
        word, status = ("WrongPort", "False") if reason else ("Listening", "True")
        condition = {"type": CONDITION_LISTENS, "status": status, "reason": word, "message": reason}
        patch = {"status": {"conditions": [{**condition, "lastTransitionTime": stamp()}]}}
        try:
            await self._cluster.patch(POD, *key, patch=patch, patch_type=PatchType.STRATEGIC, subresource="status")
            self._written[key] = reason
        except NotFound:
            self.forget(key)
        except ClusterError as error:
            extra = {"namespace": key[0], "pod": key[1], "error": str(error)}
            _log.warning("pod.condition_not_written", extra=extra)
