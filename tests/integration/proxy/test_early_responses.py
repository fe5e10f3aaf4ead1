"""An app responds before it has read the request: the client receives the response while it still uploads."""

import asyncio
import functools
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

from serving.net.proxy.http1.upstream import unread_pieces, unreceived_bytes
from tests.integration.inner_stage import SERVERS, secured
from tests.integration.proxy.daemons import HOST
from tests.integration.proxy.h2frames import (
    END_HEADERS,
    END_STREAM,
    ENDED,
    GET,
    Code,
    Http2,
    Kind,
    fields,
    frame,
    request,
)
from tests.integration.proxy.peers import Link, Script, proxied
from tests.integration.proxy.pods import forwarding

REFUSAL = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo big!\n"
PIECE = bytes(64 * 1024)
PIECE_COUNT = 320
UPLOAD_COUNT = 3
CODES = [401, 413]
_FRAME_BYTES = 16_384
_WINDOW_BYTES = 65_535

Upload = Callable[[tuple[str, int]], Awaitable[tuple[int, bytes]]]


def refusing(code: int) -> Script:
    """An app that responds to a head and closes; the kernel resets the connection because of the unread body."""

    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 %d Refused\r\nContent-Length: 9\r\n\r\ntoo big!\n" % code)
        await link.writer.drain()

    return script


async def upload(address: tuple[str, int], *, is_chunked: bool) -> tuple[int, bytes]:
    """Send a request of 20 MiB before reading the response, as many clients do; return the status and the body."""
    client = await Link.to(address)
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % (PIECE_COUNT * len(PIECE))
    client.send(b"POST / HTTP/1.1\r\nHost: %b\r\n%b\r\n\r\n" % (HOST, length))
    for _ in range(PIECE_COUNT):
        client.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if is_chunked else PIECE)
        await client.writer.drain()
    if is_chunked:
        client.send(b"0\r\n\r\n")
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    await client.closed()
    return int(head.split()[1]), body


async def upload_by_http2(address: tuple[str, int]) -> tuple[int, bytes]:
    """Send 20 MiB over HTTP/2, also after the response, as curl and httpx do; then send a request on the connection."""
    link = await Link.to(address)
    client = Http2(link)
    post = [(name, {":method": "POST", ":authority": HOST.decode()}.get(name, value)) for name, value in GET]
    client.send(frame(Kind.HEADERS, fields(*post), flags=END_HEADERS, stream_id=1))
    windows, remaining = {0: _WINDOW_BYTES, 1: _WINDOW_BYTES}, PIECE_COUNT * len(PIECE)
    head, body, has_ended = dict[str, str](), b"", False
    while not has_ended or remaining:
        size = min(*windows.values(), remaining, _FRAME_BYTES)
        if size:
            remaining -= size
            windows = {stream_id: window - size for stream_id, window in windows.items()}
            client.send(frame(Kind.DATA, bytes(size), flags=0 if remaining else END_STREAM, stream_id=1))
            await link.writer.drain()
            # The client sends as much as its windows allow before it reads.
            continue
        received = await client.frame()
        assert received is not None, client.frames
        if received.kind == Kind.WINDOW_UPDATE:
            windows[received.stream_id] += int.from_bytes(received.payload)
        elif received.kind == Kind.HEADERS:
            head = {str(name): str(value) for name, value in client.decoder.decode(received.payload)}
        elif received.kind == Kind.DATA:
            body += received.payload
        assert received.kind not in (Kind.RST, Kind.GOAWAY), received.code
        has_ended = has_ended or (received.stream_id == 1 and bool(received.flags & END_STREAM))
    client.send(frame(Kind.HEADERS, fields(*post), flags=ENDED, stream_id=3))
    assert (await client.response(3))[0][":status"] == head[":status"]
    await link.closed()
    return int(head[":status"]), body


UPLOADS: dict[str, Upload] = {
    "by length": functools.partial(upload, is_chunked=False),
    "chunked": functools.partial(upload, is_chunked=True),
    "HTTP/2": upload_by_http2,
}


@pytest.fixture(params=UPLOADS)
def send(request: pytest.FixtureRequest) -> Upload:
    """A client that uploads to an address and returns the status and body of the response."""
    return UPLOADS[request.param]


@pytest.mark.parametrize("code", CODES)
async def test_upload_rejected_before_its_body_receives_the_rejection(send: Upload, code: int) -> None:
    async with proxied(refusing(code)) as proxy:
        assert [await send(proxy.address) for _ in range(UPLOAD_COUNT)] == [(code, b"too big!\n")] * UPLOAD_COUNT


async def test_http2_stream_is_reset_after_early_response_to_unfinished_upload() -> None:
    async with proxied(refusing(413)) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1, flags=END_HEADERS))
        assert (await client.response())[0][":status"] == "413"
        assert (await client.until(Kind.RST, 1)).code == Code.NO_ERROR


@pytest.mark.parametrize("code", CODES)
async def test_queue_proxy_forwards_early_response(send: Upload, code: int) -> None:
    async with forwarding(refusing(code)) as queue_proxy:
        assert [await send(queue_proxy.requests) for _ in range(UPLOAD_COUNT)] == [(code, b"too big!\n")] * UPLOAD_COUNT


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("place", SERVERS)
async def test_early_response_is_forwarded_over_inner_tls(send: Upload, place: str, code: int) -> None:
    async with secured(serve=SERVERS[place], script=refusing(code)) as inner:
        address = inner.stage.public
        assert [await send(address) for _ in range(UPLOAD_COUNT)] == [(code, b"too big!\n")] * UPLOAD_COUNT


class _Lost(asyncio.Protocol):
    """Records the kernel's unread bytes and unacknowledged bytes of a lost connection."""

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


async def test_response_received_before_failed_write_is_readable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, REFUSAL))
        thread.start()
        transport, lost = await asyncio.get_running_loop().create_connection(_Lost, *server.getsockname())
        transport.write(PIECE)
        # The event loop does not run in between, so the response is still unread when the write fails.
        thread.join()
        transport.write(PIECE)
        async with asyncio.timeout(60):
            unread, _ = await lost.unread
    assert lost.received + unread == REFUSAL


@pytest.mark.parametrize("response", [b"", b"ok"], ids=["closed before", "read"])
async def test_kernel_reports_whether_closed_peer_received_the_request(response: bytes) -> None:
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
