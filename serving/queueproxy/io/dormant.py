"""Freezes the app of an idle pod, and thaws it when a request arrives.

``serving.queueproxy.dormancy`` decides. This module asks for a decision when a request has ended or a timer is due, and
executes it with a ``Freezer``. It makes no call outside of the pod. An arriving request thaws the app and is forwarded
in the same turn of the loop, or waits until the app's wake call has ended.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.dormancy import (
    Activity,
    AppEvent,
    DormancyState,
    Phase,
    after_event,
    sleep_due_s,
    with_awake_until,
)
from serving.queueproxy.io.freezers import Freezer, freezer_of
from serving.queueproxy.podspec import PodSpec

_LOG = logging.getLogger(__name__)

WAKE_HOLD_S = 30.0
"""How long an order to wake keeps the app running, in seconds; repeated orders extend it."""
# Delays the report of a thaw, which wakes several other processes: on a small machine the app would compete with them.
# Shorter than the shortest idle time before a freeze.
_REPORT_LAG_S = 0.05
# A pod that becomes dormant sooner is ready, so it needs no probe.
_PROBE_LAG_S = 0.5


class IdlePod(Protocol):
    """The activity that keeps an app running. ``PodRequests`` implements it."""

    is_ready: bool
    is_draining: bool

    @property
    def inside_count(self) -> int:
        """Requests that run or wait, including tunnels."""
        ...


class Dormancy:
    """The dormancy of one pod.

    ``pod`` reports the activity that keeps the pod awake, except probes. ``on_sleep`` is called before a freeze,
    ``on_wake`` after a thaw. ``on_change`` is called with True when the pod has become dormant. It is called with False
    a moment after a thaw, unless the pod is dormant again.
    """

    def __init__(
        self,
        spec: PodSpec,
        *,
        clock: Callable[[], float],
        pod: IdlePod,
        on_sleep: Callable[[], None],
        on_wake: Callable[[], None],
        on_change: Callable[[bool], None],
    ) -> None:
        assert spec.dormant_after_s is not None
        self._after_s = spec.dormant_after_s
        self._clock = clock
        self._pod = pod
        self._on_sleep = on_sleep
        self._on_change = on_change
        self._on_wake = on_wake
        self._report: asyncio.TimerHandle | None = None
        # A replacement process starts, and must not be frozen meanwhile.
        self.freezer: Freezer = freezer_of(spec, on_exit=lambda: self.wake(is_held=True))
        from serving.queueproxy.io.pageout import PageOuts  # noqa: PLC0415 - the kubelet imports this module too

        self._page_outs = PageOuts(spec)
        self._state = DormancyState(idle_since_s=clock())
        self._probe_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskOwner()
        self._work: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []
        self.awake = asyncio.Event()
        """Set while the app runs."""
        self.awake.set()
        self.freeze_count = self.thaw_count = self.refused_count = 0

    def __repr__(self) -> str:
        return f"Dormancy({self._state.phase}, {self.freezer.name}, {len(self._waiting)} waiting)"

    @property
    def is_dormant(self) -> bool:
        """Whether the app is dormant."""
        return self._state.phase is Phase.DORMANT

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended, or since the app was last woken."""
        return max(0.0, self._clock() - self._state.idle_since_s)

    def page(self) -> list[str]:
        """The lines about dormancy on the metrics page."""
        return [
            f"queueproxy_dormant {int(self.is_dormant)}",
            f"queueproxy_freezes_total {self.freeze_count}",
            f"queueproxy_freezes_refused_total {self.refused_count}",
            f"queueproxy_thaws_total {self.thaw_count}",
            *self._page_outs.page(),
        ]

    async def recover(self) -> None:
        """Thaw processes that an earlier queue-proxy of this pod has frozen."""
        try:
            await self.freezer.recover()
        except OSError as error:
            _LOG.warning("dormant.not_recovered", extra={"error": str(error)})

    def run(self, go: Callable[[], None]) -> None:
        """Call ``go`` once the app runs: immediately, or after it has woken."""
        if self._state.phase is Phase.RUNNING:
            go()
            return
        self._waiting.append(go)
        self.wake()

    def wake(self, *, is_held: bool = False) -> None:
        """Thaw the app, and keep it awake for a while if ``is_held``."""
        now_s, phase = self._clock(), self._state.phase
        self._state = after_event(self._state, AppEvent.DEMAND, now_s)
        if is_held:
            self._state = with_awake_until(self._state, now_s + WAKE_HOLD_S)
        if phase in (Phase.FREEZING, Phase.DORMANT):
            self._thaw()
        elif phase is Phase.RUNNING:
            self.freeze_if_due()

    @contextlib.asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """Wait until the app has run for a moment, and keep it running for a probe."""
        while not self.awake.is_set():
            await self.awake.wait()
            # The app handles the request that woke it first.
            await asyncio.sleep(_PROBE_LAG_S)
        self._probe_count += 1
        try:
            yield
        finally:
            self._probe_count -= 1
            self.freeze_if_due()

    def went_idle(self) -> None:
        """Record the end of the last request."""
        if self._state.phase is Phase.RUNNING:
            self._state = after_event(self._state, AppEvent.DEMAND, self._clock())
            self.freeze_if_due()

    def freeze_if_due(self) -> None:
        """Freeze the app if the freeze is due; otherwise check again at the due time."""
        if self._timer is not None:
            return
        pod = self._pod
        activity = Activity(
            request_count=pod.inside_count,
            probe_count=self._probe_count,
            is_ready=pod.is_ready,
            is_draining=pod.is_draining,
        )
        now_s = self._clock()
        due_s = sleep_due_s(self._state, activity, after_s=self._after_s)
        if due_s <= now_s:
            self._freeze(now_s)
        elif due_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(due_s - now_s, self._timer_due)

    async def end(self) -> None:
        """Thaw the app and stop freezing it. SIGTERM follows, which a frozen app could not handle."""
        self._state = with_awake_until(self._state, math.inf)
        self.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.awake.wait()

    def _timer_due(self) -> None:
        self._timer = None
        self.freeze_if_due()

    def _freeze(self, now_s: float) -> None:
        self._state = after_event(self._state, AppEvent.IDLE, now_s)
        self.awake.clear()
        self._on_sleep()
        self._work = self._tasks.start(self._freezing(), name="freeze")

    async def _freezing(self) -> None:
        try:
            await self.freezer.freeze()
        except OSError as error:
            _LOG.warning("dormant.refused", extra={"means": self.freezer.name, "error": str(error)})
            self.refused_count += 1
            self._happened(AppEvent.REFUSED)
        else:
            self._happened(AppEvent.FROZEN)

    def _happened(self, event: AppEvent) -> None:
        """Record that a freeze succeeded or was refused; do nothing if a request has woken the app meanwhile."""
        if self._state.phase is not Phase.FREEZING:
            return
        self._state = after_event(self._state, event, self._clock())
        if event is AppEvent.REFUSED:
            self._thaw()
            return
        self.freeze_count += 1
        if self._report is not None:
            self._report.cancel()
            self._report = None
        self._on_change(True)
        if self.freezer.is_instant and not self.freezer.unfrozen:
            self._page_outs.expect()

    def _thaw(self) -> None:
        """Thaw the app. Some freezers thaw immediately; others only begin to thaw."""
        self._page_outs.cancel()
        work = self._work
        if not self.freezer.is_instant:
            self._work = self._tasks.start(self._thawing(work), name="thaw")
            return
        if work is not None and work is not _current_task():
            work.cancel()
        try:
            self.freezer.thaw()
        except OSError as error:
            _LOG.error("dormant.not_thawed", extra={"means": self.freezer.name, "error": str(error)})
        self._thawed()

    async def _thawing(self, freezing: "asyncio.Task[None] | None") -> None:
        """Wake an app by an HTTP call, after the call that makes it sleep has ended."""
        if freezing is not None:
            await asyncio.wait((freezing,))
        try:
            await self.freezer.wake()
        except OSError as error:
            _LOG.error("dormant.not_thawed", extra={"means": self.freezer.name, "error": str(error)})
        self._thawed()

    def _thawed(self) -> None:
        self._state = after_event(self._state, AppEvent.THAWED, self._clock())
        self.awake.set()
        self.thaw_count += 1
        waiting, self._waiting = self._waiting, []
        for go in waiting:
            go()
        self._on_wake()
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(_REPORT_LAG_S, self._report_awake)
        self.freeze_if_due()

    def _report_awake(self) -> None:
        self._report = None
        self._on_change(False)


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
