"""Apps of users whose traffic failed only behind a proxy."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from serving.core.settings.http import HttpSettings
from serving.net.proxy.server.listener import HttpServer
from tests.integration.proxy.peers import Forwarder, Link, free_socket, get

INPUTS = Path(__file__).with_name("inputs")
UPLOAD = bytes(20_000_000)
UPLOAD_COUNT = 5


@contextlib.asynccontextmanager
async def behind_proxy(name: str) -> AsyncIterator[tuple[str, int]]:
    """The address of a proxy before an app of ``inputs``."""
    with free_socket() as bound:
        app: tuple[str, int] = bound.getsockname()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(INPUTS / f"{name}.py"),
        env={**os.environ, "PORT": str(app[1])},
        stderr=asyncio.subprocess.DEVNULL,
    )
    server = HttpServer(HttpSettings())
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    await (await Link.to(app)).closed()
                    break
                await asyncio.sleep(0.05)
        yield await server.listen(("127.0.0.1", 0), Forwarder(app))
    finally:
        await server.finish(grace_s=0)
        process.kill()
        await process.wait()


async def upload(address: tuple[str, int]) -> bytes:
    """The response to an upload, all of which is sent before the response is read."""
    client = await Link.to(address)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(UPLOAD))
    client.send(UPLOAD)
    response = await client.rest()
    await client.closed()
    return response


async def test_response_sent_before_the_upload_is_read_is_forwarded() -> None:
    async with behind_proxy("refuses_by_head") as address:
        responses = [await upload(address) for _ in range(UPLOAD_COUNT)]
        assert [response.split(maxsplit=2)[1] for response in responses] == [b"413"] * UPLOAD_COUNT
        assert all(response.endswith(b"too large") for response in responses)
        client = await Link.to(address)
        client.send(get())
        assert (await client.message())[1] == b"served"
        await client.closed()
