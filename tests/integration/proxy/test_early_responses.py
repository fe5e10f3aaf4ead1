"""An app that responds before it has read the request: the client gets the response, whatever the rest of its upload does."""

import asyncio
import socket
import threading

import pytest

from serving.net.proxy.http1.upstream import unread_pieces, unreceived_bytes
from tests.integration.proxy.peers import Link, proxied
from tests.integration.proxy.pods import forwarding

REFUSAL = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo big!\n"
PIECE = bytes(64 * 1024)
PIECE_COUNT = 160


async def refuse(link: Link) -> None:
    """Respond to the head and close: the kernel resets the connection, because the body was not read."""
    await link.head()
    link.send(REFUSAL)
    await link.writer.drain()


async def upload(client: Link, head: bytes, *, is_chunked: bool) -> bytes:
    """Send a request of 10 MiB, all of it before the response is read, as many clients do; returns what came back."""
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % (PIECE_COUNT * len(PIECE))
    client.send(head + length + b"\r\n\r\n")
    for _ in range(PIECE_COUNT):
        client.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if is_chunked else PIECE)
        await client.writer.drain()
    if is_chunked:
        client.send(b"0\r\n\r\n")
    return await client.rest()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["by length", "chunked"])
async def test_an_upload_that_is_refused_by_its_head_gets_the_refusal(*, is_chunked: bool) -> None:
    async with proxied(refuse) as proxy:
        for _ in range(5):
            client = await proxy.client()
            response = await upload(client, b"POST / HTTP/1.1\r\nHost: h\r\n", is_chunked=is_chunked)
            assert response.startswith(b"HTTP/1.1 413 Content Too Large\r\n")
            assert response.endswith(b"too big!\n")


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"404 Not Found"])
async def test_a_queue_proxy_forwards_an_early_response(status: bytes) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\nno" % status)
        await link.writer.drain()

    async with forwarding(script) as queue_proxy:
        for _ in range(5):
            client = await queue_proxy.client()
            response = await upload(client, b"PUT / HTTP/1.1\r\nHost: h\r\n", is_chunked=False)
            assert response.startswith(b"HTTP/1.1 %b\r\n" % status)


class _Lost(asyncio.Protocol):
    """Collects what the kernel knows of a lost connection."""

    def __init__(self) -> None:
        self.received = b""
        self.unread: asyncio.Future[tuple[bytes, bool]] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.unread.set_result((b"".join(unread_pieces(self.transport)), unreceived_bytes(self.transport) >= 5))


def _serve(server: socket.socket, response: bytes) -> None:
    """Accept a connection, respond to its first bytes if there is a response, and close it."""
    connection, _ = server.accept()
    if response:
        connection.recv(5)
        connection.sendall(response)
    connection.close()


async def test_a_response_that_came_before_a_failed_write_is_still_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, REFUSAL))
        thread.start()
        transport, lost = await asyncio.get_running_loop().create_connection(_Lost, *server.getsockname())
        transport.write(PIECE)
        # Without a turn of the loop in between: it has not read when the write fails.
        thread.join()
        transport.write(PIECE)
        async with asyncio.timeout(60):
            unread, _ = await lost.unread
    assert lost.received + unread == REFUSAL


@pytest.mark.parametrize("response", [b"", b"ok"], ids=["closed before", "read"])
async def test_the_kernel_tells_whether_a_closed_peer_received_a_request(response: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, response))
        thread.start()
        transport, lost = await asyncio.get_running_loop().create_connection(_Lost, *server.getsockname())
        if not response:
            thread.join()
        transport.write(b"hello")
        async with asyncio.timeout(60):
            assert (await lost.unread)[1] == (not response)
        thread.join()
