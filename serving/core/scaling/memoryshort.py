"""Decides which dormant pods to remove while the machine is short of memory.

Input: readings of the memory, the dormant pods, and each revision's demand. Output: ``Allowance`` records, which limit
a revision to fewer pods than it wants, even below its min-scale. The longest idle pods are removed first, as many as
should free the missing memory. A revision gets its pods again with its next request that needs them, or once memory has
been free for a while. Running pods stay.
"""

import math
from collections.abc import Iterable

import msgspec

from serving.core.model.knative import RevisionKey
from serving.core.model.quantity import format_percent
from serving.core.scaling.budget import Allowance, AllowanceReason, BudgetDemand
from serving.core.settings.dormancy import MemorySettings

# Time for chosen pods to free memory before more are chosen, in seconds; and the same while they still exist.
_SETTLE_S = 3.0
_HAND_OFF_S = 10.0
# Shortest idle time, in seconds: load reports are up to two seconds old, and would end the hold.
_UNUSED_S = 3.0
# Time of free memory before pods return without a request, in seconds, and its multiple of the minimum.
_CLEAR_S = 60.0
_CLEAR_RATIO = 2.0
_MIB = 2**20


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's memory, in bytes.

    ``stalled_ratio`` is the share of the last 10 s in which processes waited for memory.
    """

    total_bytes: int
    available_bytes: int
    stalled_ratio: float = 0.0


class DormantPod(msgspec.Struct, frozen=True, kw_only=True):
    """A dormant pod that may be removed.

    ``used_s`` is the end of its last request. ``scale`` is the revision's scale. ``memory_bytes`` is the memory that
    the removal may free.
    """

    key: RevisionKey
    name: str
    used_s: float
    scale: int
    memory_bytes: int


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The most pods of a revision after a removal, and the reason."""

    count: int
    why: str


class MemoryShortage:
    """The limits of all revisions during a memory shortage. Times are on one monotonic clock."""

    def __init__(self) -> None:
        self._holds: dict[RevisionKey, Hold] = {}
        # Chosen pods that still exist, by name.
        self._going: dict[str, RevisionKey] = {}
        self._chosen_s = -math.inf
        self._clear_since_s: float | None = None

    def __repr__(self) -> str:
        return f"MemoryShortage({len(self._holds)} held)"

    @property
    def limited_keys(self) -> frozenset[RevisionKey]:
        """The revisions with a limit."""
        return frozenset(self._holds)

    def update(
        self, reading: MemoryReading, pods: Iterable[DormantPod], *, settings: MemorySettings, now_s: float
    ) -> list[RevisionKey]:
        """Choose pods to remove, or lift the limit of a revision; return the revisions that need a new decision.

        Example: 800 MiB of 16 GiB must be available, and 760 MiB are. The longest idle pods are removed until they free
        40 MiB.
        """
        idlest_first = sorted(pods, key=lambda pod: (pod.used_s, pod.key, pod.name))
        names = {pod.name for pod in idlest_first}
        self._going = {name: key for name, key in self._going.items() if name in names and key in self._holds}
        text, missing_bytes = _shortage(reading, settings)
        if not text:
            return self._release(reading, settings=settings, now_s=now_s)
        self._clear_since_s = None
        if now_s - self._chosen_s < (_HAND_OFF_S if self._going else _SETTLE_S):
            return []
        chosen = []
        for pod in idlest_first:
            if pod.name in self._going or now_s - pod.used_s < _UNUSED_S:
                continue
            hold = self._holds.get(pod.key)
            count = max(0, (pod.scale if hold is None else min(hold.count, pod.scale)) - 1)
            why = f"{text}; {pod.name}, dormant, was last used {now_s - pod.used_s:.0f} s ago"
            self._holds[pod.key] = Hold(count=count, why=why)
            self._going[pod.name] = pod.key
            self._chosen_s = now_s
            chosen.append(pod.key)
            missing_bytes -= pod.memory_bytes
            if missing_bytes <= 0:
                break
        return chosen

    def allow(self, key: RevisionKey, demand: BudgetDemand) -> Allowance | None:
        """The allowed pods of a revision; None means no limit. The limit ends once requests need more pods than it allows."""
        hold = self._holds.get(key)
        if hold is None:
            return None
        if demand.in_use > hold.count:
            del self._holds[key]
            return None
        # A limit of 0 removes a revision without demand immediately, without waiting for its window.
        if demand.wanted <= hold.count and (demand.wanted or not demand.present):
            return None
        return Allowance(count=hold.count, wanted=demand.wanted, reason=AllowanceReason.MEMORY, budget=hold.why)

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision."""
        self._holds.pop(key, None)

    def _release(self, reading: MemoryReading, *, settings: MemorySettings, now_s: float) -> list[RevisionKey]:
        """End the limit of one revision once memory has been free for long enough."""
        least = _CLEAR_RATIO * settings.available_min_ratio * reading.total_bytes
        is_clear = (
            reading.available_bytes >= least and reading.stalled_ratio <= settings.stalled_max_ratio / _CLEAR_RATIO
        )
        if not is_clear or self._clear_since_s is None:
            self._clear_since_s = now_s if is_clear else None
            return []
        if now_s - self._clear_since_s < _CLEAR_S or not self._holds:
            return []
        key = next(iter(self._holds))
        del self._holds[key]
        return [key]


def _shortage(reading: MemoryReading, settings: MemorySettings) -> tuple[str, int]:
    """Why memory is short, and the number of missing bytes; ("", 0) if it is not short."""
    least_bytes = int(settings.available_min_ratio * reading.total_bytes)
    if reading.available_bytes < least_bytes:
        text = (
            f"{reading.available_bytes // _MIB} MiB of {reading.total_bytes // _MIB} are available, less than "
            f"memory.available-min {format_percent(settings.available_min_ratio)} %"
        )
        return text, least_bytes - reading.available_bytes
    # 0 disables the stall check.
    if 0 < settings.stalled_max_ratio < reading.stalled_ratio:
        text = (
            f"processes waited for memory {reading.stalled_ratio:.0%} of the last 10 s, more than "
            f"memory.stalled-max {format_percent(settings.stalled_max_ratio)} %"
        )
        return text, 0
    return "", 0
