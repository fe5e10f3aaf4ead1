"""Watches a machine's memory while pods are dormant, and triggers decisions by ``scaling.memoryshort``."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from serving.autoscaler.entry import RevisionEntry
from serving.core.model.knative import RevisionKey
from serving.core.scaling.memoryshort import DormantPod, MemoryReading, MemoryShortage
from serving.core.settings.dormancy import MemorySettings
from serving.net.aio.clock import now_s
from serving.net.aio.machinememory import CGROUPS, NO_BOUND, amounts_of, cgroup_folders, held_bytes, memory_bound
from serving.net.aio.periodic import next_beat

_log = logging.getLogger("autoscaler")

_PERIOD_S = 1.0
_STALLED = "some avg10="


class MemoryWatch:
    """Watches memory for the dormant pods of ``entries``.

    ``on_change`` is called for each revision whose limit changes.
    """

    def __init__(
        self,
        entries: Mapping[RevisionKey, RevisionEntry],
        *,
        settings: Callable[[], MemorySettings],
        on_change: Callable[[RevisionKey], None],
    ) -> None:
        self.shortage = MemoryShortage()
        self._entries = entries
        self._settings = settings
        self._on_change = on_change
        self._failure = ""

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await next_beat(_PERIOD_S)
            self.check()

    def check(self) -> None:
        """Check once. Memory is read only while dormant or limited pods exist."""
        pods = [pod for entry in self._entries.values() for pod in _dormant_pods(entry)]
        for key in self.shortage.limited_keys - self._entries.keys():
            self.shortage.forget(key)
        if not pods and not self.shortage.limited_keys:
            return
        settings = self._settings()
        try:
            reading = read_memory(Path(settings.proc_folder))
        except (OSError, ValueError) as error:
            if self._failure != (text := str(error)):
                _log.warning("memory.unread", extra={"folder": settings.proc_folder, "error": text})
            self._failure = text
            return
        self._failure = ""
        for key in self.shortage.update(reading, pods, settings=settings, now_s=now_s()):
            self._on_change(key)


def read_memory(proc: Path, cgroups: Path = CGROUPS) -> MemoryReading:
    """Read the memory of the machine, or of the cgroup with the smallest available part.

    Raises:
        OSError: when a file cannot be read.
        ValueError: when a file is not as the kernel writes it.
    """
    amounts = amounts_of(proc / "meminfo")
    if missing := {"MemTotal", "MemAvailable"} - amounts.keys():
        raise ValueError(f"{proc / 'meminfo'} has no {', '.join(sorted(missing))}")
    bounds = ((folder, memory_bound(folder)) for folder in cgroup_folders(proc, cgroups))
    readings = [
        (amounts["MemTotal"] * 1024, amounts["MemAvailable"] * 1024),
        *((int(bound), max(0, int(bound) - held_bytes(folder))) for folder, bound in bounds if bound < NO_BOUND),
    ]
    total_bytes, available_bytes = min(readings, key=lambda reading: reading[1] / max(1, reading[0]))
    return MemoryReading(
        total_bytes=total_bytes, available_bytes=available_bytes, stalled_ratio=_stalled_ratio(proc / "pressure/memory")
    )


def _stalled_ratio(path: Path) -> float:
    """The share of the last 10 s in which a process waited for memory (PSI); 0 if the kernel does not measure it."""
    try:
        text = path.read_text()
    except OSError:
        return 0.0
    return float(text.partition(_STALLED)[2].split()[0]) / 100 if _STALLED in text else 0.0


def _dormant_pods(entry: RevisionEntry) -> Iterator[DormantPod]:
    """The ready dormant pods of a revision, by their last reports."""
    revision, deployment = entry.revision, entry.deployment
    if entry.scaler is None or revision is None or deployment is None:
        return
    for name, stat in entry.scaler.pods.items():
        if stat.is_dormant and name in entry.ready_names:
            yield DormantPod(
                key=revision.key,
                name=name,
                used_s=stat.at_s - stat.idle_s,
                scale=deployment.replica_count,
                memory_bytes=revision.pod_bytes,
            )
