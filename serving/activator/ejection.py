"""Pods of one revision that get no requests for a while, because a request found them gone.

Input: requests that found a pod gone or that it answered, and the time. Output: which pods are ejected now, and until when. A
pod that is deleted leaves the list of pods within some 50 ms; one that is slow to listen must not wait long, so the pause
starts small and doubles while the pod stays listed and unreachable.
"""

from collections.abc import Collection

import msgspec

__all__ = ["EjectedPods"]

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0


class _Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of a pod in a row, and when its pause ends; None: it gets requests again, and one success clears it."""

    failure_count: int
    until_s: float | None


class EjectedPods:
    """The ejected pods of one revision, by address."""

    __slots__ = ("ejections",)

    def __init__(self) -> None:
        self.ejections: dict[str, _Ejection] = {}
        """Pods with failures, by address; empty nearly always, which the caller can see without a call."""

    def __repr__(self) -> str:
        return f"EjectedPods({', '.join(sorted(self.addresses)) or 'none'})"

    @property
    def addresses(self) -> set[str]:
        """Pods that get no requests now."""
        return {address for address, one in self.ejections.items() if one.until_s is not None}

    def failed(self, address: str, now_s: float) -> bool:
        """Eject a pod for 50 ms, then 100, 200 ... 1000 ms; whether it was not ejected before."""
        known = self.ejections.get(address)
        if known is not None and known.until_s is not None:
            return False
        count = known.failure_count + 1 if known else 1
        pause_s = min(_PAUSE_FIRST_S * 2 ** (count - 1), _PAUSE_MAX_S)
        self.ejections[address] = _Ejection(failure_count=count, until_s=now_s + pause_s)
        return True

    def succeeded(self, address: str) -> None:
        """Forget the failures of a pod that answers; one that is ejected stays so until its pause ends."""
        known = self.ejections.get(address)
        if known is not None and known.until_s is None:
            del self.ejections[address]

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
        """When ``readmit`` is next due; None while no pod is ejected."""
        return min((one.until_s for one in self.ejections.values() if one.until_s is not None), default=None)
