"""How the processes of a pod end: the queue-proxy drains, then the app ends, then the queue-proxy."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from serving.aio.clock import now_s
from serving.home.pods.runtime import PodProcess

# After the queue-proxy has drained the app holds no request; it has this long to end by itself.
_APP_GRACE_S = 5.0


async def drain(
    proxy: PodProcess | None, apps: Sequence[PodProcess], *, grace_s: float, is_draining: bool = False
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
