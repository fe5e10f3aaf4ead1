"""Pods of one revision that get no requests for a while.

Input: requests that found a pod gone, pods that answer nothing, answers, and the time. Output: which pods are ejected now, and until
when.

A pod that is gone leaves the list of pods within some 50 ms, and one that is slow to listen must not wait long: its pause starts
small and doubles while the pod stays listed and unreachable. A silent pod hangs, which takes longer to end; its first answer ends
the pause.
"""

from collections.abc import Collection

import msgspec

from serving.traffic.backoff import backoff_s

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0
_SILENT_PAUSE_FIRST_S = 5.0
_SILENT_PAUSE_MAX_S = 60.0


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of a pod in a row since ``since_s``, and when its pause ends; None: it gets requests again, and one success clears it."""

    failure_count: int
    since_s: float
    until_s: float | None
    is_silent: bool


class EjectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """An ejection for people: the pod, and times in seconds since the epoch.

    ``until_wall_s`` is when it gets requests again; None: it does already, and has not answered one yet. ``is_silent`` says that
    it takes requests and answers nothing; otherwise it takes no connection. ``in_flight_count`` requests are inside it.
    """

    revision: str
    pod: str
    address: str
    is_silent: bool
    failure_count: int
    in_flight_count: int
    since_wall_s: float
    until_wall_s: float | None


class EjectedPods:
    """The ejected pods of one revision, by address."""

    __slots__ = ("ejections",)

    def __init__(self) -> None:
        self.ejections: dict[str, Ejection] = {}
        """Pods with failures, by address; empty nearly always, which the caller can see without a call."""

    def __repr__(self) -> str:
        return f"EjectedPods({', '.join(sorted(self.addresses)) or 'none'})"

    @property
    def addresses(self) -> set[str]:
        """Pods that get no requests now."""
        return {address for address, one in self.ejections.items() if one.until_s is not None}

    @property
    def silent_addresses(self) -> set[str]:
        """Those of them that answer nothing."""
        ejections = self.ejections.items()
        return {address for address, one in ejections if one.is_silent and one.until_s is not None}

    def failed(self, address: str, now_s: float) -> bool:
        """Eject a pod for 50 ms, then 100, 200 ... 1000 ms; whether it was not ejected before."""
        known = self.ejections.get(address)
        if known is not None and known.until_s is not None:
            return False
        count = known.failure_count + 1 if known else 1
        pause_s = backoff_s(count, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S)
        since_s = known.since_s if known else now_s
        self.ejections[address] = Ejection(
            failure_count=count, since_s=since_s, until_s=now_s + pause_s, is_silent=False
        )
        return True

    def silent(self, address: str, now_s: float) -> bool:
        """Eject a pod that answers nothing, for 5 s, then 10, 20 ... 60 s or until it answers; False if it is so already."""
        known = self.ejections.get(address)
        if known is not None and known.is_silent and known.until_s is not None:
            return False
        # What an unreachable pod has had before does not count.
        known = known if known is not None and known.is_silent else None
        count = known.failure_count + 1 if known else 1
        pause_s = backoff_s(count, first_s=_SILENT_PAUSE_FIRST_S, max_s=_SILENT_PAUSE_MAX_S)
        since_s = known.since_s if known else now_s
        self.ejections[address] = Ejection(
            failure_count=count, since_s=since_s, until_s=now_s + pause_s, is_silent=True
        )
        return True

    def succeeded(self, address: str) -> bool:
        """A pod has answered: forget its failures, unless a pause for an unreachable pod lasts; whether that ends a pause."""
        known = self.ejections.get(address)
        if known is None or not (known.until_s is None or known.is_silent):
            return False
        del self.ejections[address]
        return known.until_s is not None

    def keep(self, addresses: Collection[str]) -> None:
        """Forget all pods that are no longer listed."""
        self.ejections = {address: one for address, one in self.ejections.items() if address in addresses}

    def readmit(self, now_s: float) -> bool:
        """End the pauses that are over; whether there were any."""
        due = [address for address, one in self.ejections.items() if one.until_s is not None and one.until_s <= now_s]
        for address in due:
            self.ejections[address] = msgspec.structs.replace(self.ejections[address], until_s=None)
        return bool(due)

    def next_due_s(self) -> float | None:
        """Time at which ``readmit`` is next due; None while no pod is ejected."""
        return min((one.until_s for one in self.ejections.values() if one.until_s is not None), default=None)
