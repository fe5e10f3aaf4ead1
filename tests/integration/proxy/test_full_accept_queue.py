"""An upstream whose accept queue is full: the kernel drops each attempt to connect until the upstream accepts."""

import asyncio
import contextlib
import socket
from pathlib import Path

from serving.proxy.http1.pool import PlainConnector
from tests.eventually import until

_SYN_SENT = "02"


def _waiting_ports(port: int) -> set[str]:
    """The local ports from which an attempt to connect to a port goes on now."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == _SYN_SENT}


async def test_a_dropped_attempt_is_repeated_before_the_kernel_does() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        filler = stack.enter_context(socket.socket())
        filler.connect(address)
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
