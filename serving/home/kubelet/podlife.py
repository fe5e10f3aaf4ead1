"""The start and end of a pod: runs init containers, explains why a pod is not ready, drains it before its end.

Init containers run one after another, each until it exits with 0. A failed one is restarted after a pause, unless the
pod's ``restartPolicy`` is Never.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from serving.home.kubelet.container import ContainerKeeper, ContainerSpec
from serving.home.pods.podfolder import tail
from serving.home.pods.unready import Unready, explain, with_log
from serving.home.processes.processruntime import ProcessRuntime, TemplateProcess
from serving.net.aio.clock import now_s
from serving.net.aio.supervise import SupervisedTasks, TaskOwner

# After the queue-proxy has drained the app holds no request; it has this long to end by itself.
_APP_GRACE_S = 5.0
_PERIOD_S = 2.0
_CHECKS_BEFORE_EVENT = 3
# A pod that is not ready after a minute is looked at less often.
_CHECKS_OFTEN = 30
_PERIOD_LATER_S = 10.0


async def run_init_containers(
    runtime: ProcessRuntime,
    specs: Sequence[ContainerSpec],
    keepers: MutableMapping[str, ContainerKeeper],
    *,
    group: SupervisedTasks,
    stop: asyncio.Event,
    takes_over: bool,
) -> bool:
    """Run the init containers; return whether all exited with 0. False once one has finally failed, or ``stop`` is set.

    The one that runs is in ``keepers``, so that the caller ends it with the pod. ``takes_over``: an earlier control process began
    this, and containers that exited with 0 are not run again.
    """
    for spec in specs:
        if spec.first.is_over and spec.first.exit_code == 0:
            continue
        name, keeper = spec.start.name, ContainerKeeper(runtime, spec, stop)
        keepers[name] = keeper
        if takes_over:
            keeper.take_over()
        running = group.start(keeper.run(), name=name)
        async with TaskOwner() as tasks:
            stopping = tasks.start(stop.wait(), name="stop")
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return False
        del keepers[name]
        if keeper.state.exit_code:
            return False
    return True


async def drain(
    proxy: TemplateProcess | None, apps: Sequence[TemplateProcess], *, grace_s: float, is_draining: bool = False
) -> None:
    """Drain the queue-proxy, and end the apps as soon as it allows; return when all have ended.

    The queue-proxy allows that when no request runs. Open tunnels (websockets) hold the apps back only for a while: an app
    that gets SIGTERM can close them properly, through a queue-proxy that lives on until they have ended. ``is_draining``:
    an earlier control process has begun this.
    """
    end_s = now_s() + grace_s
    if proxy is not None and grace_s > 0:
        if not is_draining:
            # A second SIGTERM would cancel its drain.
            proxy.send(signal.SIGTERM)
        allowed: list[asyncio.Future[Any]] = [proxy.ended, proxy.drained]
        await asyncio.wait(allowed, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    if grace_s > 0:
        for app in apps:
            app.send(signal.SIGTERM)
    if proxy is not None:
        await proxy.outlast(end_s - now_s())
    await asyncio.gather(*(app.outlast(min(grace_s, _APP_GRACE_S)) for app in apps))


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
        self._containers = containers
        self._is_ready = is_ready
        self._on_change = on_change
        self._on_event = on_event
        self._seen: Unready | None = None
        self._seen_count = 0

    async def run(self) -> None:
        """Check repeatedly until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_PERIOD_S if looks < _CHECKS_OFTEN else _PERIOD_LATER_S)
            looks = 0 if self._is_ready() else looks + 1
            await self.check()

    async def check(self) -> None:
        """Check once and report a change."""
        unready, log = None, None
        if not self._is_ready():
            unready, log = await self._explain()
        if unready == self._seen:
            self._seen_count += 1
        else:
            self._seen = unready
            self._seen_count = 1
            self._on_change(unready and await self._with_log(unready, log))
        if unready and self._seen_count == _CHECKS_BEFORE_EVENT:
            whole = await self._with_log(unready, log)
            self._on_event(whole.reason, whole.message)

    async def _explain(self) -> tuple[Unready | None, Path | None]:
        for container in self._containers():
            observed = await container.observe()
            unready = observed and explain(observed)
            if unready:
                return unready, container.log
        return None, None

    async def _with_log(self, unready: Unready, log: Path | None) -> Unready:
        lines = await asyncio.to_thread(tail, log) if log else ""
        return Unready(reason=unready.reason, message=with_log(unready.message, lines))
