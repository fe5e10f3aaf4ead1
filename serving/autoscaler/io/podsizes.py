"""Resizes pods in place: lowers and restores the requests of dormant pods, and ends start-cpu.

``serving.core.scaling.podsize`` decides on sizes from the pods' reports. This module resizes each pod in a task that
ends when the pod has its size. No request waits for a resize. A refusal, for example by a quota or a kubelet, is
written to the pod's condition, and the resize is retried.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.knative import (
    AWAKE_REASON,
    AWAKE_RESOURCES_ANNOTATION,
    CONDITION_DORMANT,
    IDLE_REASON,
)
from serving.core.model.objects import Object, annotations_of, condition_of, with_transition_time
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.podsize import resize_of, resources_patch
from serving.core.traffic.backoff import backoff_s
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.supervise import TaskOwner
from serving.net.cluster.kinds import POD
from serving.net.cluster.port import Cluster, PatchType

_log = logging.getLogger("autoscaler")

PodKey = tuple[str, str]
REFUSED_REASON = "ResizeRefused"
UNFROZEN_REASON = "NotFrozen"
_RETRY_FIRST_S, _RETRY_MAX_S = 5.0, 300.0
# Pods resized in parallel: a thousand may become dormant in the same second.
_AT_ONCE_MAX = 20


class _Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's last report. ``unfrozen`` is why its app is not frozen."""

    is_dormant: bool
    unfrozen: str = ""


class _Pod:
    def __init__(self, wanted: _Sleep) -> None:
        self.wanted = wanted
        self.changed = asyncio.Event()


class PodSizes:
    """The sizes of all pods. ``pod`` returns the last observed pod, ``used`` the usage of its containers."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        pod: Callable[[str, str], Object | None],
        used: Callable[[PodKey, float], Mapping[str, Resources]],
    ) -> None:
        self._cluster = cluster
        self._pod = pod
        self._used = used
        self._wanted: dict[PodKey, _Sleep] = {}
        self._busy: dict[PodKey, _Pod] = {}
        self._tasks = TaskOwner()
        self._turns = asyncio.Semaphore(_AT_ONCE_MAX)
        self.write_count = self.refused_count = 0

    def update(self, key: PodKey, stat: Stat, *, is_ready: bool) -> None:
        """Process a pod's report. Only the first report and changed reports cause API calls."""
        wanted = _Sleep(is_dormant=stat.is_dormant, unfrozen=stat.unfrozen)
        before = self._wanted.get(key)
        if before == wanted or not (is_ready or wanted.is_dormant):
            return
        if before is None and not (wanted.is_dormant or self._is_resized(key)):
            return
        self._wanted[key] = wanted
        busy = self._busy.get(key)
        if busy is not None:
            busy.wanted = wanted
            busy.changed.set()
            return
        self._busy[key] = _Pod(wanted)
        self._tasks.start(self._settle(key, self._busy[key]), name=f"resize {key[1]}")

    def forget(self, key: PodKey) -> None:
        """Drop a deleted pod."""
        self._wanted.pop(key, None)
        busy = self._busy.get(key)
        if busy is not None:
            busy.changed.set()

    async def end(self) -> None:
        """Stop, and cancel pending writes: the pods report again to the next autoscaler."""
        await self._tasks.close()

    def _is_resized(self, key: PodKey) -> bool:
        """Whether a pod may request other amounts than configured, for example after a start with more cpu."""
        pod = self._pod(*key)
        return pod is not None and AWAKE_RESOURCES_ANNOTATION in annotations_of(pod)

    async def _settle(self, key: PodKey, pod: _Pod) -> None:
        failed_count = 0
        try:
            while key in self._wanted:
                pod.changed.clear()
                wanted = pod.wanted
                async with self._turns:
                    is_done = await self._apply(key, wanted)
                if wanted != pod.wanted:
                    failed_count = 0
                    continue
                if is_done:
                    return
                failed_count += 1
                pause_s = backoff_s(failed_count, first_s=_RETRY_FIRST_S, max_s=_RETRY_MAX_S)
                try:
                    async with asyncio.timeout(pause_s):
                        await pod.changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._busy.pop(key, None)

    async def _apply(self, key: PodKey, wanted: _Sleep) -> bool:
        """Resize a pod and write its condition; return whether nothing remains to do."""
        refusal = ""
        try:
            # The cache may be older than our own last write.
            pod = await self._cluster.get(POD, *key)
            try:
                pod = await self._resize(key, pod, wanted)
            except NotFound:
                raise
            except ClusterError as error:
                self.refused_count += 1
                refusal = str(error)
            await self._write_condition(key, pod, wanted, refusal=refusal)
        except NotFound:
            self._wanted.pop(key, None)
            return True
        except ClusterError as error:
            refusal = str(error)
        if refusal:
            extra = {"namespace": key[0], "pod": key[1], "dormant": wanted.is_dormant, "error": refusal}
            _log.warning("pod.not_resized", extra=extra)
        return not refusal

    async def _resize(self, key: PodKey, pod: Object, wanted: _Sleep) -> Object:
        note = resources_patch(pod) if wanted.is_dormant else None
        if note is not None:
            pod = await self._cluster.patch(POD, *key, patch=note)
        patch = resize_of(pod, is_dormant=wanted.is_dormant, used=self._used(key, now_s()))
        if patch is None:
            return pod
        self.write_count += 1
        return await self._cluster.patch(POD, *key, patch=patch, patch_type=PatchType.STRATEGIC, subresource="resize")

    async def _write_condition(self, key: PodKey, pod: Object, wanted: _Sleep, *, refusal: str) -> None:
        before = condition_of(pod, CONDITION_DORMANT)
        if not before and not wanted.is_dormant and not refusal:
            return
        condition = _condition(wanted, refusal)
        if condition.items() <= before.items():
            return
        patch = {"status": {"conditions": [with_transition_time(condition, before, now=stamp())]}}
        await self._cluster.patch(POD, *key, patch=patch, patch_type=PatchType.STRATEGIC, subresource="status")


def _condition(wanted: _Sleep, refusal: str) -> Object:
    """A pod's condition, with the reason of a refused resize."""
    if refusal:
        reason, message = REFUSED_REASON, f"the requests stay as they are: {refusal}"
    elif not wanted.is_dormant:
        reason, message = AWAKE_REASON, "the app runs"
    elif wanted.unfrozen:
        reason, message = UNFROZEN_REASON, f"requests are reduced; the app is not frozen: {wanted.unfrozen}"
    else:
        reason, message = IDLE_REASON, "requests are reduced, and the app is frozen; the next request thaws it"
    return {
        "type": CONDITION_DORMANT,
        "status": "True" if wanted.is_dormant else "False",
        "reason": reason,
        "message": message,
    }
