"""The activator and the queue-proxy, each with one scripted upstream, for tests of both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any

import msgspec

from serving.core.settings.http import HttpSettings
from tests.eventually import until
from tests.integration.activator_stage import PodServer, staged
from tests.integration.proxy.peers import Backend, Link, Script, backed, get, ok
from tests.integration.proxy.pods import BELIEVED, forwarding

HOST = b"hello.default.localhost"
# Settings of a queue-proxy, by their field names in a Revision.
_OF_A_REVISION = {
    "request_timeout_s": "timeoutSeconds",
    "response_start_timeout_s": "responseStartTimeoutSeconds",
    "idle_timeout_s": "idleTimeoutSeconds",
}


class Running:
    """A running daemon. ``level`` returns the number of its requests, ``page`` its metrics page."""

    def __init__(
        self,
        backend: Backend,
        address: tuple[str, int],
        level: Callable[[], int],
        page: Callable[[], Awaitable[str]],
    ) -> None:
        self.backend = backend
        self.address = address
        self.level = level
        self.page = page
        self._links: list[Link] = []

    async def client(self) -> Link:
        """Open a connection to the daemon."""
        return await self.client_of(None)

    async def client_of(self, own: str | None) -> Link:
        """Open a connection to the daemon from a local address."""
        link = await Link.to(self.address, own=own)
        self._links.append(link)
        return link

    async def close(self) -> None:
        """Close all connections to the daemon."""
        for link in self._links:
            await link.closed()


class _Scripted(PodServer):
    """A pod that runs a script."""

    def __init__(self, backend: Backend) -> None:
        super().__init__("p")
        self._backend = backend

    @property
    def port(self) -> int:
        """The port of its listener."""
        return self._backend.address[1]


@contextlib.asynccontextmanager
async def _activator(
    script: Script = ok,
    slots: int = 0,
    times: Mapping[str, float] = MappingProxyType({}),
    **limits: Any,  # noqa: ANN401
) -> AsyncIterator[Running]:
    async with backed(script) as backend, staged(http=HttpSettings(**limits)) as stage:
        spec: dict[str, Any] = {_OF_A_REVISION[name]: value for name, value in times.items()}
        await stage.service(slots=slots, **spec)
        await stage.pod("p", server=_Scripted(backend))
        await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "hello-00001")))

        async def page() -> str:
            return stage.activator.ingress.metrics.page.text("")

        running = Running(backend, stage.public, lambda: stage.level, page)
        try:
            yield running
        finally:
            await running.close()


@contextlib.asynccontextmanager
async def _queue_proxy(
    script: Script = ok,
    slots: int = 0,
    times: Mapping[str, float] = MappingProxyType({}),
    **limits: Any,  # noqa: ANN401
) -> AsyncIterator[Running]:
    http = msgspec.to_builtins(HttpSettings(**limits))
    knobs: dict[str, Any] = {"container_concurrency": slots, "http": http, **times}
    async with forwarding(script, **knobs) as queue_proxy:

        async def page() -> str:
            return (await queue_proxy.get_admin(get(b"/metrics", BELIEVED)))[1].decode()

        async def level() -> int:
            return int((await page()).split("queueproxy_requests_inside ")[1].split("\n")[0])

        known = {"level": 0}

        async def watch() -> None:
            while True:
                known["level"] = await level()
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        running = Running(queue_proxy.app, queue_proxy.requests, lambda: known["level"], page)
        try:
            yield running
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await running.close()


Daemon = Callable[..., AbstractAsyncContextManager[Running]]
DAEMONS: dict[str, Daemon] = {"activator": _activator, "queue-proxy": _queue_proxy}
