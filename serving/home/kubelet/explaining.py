"""Watches a pod that is not ready and reports why: in the pod's condition at once, as an Event when it lasts.

The reasons are decided in ``unready``. An app may take its time to start, so the condition changes with what is seen, and
the Event, which stays, waits for the third look that sees the same.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from serving.home.kubelet.container import ContainerKeeper
from serving.home.pods.podfolder import tail
from serving.home.pods.unready import Unready, explain, with_log

_PERIOD_S = 2.0
_LOOKS_BEFORE_EVENT = 3
# A pod that is not ready after a minute is looked at less often.
_LOOKS_OFTEN = 30
_PERIOD_LATER_S = 10.0


class ReadinessExplainer:
    """Explains one pod. ``on_change`` gets the present reason, or None; ``on_event`` gets reason and message of an Event."""

    def __init__(
        self,
        containers: Callable[[], Iterable[ContainerKeeper]],
        *,
        is_ready: Callable[[], bool],
        on_change: Callable[[Unready | None], None],
        on_event: Callable[[str, str], None],
    ) -> None:
        self._containers, self._is_ready = containers, is_ready
        self._on_change, self._on_event = on_change, on_event
        self._seen: Unready | None = None
        self._seen_count = 0

    def __repr__(self) -> str:
        return f"ReadinessExplainer({self._seen}, seen {self._seen_count} times)"

    async def run(self) -> None:
        """Look again and again until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_PERIOD_S if looks < _LOOKS_OFTEN else _PERIOD_LATER_S)
            looks = 0 if self._is_ready() else looks + 1
            await self.look()

    async def look(self) -> None:
        """Look once."""
        found, log = None, None
        if not self._is_ready():
            found, log = await self._explain()
        if found == self._seen:
            self._seen_count += 1
        else:
            self._seen, self._seen_count = found, 1
            self._on_change(found and await self._with_log(found, log))
        if found and self._seen_count == _LOOKS_BEFORE_EVENT:
            whole = await self._with_log(found, log)
            self._on_event(whole.reason, whole.message)

    async def _explain(self) -> tuple[Unready | None, Path | None]:
        for container in self._containers():
            observed = await container.observe()
            found = observed and explain(observed)
            if found:
                return found, container.log
        return None, None

    async def _with_log(self, unready: Unready, log: Path | None) -> Unready:
        lines = await asyncio.to_thread(tail, log) if log else ""
        return Unready(reason=unready.reason, message=with_log(unready.message, lines))
