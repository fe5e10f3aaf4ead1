"""Measures the disk use of pods, and evicts those over a limit by the decisions of ``diskbudget``.

A pod above its limit is evicted within seconds. On a nearly full disk the longest idle pod is evicted, one at a time,
so that the store can still write to the disk.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from serving.core.model.errors import ClusterError
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.pod import PodRun
from serving.home.kubelet.podwarnings import pod_event
from serving.home.kubelet.replacements import ReplacementPauses, lineage_of, write_pauses
from serving.home.pods.diskbudget import EVICTED, DiskUse, PodOnDisk, has_budget, overuse, pod_to_evict
from serving.home.pods.volumequota import tree_bytes, tree_files
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.aio.periodic import next_beat
from serving.net.cluster.events import write_once

_log = logging.getLogger("kubelet")

_PERIOD_S = 2.0
# The grace period of a pod evicted for its own use, as in Kubernetes, in seconds.
_GRACE_S = 1
# Evicting smaller pods is not worthwhile.
_REMOVABLE_BYTES = 2**20
_VOLUMES, _CONTAINERS = ".volumes", "containers"


def disk_use(folder: Path, logs: Path) -> DiskUse:
    """Measure a pod's folder and logs. Files in memory, and links, do not count. Blocks."""
    volumes, layers = folder / _VOLUMES, folder / _CONTAINERS
    by_log: dict[str, int] = {}
    for path, size in tree_files(logs):
        name = path.removeprefix(f"{logs}/").partition(".")[0]
        by_log[name] = by_log.get(name, 0) + size
    written = {layer.name: tree_bytes(layer / "upper") for layer in _folders(layers)}
    return DiskUse(
        total_bytes=tree_bytes(folder) + sum(by_log.values()),
        containers={name: written.get(name, 0) + by_log.get(name, 0) for name in written.keys() | by_log.keys()},
        volumes={volume.name: tree_bytes(volume) for volume in _folders(volumes)},
    )


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []


class DiskWatch:
    """Evicts pods that use too much disk. ``pauses`` records each eviction, to delay the pod's replacement."""

    def __init__(self, node: NodeContext, pods: Callable[[], Collection[PodRun]], pauses: ReplacementPauses) -> None:
        self._node = node
        self._pods = pods
        self._pauses = pauses

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await next_beat(_PERIOD_S)
            await self.check()

    async def check(self) -> None:
        """Check once: evict the pods that exceed their limits, and one pod if the disk is nearly full."""
        disk = shutil.disk_usage(self._node.pods)
        threshold_bytes = int(disk.total * self._node.eviction_free_ratio())
        is_low = disk.free < threshold_bytes
        pods = {pod.id: pod for pod in self._pods() if not pod.stop.is_set()}
        uses = {
            pod.id: await asyncio.to_thread(disk_use, pod.folder, pod.logs)
            for pod in pods.values()
            if is_low or has_budget(pod.manifest)
        }
        over = {name: message for name, use in uses.items() if (message := overuse(pods[name].manifest, use))}
        if not over and is_low:
            on_disk = [PodOnDisk(id=name, use=use, load=_load(pods[name])) for name, use in uses.items()]
            name, message = pod_to_evict(
                on_disk, free_bytes=disk.free, threshold_bytes=threshold_bytes, removable_bytes=_REMOVABLE_BYTES
            )
            over = {name: message} if name else {}
        for name, message in over.items():
            await self._evict(pods[name], message)

    async def _evict(self, pod: PodRun, message: str) -> None:
        _log.warning("pod.evicted", extra={"pod": pod.key[1], "namespace": pod.key[0], "reason": message})
        # Before its replacement is created.
        self._pauses.evicted(lineage_of(pod.manifest), began_s=pod.began_s, at_s=now_s())
        write_pauses(self._pauses, self._node.evictions, now_s=now_s(), wall_s=wall_s())
        event = pod_event(pod.manifest, reason=EVICTED, message=message, now=stamp())
        try:
            await write_once(self._node.cluster, event)
        except ClusterError as error:
            # On a full disk nothing can be written; the end of the pod releases space.
            _log.warning("pod.eviction_not_written", extra={"pod": pod.key[1], "error": str(error)})
        await pod.evict(message, grace_s=_GRACE_S)


def _load(pod: PodRun) -> float:
    """The average number of cores that a pod's main processes have used since their start."""
    ticks = os.sysconf("SC_CLK_TCK")
    used_s, up_s = 0.0, now_s()
    for pid in pod.sessions.values():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # utime, stime and starttime of proc_pid_stat(5).
            used_s += (int(fields[11]) + int(fields[12])) / ticks / max(1.0, up_s - int(fields[19]) / ticks)
    return used_s
