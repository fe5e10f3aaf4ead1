"""Virtual time: a heap of what is going to happen. Nothing waits; the clock jumps to the next event."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Engine:
    """Actions in the order of their times; those of one time in the order in which they were planned."""

    __slots__ = ("_heap", "_planned_count", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._planned_count = 0

    def at(self, at_s: float, action: Action) -> None:
        """Plan an action; one in the past happens next."""
        self._planned_count += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._planned_count, action))

    def every(self, period_s: float, action: Action) -> None:
        """Plan an action at once and each ``period_s`` seconds after."""

        def beat() -> None:
            action()
            self.at(self.now_s + period_s, beat)

        self.at(self.now_s, beat)

    def run(self, until_s: float) -> None:
        """Let everything happen that is planned up to ``until_s``, which is the time afterwards."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = until_s
