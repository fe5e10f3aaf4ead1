"""Tracks activators that have not confirmed a Route, and skips unresponsive ones.

Input: the activators' responses with their times. Output: the activators to query again. An activator without a
response for ``SILENT_S`` is skipped, so that it does not delay a Route: it is frozen or gone, and its readiness probe
removes it from the endpoints. An activator that responds with another digest is queried until it serves the Route. The
module uses no clock.
"""

from collections.abc import Collection

from serving.core.traffic.backoff import backoff_s

SILENT_S = 10.0
"""Silence after which an activator is skipped, in seconds: longer than a restart, shorter than people's patience."""

_RETRY_FIRST_S = 0.01
_RETRY_MAX_S = 1.0


class ActivatorReplies:
    """When each activator's silence began. Addresses that are no longer queried are dropped."""

    __slots__ = ("_silences",)

    def __init__(self) -> None:
        self._silences: dict[str, float] = {}

    def record_reply(self, address: str) -> None:
        """Record a reply of the activator, whatever its content."""
        self._silences.pop(address, None)

    def record_silence(self, address: str, *, now_s: float) -> None:
        """Record that the activator did not reply."""
        self._silences.setdefault(address, now_s)

    def is_skipped(self, address: str, *, now_s: float) -> bool:
        """Whether the activator has been silent for too long."""
        since_s = self._silences.get(address)
        return since_s is not None and now_s - since_s >= SILENT_S

    def retain(self, addresses: Collection[str]) -> None:
        """Keep these activators, and drop all others."""
        for address in self._silences.keys() - set(addresses):
            del self._silences[address]


def retry_delay_s(tries: int) -> float:
    """Pause before the next round of queries, in seconds: 10 ms, doubled each round up to 1 s."""
    return backoff_s(tries + 1, first_s=_RETRY_FIRST_S, max_s=_RETRY_MAX_S)
