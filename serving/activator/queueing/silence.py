"""Which pods answer nothing although other pods of their revision do.

Input: at each look the requests in flight, which of them have no byte of an answer yet, and when each pod last ended a request
with an answer. Output: the pods to eject. A pod is silent if enough of its requests have waited for a time, it has answered no
request in that time, and another pod has. The time grows with the slowest answers that were seen, so that a slow service is not
taken for a silent one. At most half of the pods are ejected.

The idea is Envoy's outlier detection. It counts failures; a stopped process produces none, so this counts the time to the first
byte. It looks once a second and costs a request nothing in between.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

RequestId = TypeVar("RequestId", bound=Hashable)

# As many requests of a pod must wait; a pod of fewer slots is given more time instead.
_REQUESTS_MIN = 3
_FEW_FACTOR = 4
# With each look the slowest answer counts 1 % less: half of it after 69 s.
_SLOWEST_DECAY = 0.99
# How much longer than the slowest answer so far a request must wait.
_SLOW_FACTOR = 2


class SilenceWatch(Generic[RequestId]):
    """The requests of one revision as they were at the last look."""

    __slots__ = ("_alive_s", "_begun", "_looked_s", "_slowest_s", "_unanswered")

    def __init__(self) -> None:
        # Requests without an answer: their pod, and when they were first seen.
        self._unanswered: dict[RequestId, tuple[str, float]] = {}
        self._begun: set[RequestId] = set()
        self._alive_s: dict[str, float] = {}
        self._slowest_s = 0.0
        self._looked_s = 0.0

    def __repr__(self) -> str:
        return f"SilenceWatch({len(self._unanswered)} without an answer, slowest {self._slowest_s:g} s)"

    def look(
        self,
        in_flight: Mapping[RequestId, str],
        answered_s: Mapping[str, float],
        now_s: float,
        *,
        has_begun: Callable[[RequestId], bool],
        slots_per_pod: int,
        after_s: float,
    ) -> list[str]:
        """The silent pods, those with the most requests first.

        ``in_flight`` is the pod of each request, ``answered_s`` when each pod last ended a request with an answer.
        ``has_begun`` says whether the answer to a request has begun. ``slots_per_pod`` is 0 without a limit.
        """
        begun = {request for request in in_flight if has_begun(request)}
        self._alive_s = {**self._alive_s, **answered_s} | {in_flight[one]: now_s for one in begun - self._begun}
        self._learn(in_flight, begun, now_s)
        self._unanswered = {
            request: self._unanswered.get(request, (pod, now_s))
            for request, pod in in_flight.items()
            if request not in begun
        }
        self._begun, self._looked_s = begun, now_s
        needed = min(_REQUESTS_MIN, slots_per_pod or _REQUESTS_MIN)
        patience_s = max(after_s, self._slowest_s * _SLOW_FACTOR) * (1 if needed == _REQUESTS_MIN else _FEW_FACTOR)
        since_s = now_s - patience_s
        waiting = Counter(pod for pod, seen_s in self._unanswered.values() if seen_s <= since_s)
        self._alive_s = {pod: at_s for pod, at_s in self._alive_s.items() if at_s > since_s}
        if not self._alive_s:
            return []
        return [pod for pod, count in waiting.most_common() if count >= needed and pod not in self._alive_s]

    def _learn(self, in_flight: Mapping[RequestId, str], begun: set[RequestId], now_s: float) -> None:
        """Note how long requests took that were answered since the last look.

        A request that is gone was answered, or given up by its client: it counts if its pod has answered at all since then.
        """
        self._slowest_s *= _SLOWEST_DECAY
        for request, (pod, seen_s) in self._unanswered.items():
            is_gone = request not in in_flight and self._alive_s.get(pod, 0.0) >= self._looked_s
            if is_gone or request in begun:
                self._slowest_s = max(self._slowest_s, now_s - seen_s)
