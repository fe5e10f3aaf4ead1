"""Ejects failing or silent pods of one revision: they get no requests for a while.

Input: the listed pods, failed connections to pods, responses, requests without a response, and the time. Output: which
pods are ejected now, and until when.

The pause of an unreachable pod starts short, and doubles while the pod stays listed and unreachable. It starts short
because a deleted pod is unlisted within some 50 ms, and a starting pod may listen soon. A silent pod hangs, which
usually lasts longer; its first response ends the pause.

Kubernetes lists a pod without a readiness probe as ready before its app listens. While such a pod has never responded,
``due_probes`` returns it when a connection to it is due. A successful connection ends its pause.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

from serving.core.traffic.backoff import backoff_s

# The first and the longest pause, in seconds.
_PAUSES_S = 0.05, 1.0
_SILENT_PAUSES_S = 5.0, 60.0
# A starting pod is tried after a tenth of the time since its first failure, for ten seconds.
_PROBE_SHARE, _PROBES_S, _PROBES_END_S = 0.1, (0.01, 0.1), 10.0
# Fewest waiting requests of a silent pod; a pod with fewer slots gets more time instead.
_REQUESTS_MIN = 3
_FEW_FACTOR = 4
# Decay of the slowest response time: 1 % per check, so half after 69 s.
_SLOWEST_DECAY = 0.99
# Factor over the slowest response time that a request must wait.
_SLOW_FACTOR = 2

RequestId = TypeVar("RequestId", bound=Hashable)


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """The consecutive failures of a pod since ``since_s``, and its pause, in which it gets no requests.

    The pause ends at ``until_s``; None: it has ended, but the pod has not responded yet. ``is_silent``: the pod accepts
    requests without responding; otherwise it accepts no connection.
    """

    failure_count: int
    since_s: float
    until_s: float | None
    is_silent: bool


class EjectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """An ejection for people: the pod, and times in seconds since the epoch.

    ``until_wall_s`` is when the pod gets requests again; None: the pod already gets requests, but has not responded
    yet. ``is_silent``: the pod accepts requests without responding; otherwise it accepts no connection.
    ``in_flight_count`` is the pod's number of requests in flight.
    """

    revision: str
    pod: str
    address: str
    is_silent: bool
    failure_count: int
    in_flight_count: int
    since_wall_s: float
    until_wall_s: float | None


class SilenceWatch(Generic[RequestId]):
    """Detects silent pods, which accept requests but do not respond, from the requests in flight of one revision."""

    __slots__ = ("_alive_s", "_begun", "_checked_s", "_pending", "_slowest_s")

    def __init__(self) -> None:
        # Requests without a response: their pod, and when they were first seen.
        self._pending: dict[RequestId, tuple[str, float]] = {}
        self._begun: set[RequestId] = set()
        self._alive_s: dict[str, float] = {}
        self._slowest_s = 0.0
        self._checked_s = 0.0

    def find_silent(
        self,
        in_flight: Mapping[RequestId, str],
        responded_s: Mapping[str, float],
        now_s: float,
        *,
        has_begun: Callable[[RequestId], bool],
        slots_per_pod: int,
        after_s: float,
    ) -> list[str]:
        """The silent pods, those with the most requests first.

        ``in_flight`` maps each request to its pod. ``responded_s`` is the time of each pod's last complete response.
        ``has_begun`` returns whether the response to a request has begun. ``slots_per_pod`` is 0 without a limit. A pod
        is silent after at least ``after_s`` seconds without a response.
        """
        begun = {request for request in in_flight if has_begun(request)}
        self._alive_s = {**self._alive_s, **responded_s} | {
            in_flight[request]: now_s for request in begun - self._begun
        }
        self._learn(in_flight, begun, now_s)
        self._pending = {
            request: self._pending.get(request, (pod, now_s))
            for request, pod in in_flight.items()
            if request not in begun
        }
        self._begun = begun
        self._checked_s = now_s
        needed = min(_REQUESTS_MIN, slots_per_pod or _REQUESTS_MIN)
        patience_s = max(after_s, self._slowest_s * _SLOW_FACTOR) * (1 if needed == _REQUESTS_MIN else _FEW_FACTOR)
        since_s = now_s - patience_s
        waiting = Counter(pod for pod, seen_s in self._pending.values() if seen_s <= since_s)
        self._alive_s = {pod: at_s for pod, at_s in self._alive_s.items() if at_s > since_s}
        if not self._alive_s:
            return []
        return [pod for pod, count in waiting.most_common() if count >= needed and pod not in self._alive_s]

    def _learn(self, in_flight: Mapping[RequestId, str], begun: set[RequestId], now_s: float) -> None:
        """Learn how long requests take until their response begins, from the requests since the last call.

        These are requests whose response has begun, and ended ones (some of which were cancelled) if their pod has
        responded since the last call.
        """
        self._slowest_s *= _SLOWEST_DECAY
        for request, (pod, seen_s) in self._pending.items():
            is_gone = request not in in_flight and self._alive_s.get(pod, 0.0) >= self._checked_s
            if is_gone or request in begun:
                self._slowest_s = max(self._slowest_s, now_s - seen_s)


class EjectedPods(Generic[RequestId]):
    """The ejected pods of one revision, by address. Only listed pods are ejected."""

    __slots__ = ("_listed", "_probes_s", "_silence", "ejections", "responded_s")

    def __init__(self) -> None:
        self.ejections: dict[str, Ejection] = {}
        """Pods with failures, by address; usually empty."""
        self.responded_s: dict[str, float] = {}
        """The time of each pod's last complete response."""
        self._listed: Collection[str] = ()
        # When a connection to each starting pod is due; infinity while one is tried.
        self._probes_s: dict[str, float] = {}
        self._silence = SilenceWatch[RequestId]()

    @property
    def addresses(self) -> set[str]:
        """Pods that currently get no requests."""
        return {address for address, ejection in self.ejections.items() if ejection.until_s is not None}

    @property
    def silent_addresses(self) -> set[str]:
        """The ejected pods that are silent."""
        ejections = self.ejections.items()
        return {address for address, ejection in ejections if ejection.is_silent and ejection.until_s is not None}

    def set_listed(self, addresses: Collection[str]) -> None:
        """Replace the list of pods, and drop the ejections of unlisted pods."""
        self._listed = addresses
        self.ejections = {address: ejection for address, ejection in self.ejections.items() if address in addresses}
        self.responded_s = {address: at_s for address, at_s in self.responded_s.items() if address in addresses}
        self._probes_s = {address: due_s for address, due_s in self._probes_s.items() if address in addresses}

    def failed(self, address: str, now_s: float, *, may_start: bool = False) -> bool:
        """Eject a pod for 50 ms, then 100, 200 ... 1000 ms; return False if it is already ejected or not listed.

        ``may_start``: the pod may be listed as ready before its app listens.
        """
        known = self.ejections.get(address)
        if address not in self._listed or (known is not None and known.until_s is not None):
            return False
        self._eject(address, now_s, known, is_silent=False)
        if may_start and address not in self.responded_s:
            self._probes_s[address] = now_s + _probe_pause_s(now_s - self.ejections[address].since_s)
        return True

    def probe_due_s(self) -> float | None:
        """When ``due_probes`` is next due; None while no pod is starting."""
        return min(self._probes_s.values(), default=None)

    def due_probes(self, now_s: float) -> list[str]:
        """The starting pods to which a connection is due."""
        addresses = [address for address, due_s in self._probes_s.items() if due_s <= now_s]
        self._probes_s |= dict.fromkeys(addresses, math.inf)
        return addresses

    def probed(self, address: str, now_s: float, *, is_open: bool) -> bool:
        """Process the result of a connection to a starting pod; return whether a pause ended."""
        known = self.ejections.get(address)
        if self._probes_s.pop(address, None) is None or known is None or known.until_s is None:
            return False
        if is_open:
            self.ejections[address] = msgspec.structs.replace(known, until_s=None)
        elif now_s - known.since_s < _PROBES_END_S:
            self._probes_s[address] = now_s + _probe_pause_s(now_s - known.since_s)
        return is_open

    def record_response(self, address: str, now_s: float) -> bool:
        """Record a response of a pod, and clear its failures; return whether this ended the pod's pause.

        A response does not end the pause of an unreachable pod.
        """
        self.responded_s[address] = now_s
        if not self.ejections or (known := self.ejections.get(address)) is None:
            return False
        if known.until_s is not None and not known.is_silent:
            return False
        del self.ejections[address]
        return known.until_s is not None

    def silent(self, address: str, now_s: float) -> bool:
        """Eject a silent pod for 5 s, then 10, 20 ... 60 s or until it responds; False if it is already ejected.

        At most half of the pods are ejected.
        """
        known = self.ejections.get(address)
        if known is not None and known.is_silent and known.until_s is not None:
            return False
        if address not in self._listed or len(self.addresses | {address}) * 2 > len(self._listed):
            return False
        # Responses from before the pod was unreachable do not count.
        self._eject(address, now_s, known if known is not None and known.is_silent else None, is_silent=True)
        return True

    def eject_silent(
        self,
        in_flight: Mapping[RequestId, str],
        now_s: float,
        *,
        has_begun: Callable[[RequestId], bool],
        slots_per_pod: int,
        after_s: float,
    ) -> set[str]:
        """Eject the pods that ``SilenceWatch.find_silent`` returns; return the newly ejected ones."""
        addresses = self._silence.find_silent(
            in_flight, self.responded_s, now_s, has_begun=has_begun, slots_per_pod=slots_per_pod, after_s=after_s
        )
        return {address for address in addresses if self.silent(address, now_s)}

    def readmit(self, now_s: float) -> bool:
        """End expired pauses; return whether any pause ended."""
        due = [
            address
            for address, ejection in self.ejections.items()
            if ejection.until_s is not None and ejection.until_s <= now_s
        ]
        for address in due:
            self.ejections[address] = msgspec.structs.replace(self.ejections[address], until_s=None)
        return bool(due)

    def pause_ends_s(self) -> float | None:
        """When ``readmit`` is next due; None while no pod is ejected."""
        return min(
            (ejection.until_s for ejection in self.ejections.values() if ejection.until_s is not None), default=None
        )

    def reports(
        self, revision: str, names: Mapping[str, str], in_flight: Mapping[str, int], *, now_s: float, wall_s: float
    ) -> list[EjectionReport]:
        """The ejections for status output.

        ``names`` and ``in_flight`` are by address; ``wall_s`` is the present time in seconds since the epoch.
        """
        ahead_s = wall_s - now_s
        return [
            EjectionReport(
                revision=revision,
                pod=names[address],
                address=address,
                is_silent=ejection.is_silent,
                failure_count=ejection.failure_count,
                in_flight_count=in_flight.get(address, 0),
                since_wall_s=ejection.since_s + ahead_s,
                until_wall_s=None if ejection.until_s is None else ejection.until_s + ahead_s,
            )
            for address, ejection in sorted(self.ejections.items())
        ]

    def _eject(self, address: str, now_s: float, known: Ejection | None, *, is_silent: bool) -> None:
        count = known.failure_count + 1 if known else 1
        first_s, max_s = _SILENT_PAUSES_S if is_silent else _PAUSES_S
        self.ejections[address] = Ejection(
            failure_count=count,
            since_s=known.since_s if known else now_s,
            until_s=now_s + backoff_s(count, first_s=first_s, max_s=max_s),
            is_silent=is_silent,
        )


def _probe_pause_s(passed_s: float) -> float:
    """The pause before the next connection to a starting pod, ``passed_s`` seconds after its first failure.

    It is a tenth of this time, within bounds: 10 ms after the first failure, 80 ms after 0.8 s.
    """
    shortest_s, longest_s = _PROBES_S
    return min(max(passed_s * _PROBE_SHARE, shortest_s), longest_s)
