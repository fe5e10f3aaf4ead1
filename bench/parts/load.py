"""Clients in a closed loop, with a connection for each request.

A closed loop: a client asks next when it has been answered. Only 127.0.0.1 is ever asked.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

_RESPONSE_WITHIN_S = 60.0


async def send_request(port: int, host: str, path: str = "/") -> tuple[str, str]:
    """Status line and body of one GET on a connection of its own. Raises ``OSError``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(_RESPONSE_WITHIN_S):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head.split(b"\r\n")[0].decode() or "closed without an answer", body.decode()


class Load:
    """Answers by status, and right ones by revision."""

    def __init__(self) -> None:
        self.statuses: collections.Counter[str] = collections.Counter()
        self.response_of: collections.Counter[str] = collections.Counter()

    @property
    def succeeded(self) -> int:
        """Requests that got a right answer."""
        return sum(self.response_of.values())

    @property
    def failed(self) -> int:
        """Requests that did not."""
        return sum(self.statuses.values()) - self.succeeded

    def failures(self) -> str:
        """What went wrong how often, for people."""
        wrong = {status: count for status, count in self.statuses.items() if " 200 " not in status}
        return ", ".join(f"{count} x {status}" for status, count in wrong.items()) or "none"

    async def work(self, port: int, host: str, path: str) -> None:
        """One client, until cancelled. Its last request, cut off by us, does not count."""
        while True:
            try:
                status, body = await send_request(port, host, path)
            except (OSError, TimeoutError) as error:
                status, body = type(error).__name__, ""
            words = body.split()
            is_right = " 200 " in status and words[:1] == ["Hello"]
            self.statuses[status if is_right or " 200 " not in status else "200, body cut off"] += 1
            if is_right:
                # "Hello world from REVISION, process N"
                self.response_of[words[3].rstrip(",")] += 1


@contextlib.asynccontextmanager
async def loaded(port: int, host: str, *, clients: int, path: str = "/") -> AsyncIterator[Load]:
    """Clients that ask for as long as the block lasts."""
    load = Load()
    tasks = [asyncio.create_task(load.work(port, host, path)) for _ in range(clients)]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
