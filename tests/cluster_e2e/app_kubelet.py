"""A kubelet for the pods of applications: each container is a server of this process at each of its ports.

A pod is said to be at 10.79.x.y and is at 127.79.x.y: ``OVERRIDE`` lets the activators reach it. It responds with its
name, after the seconds of a path ``/sleep/SECONDS``.
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object, name_of
from tests.cluster_e2e.stage import Stage
from tests.cluster_e2e.status_kubelet import StatusKubelet

OVERRIDE = {"SERVING_ACTIVATOR_POD_ADDRESS_OVERRIDE": "10.=127."}


class AppKubelet(StatusKubelet):
    """Runs until cancelled. A pod listens ``start_s`` after it is bound; ``ready_s`` is when it was Ready in the API.

    Pods of ``stuck`` Deployments never listen.
    """

    def __init__(self, stage: Stage, *, start_s: float) -> None:
        super().__init__(stage.cluster, stage.server.node)
        self.ready_s: dict[str, float] = {}
        self.stuck: set[str] = set()
        self._start_s = start_s
        self._servers: dict[str, list[asyncio.Server]] = {}
        self._running: Counter[str] = Counter()

    async def _start(self, pod: Object) -> None:
        name, number = name_of(pod), next(self._numbers)
        if any(name.startswith(f"{deployment}-") for deployment in self.stuck):
            return
        place = f"79.{number // 250}.{number % 250 + 1}"
        listed = itertools.chain.from_iterable(container.get("ports", ()) for container in pod["spec"]["containers"])
        ports = {entry["containerPort"] for entry in listed if entry.get("protocol", "TCP") == "TCP"}
        await asyncio.sleep(self._start_s)
        serve = self._app(name)
        self._servers[name] = [await asyncio.start_server(serve, f"127.{place}", port, backlog=512) for port in ports]
        self.ready_s[name] = time.monotonic()
        with contextlib.suppress(NotFound):
            await self._notify(pod, ready=True, address=f"10.{place}")
            # A watch may deliver it earlier, and a request may be answered by then.
            self.ready_s[name] = time.monotonic()

    async def _end(self, key: tuple[str, str], uid: str) -> None:
        """End as an app does that drains: no new connection, then the requests inside."""
        for server in self._servers.pop(key[1], ()):
            server.close()
        while self._running[key[1]]:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.02)
        await super()._end(key, uid)

    def _app(self, name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self._running[name] += 1
                    try:
                        await asyncio.sleep(float(head.split(b" ")[1].partition(b"/sleep/")[2] or 0))
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name.encode()))
                        await writer.drain()
                    finally:
                        self._running[name] -= 1
            writer.close()

        return serve
