"""An upstream whose accept queue is full: the kernel drops each attempt to connect until the upstream accepts."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http1.pool import AppConnector, PlainConnector, Pool
from tests.eventually import until
from tests.unit.net.proxy.waiting import Waiting

_SYN_SENT = "02"


def _waiting_ports(port: int) -> set[str]:
    """The local ports of connections to a port that are in SYN_SENT now."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == _SYN_SENT}


def _full_listener(stack: contextlib.ExitStack) -> socket.socket:
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    filler = stack.enter_context(socket.socket())
    filler.connect(listener.getsockname())
    return listener


async def test_dropped_connection_attempt_is_retried_from_new_port() -> None:
    with contextlib.ExitStack() as stack:
        listener = _full_listener(stack)
        address = listener.getsockname()
        seen: set[str] = set()

        async def is_repeated() -> bool:
            seen.update(_waiting_ports(address[1]))
            return len(seen) >= 3

        connecting = asyncio.create_task(PlainConnector().connect(asyncio.Protocol, address))
        await until(is_repeated)
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        stack.enter_context((await loop.sock_accept(listener))[0])
        stack.enter_context((await loop.sock_accept(listener))[0])
        assert isinstance(await connecting, asyncio.Protocol)


async def test_pool_opens_one_connection_at_a_time_to_app() -> None:
    with contextlib.ExitStack() as stack:
        listener = _full_listener(stack)
        address = listener.getsockname()
        pool = Pool(HttpSettings(upstream_connect_max_s=60.0), clock=time.monotonic)
        pool.connector = AppConnector()
        waiters = [Waiting() for _ in range(20)]
        for waiter in waiters:
            pool.connect(address, waiter)
        at_once: list[int] = []
        seen: set[str] = set()

        async def is_repeated() -> bool:
            now = _waiting_ports(address[1])
            at_once.append(len(now))
            seen.update(now)
            return len(seen) >= 3

        await until(is_repeated)
        assert max(at_once) == 1
        listener.setblocking(False)
        loop = asyncio.get_running_loop()

        async def accept_all() -> None:
            # On a busy machine, an attempt that the pool has abandoned can also be established.
            while True:
                stack.enter_context((await loop.sock_accept(listener))[0])

        accepting = asyncio.create_task(accept_all())
        await until(lambda: all(waiter.upstream is not None for waiter in waiters))
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        for waiter in waiters:
            assert waiter.upstream is not None
            waiter.upstream.drop()
        pool.close()
