"""Edge cases of HTTP/1.1, over raw sockets, in the activator and the queue-proxy."""

import asyncio
import math
import socket
import time

import pytest

from serving.core.settings.http import HOP_HEAD_BYTES, HttpSettings
from serving.net.proxy.server.listener import HttpServer
from tests.eventually import until
from tests.integration.proxy.daemons import DAEMONS, HOST, Daemon
from tests.integration.proxy.peers import Forwarder, Link

OK_2 = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TO = b"Host: %b\r\n" % HOST

ANSWERS = {
    "chunked": (b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"2\r\nok\r\n0\r\n\r\n"),
    "until the end": (b"\r\nok", b"2\r\nok\r\n0\r\n\r\n"),
    "by length": (b"Content-Length: 2\r\n\r\nok", b"ok"),
    "nothing": (b"Content-Length: 0\r\n\r\n", b""),
}


@pytest.fixture(params=list(DAEMONS))
def daemon(request: pytest.FixtureRequest) -> Daemon:
    return DAEMONS[request.param]


def post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\n%b%b\r\n%b" % (TO, headers, body)


def get(headers: bytes = b"", target: bytes = b"/") -> bytes:
    return b"GET %b HTTP/1.1\r\n%b%b\r\n" % (target, TO, headers)


# One request per rejection code; test_proxy_requests.py has all variants.
REFUSED = {
    "both framings": (post(b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400, "framing"),
    "bare LF in a head": (b"GET / HTTP/1.1\n%b\n\n" % TO.strip(), 400, "header"),
    "two Hosts": (get(b"Host: other\r\n"), 400, "host"),
    "a bad chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"xyz\r\n"), 400, "body"),
    "a chunk extension that is no token": (post(b"Transfer-Encoding: chunked\r\n", b"1;a[=b\r\na\r\n"), 400, "body"),
    "bare LF after the last chunk": (post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\n"), 400, "body"),
    "two protocols": (get(b"Connection: upgrade\r\nUpgrade: websocket, h2c\r\n"), 400, "upgrade"),
    "a head over its limit": (get(b"A: %b\r\n" % (b"x" * 9000)), 431, "head_size"),
    "a chunked body over its limit": (
        post(b"Transfer-Encoding: chunked\r\n", b"7d0\r\n%b\r\n" % (b"x" * 2000)),
        413,
        "body_size",
    ),
    "an unknown expectation": (get(b"Expect: tea\r\n"), 417, "expect"),
    "a method over the limit of a head": (b"A" * 9000 + b" / HTTP/1.1\r\n%b\r\n" % TO, 400, "request_line"),
    "a target over the limit of a head": (get(target=b"/" + b"a" * 9000), 414, "head_size"),
    "a target with a fragment": (get(target=b"/a#b"), 400, "request_line"),
    "a target that is not ASCII": (get(target=b"/caf\xc3\xa9"), 400, "request_line"),
    "another version": (b"GET / HTTP/2.1\r\n%b\r\n" % TO, 505, "version"),
}


@pytest.mark.parametrize("name", list(REFUSED))
async def test_invalid_request_is_rejected_and_never_forwarded_completely(daemon: Daemon, name: str) -> None:
    whole: list[bytes] = []

    async def script(link: Link) -> None:
        head = await link.head()
        if b"chunked" in head.lower():
            await link.chunks()
        whole.append(head)

    wire, status, code = REFUSED[name]
    async with daemon(script, head_bytes_max=4096, body_bytes_max=1000) as running:
        client = await running.client()
        client.send(wire)
        response = await client.rest()
        page = await running.page()
    assert response.startswith(b"HTTP/1.1 %d " % status), response
    assert f'http_refused_total{{code="{code}"}} 1' in page.replace("1.0", "1")
    # Pipelined bytes are not parsed: there is one response, and the connection is closed.
    assert response.count(b"\r\nConnection: close\r\n") == 1
    assert not whole


async def test_largest_allowed_heads_are_forwarded_and_larger_app_head_returns_502(daemon: Daemon) -> None:
    largest = HttpSettings().head_bytes_max

    async def script(link: Link) -> None:
        while True:
            size = int((await link.head()).split()[1].lstrip(b"/"))
            start = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: "
            link.send(start + b"a" * (size - len(start)) + b"\r\n\r\nok")

    async with daemon(script) as running:
        client = await running.client()
        start = b"GET /%d HTTP/1.1\r\n%bA: " % (largest, TO)
        client.send(start + b"a" * (largest - len(start)) + b"\r\n\r\n")
        head, body = await client.message()
        assert head.startswith(b"HTTP/1.1 200 "), head[:200]
        assert (len(head) >= largest, body) == (True, b"ok")
        client.send(get(target=b"/%d" % (largest + HOP_HEAD_BYTES + 1)))
        assert (await client.head()).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    ("limits", "sent", "status"),
    [
        ({"head_wait_max_s": 0.1}, b"GET / HT", b"408"),
        ({"body_wait_max_s": 0.1}, post(b"Content-Length: 2\r\n", b"a"), b"408"),
        ({"head_wait_max_s": 0.1}, b"", b""),
        ({"client_idle_max_s": 0.1}, get(), b"200"),
    ],
    ids=["slow head", "slow body", "silent client", "idle client"],
)
async def test_slow_or_idle_client_is_disconnected(
    daemon: Daemon, limits: dict[str, float], sent: bytes, status: bytes
) -> None:
    async def script(link: Link) -> None:
        while True:
            if b"content-length" in (await link.head()).lower():
                await link.body(2)
            link.send(OK_2)

    async with daemon(script, **limits) as running:
        client = await running.client()
        client.send(sent)
        response = await client.rest()
        await until(lambda: running.level() == 0)
    assert response[9:12] == status


@pytest.mark.parametrize("time", ["request_timeout_s", "response_start_timeout_s", "idle_timeout_s"])
async def test_response_that_misses_its_timeout_returns_504(daemon: Daemon, time: str) -> None:
    requests: list[bytes] = []
    ended: list[bool] = []

    async def script(link: Link) -> None:
        requests.append(await link.head())
        ended.append(await link.ended())

    async with daemon(script, times={time: 0.15}) as running, asyncio.timeout(60):
        # On a busy machine the time may pass before the request reaches the upstream.
        while not ended:
            client = await running.client()
            client.send(get())
            response = await client.rest()
            assert response.startswith(b"HTTP/1.1 504 ")
            assert b"request timeout" in response
            # The upstream request ends with the client's response. A connection that opened after the timeout stays idle.
            await until(lambda: running.level() == 0 and len(ended) == len(requests))
    assert all(ended)


@pytest.mark.parametrize("time", ["request_timeout_s", "idle_timeout_s"])
async def test_stalled_response_is_cut_off_after_timeout(daemon: Daemon, time: str) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await link.ended()

    async with daemon(script, times={time: 1.0}) as running:
        client = await running.client()
        client.send(get())
        await client.head()
        rest = await client.rest()
        await until(lambda: running.level() == 0)
    # The bytes before the stall are delivered; six bytes are missing.
    assert rest == b"abc"


async def test_response_start_timeout_does_not_limit_response_body(daemon: Daemon) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        # Longer than the limit.
        await asyncio.sleep(1.5)
        link.send(b"k")

    async with daemon(script, times={"response_start_timeout_s": 1.0}) as running:
        client = await running.client()
        client.send(get())
        _, body = await client.message()
    assert body == b"ok"


async def test_connections_are_bounded_per_address(daemon: Daemon) -> None:
    async with daemon(connections_per_address_max=1) as running:
        first = await running.client()
        first.send(get())
        await first.message()
        second = await running.client()
        response = await second.rest()
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in response


async def test_heads_received_byte_by_byte_are_parsed_on_both_sides(daemon: Daemon) -> None:
    async def script(link: Link) -> None:
        await link.head()
        for byte in OK_2:
            link.send(bytes((byte,)))
            await asyncio.sleep(0)

    async with daemon(script) as running:
        client = await running.client()
        for byte in get():
            client.send(bytes((byte,)))
            await asyncio.sleep(0)
        _, body = await client.message()
    assert body == b"ok"


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_response_is_forwarded_completely_in_each_framing(daemon: Daemon, name: str) -> None:
    sent, expected = ANSWERS[name]

    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + sent)

    async with daemon(script) as running:
        client = await running.client()
        client.send(get(b"Connection: close\r\n"))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == expected


@pytest.mark.parametrize("cut", [OK_2.index(b"ok"), len(b"HTTP/1.1 200 OK\r\n")], ids=["body apart", "head in parts"])
async def test_response_written_in_parts_does_not_wait_for_delayed_acknowledgements(daemon: Daemon, cut: int) -> None:
    async def script(link: Link) -> None:
        link.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        while True:
            if b"/whole" in await link.head():
                link.send(OK_2)
                continue
            link.send(OK_2[:cut])
            await asyncio.sleep(0)
            link.send(OK_2[cut:])

    fastest_s = dict.fromkeys([b"/first", b"/parts", b"/whole"], math.inf)
    async with daemon(script) as running:
        client = await running.client()
        # The kernel acknowledges the first segments of a connection immediately; with delayed acknowledgements, later
        # ones take at least 40 ms.
        for target in [b"/first"] * 40 + [b"/parts"] * 20 + [b"/whole"] * 20:
            began_s = time.monotonic()
            client.send(get(target=target))
            assert (await client.message())[1] == b"ok"
            fastest_s[target] = min(fastest_s[target], time.monotonic() - began_s)
    assert fastest_s[b"/parts"] < fastest_s[b"/whole"] + 0.03


@pytest.mark.parametrize(("method", "status"), [(b"GET", b"204"), (b"GET", b"304"), (b"HEAD", b"200")])
async def test_pipelined_response_follows_response_without_body(daemon: Daemon, method: bytes, status: bytes) -> None:
    async def script(link: Link) -> None:
        await link.head()
        length = b"" if status == b"204" else b"Content-Length: 5\r\n"
        link.send(b"HTTP/1.1 %b X\r\n%b\r\n" % (status, length))
        await link.head()
        link.send(OK_2)

    async with daemon(script) as running:
        client = await running.client()
        client.send(b"%b /1 HTTP/1.1\r\n%b\r\n" % (method, TO) + get(target=b"/2"))
        first = await client.head()
        _, body = await client.message()
    assert (first.split()[1], body) == (status, b"ok")


async def test_pipelined_request_after_a_body_is_parsed_separately(daemon: Daemon) -> None:
    bodies: list[bytes] = []

    async def script(link: Link) -> None:
        while True:
            head = await link.head()
            if b"chunked" in head.lower():
                bodies.append((await link.chunks())[0])
            elif b"content-length" in head.lower():
                bodies.append(await link.body(3))
            link.send(OK_2)

    async with daemon(script) as running:
        client = await running.client()
        chunked = post(b"Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        client.send(post(b"Content-Length: 3\r\n", b"abc") + chunked + get())
        responses = [await client.message() for _ in range(3)]
    assert bodies == [b"abc", b"abc"]
    assert [body for _, body in responses] == [b"ok"] * 3


async def test_100_and_103_are_sent_before_final_response(daemon: Daemon) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
        await link.body(2)
        link.send(OK_2)

    async with daemon(script) as running:
        client = await running.client()
        client.send(post(b"Expect: 100-continue\r\nContent-Length: 2\r\n"))
        assert (await client.head()).startswith(b"HTTP/1.1 100 ")
        # The proxy sends its own 100: the app receives the request after its body, and the app's 100 is not forwarded.
        client.send(b"ab")
        assert (await client.head()).startswith(b"HTTP/1.1 103 ")
        _, body = await client.message()
    assert body == b"ok"


async def test_http_1_0_connection_is_closed_after_response(daemon: Daemon) -> None:
    async with daemon() as running:
        client = await running.client()
        client.send(b"GET / HTTP/1.0\r\n%b\r\n" % TO)
        response = await client.rest()
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in response


@pytest.mark.parametrize("end", [b"Content-Length: 9\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc"])
async def test_truncated_response_is_not_completed_for_client(daemon: Daemon, end: bytes) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\n" + end)
        await link.writer.drain()

    async with daemon(script) as running:
        client = await running.client()
        client.send(get())
        rest = await client.rest()
        await until(lambda: running.level() == 0)
    # The bytes before the end are delivered; six bytes and, in a chunked response, the last chunk are missing.
    assert rest.endswith(b"\r\n\r\nabc") if b"Length" in end else rest.endswith(b"\r\n\r\n3\r\nabc\r\n")


async def test_client_disconnect_closes_upstream_request(daemon: Daemon) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        begun.set()
        await link.ended()
        ended.set()

    async with daemon(script) as running:
        client = await running.client()
        client.send(get())
        await begun.wait()
        client.close()
        await asyncio.wait_for(ended.wait(), 60)
        await until(lambda: running.level() == 0)


async def test_queued_request_of_disconnected_client_is_not_forwarded(daemon: Daemon) -> None:
    free, targets = asyncio.Event(), list[bytes]()

    async def script(link: Link) -> None:
        while True:
            targets.append((await link.head()).split()[1])
            await free.wait()
            link.send(OK_2)

    async with daemon(script, slots=1) as running:
        links = [await running.client() for _ in range(3)]
        for place, link in enumerate(links, 1):
            link.send(get(target=b"/%d" % place))
            await until(lambda wanted=place: running.level() == wanted)  # type: ignore[misc]
        links[1].close()
        await until(lambda: running.level() == 2)
        free.set()
        assert (await links[2].message())[1] == b"ok"
    assert targets == [b"/1", b"/3"]


async def test_websocket_bytes_are_forwarded_both_ways_after_101(daemon: Daemon) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        link.send(await link.body(9))

    async with daemon(script) as running:
        client = await running.client()
        # Bytes that the client sends before the 101 are forwarded after it.
        client.send(get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n") + b"early")
        assert (await client.head()).startswith(b"HTTP/1.1 101 ")
        assert await client.body(5) == b"hello"
        client.send(b"ping")
        assert await client.body(9) == b"earlyping"


async def test_reserved_and_hop_by_hop_headers_are_removed_and_forwarded_is_extended(daemon: Daemon) -> None:
    heads: list[bytes] = []

    async def script(link: Link) -> None:
        heads.append(await link.head())
        link.send(OK_2)

    forged = b"K-Original-Host: evil\r\nK-Pod-Secret: x\r\nKnative-Serving-Revision: x\r\nK-Proxy-Request: queue\r\n"
    trace = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    async with daemon(script) as running:
        client = await running.client()
        client.send(get(forged + trace + b"Connection: X-Gone\r\nX-Gone: 1\r\nX-Forwarded-For: 10.0.0.1\r\n"))
        await client.message()
    (head,) = heads
    assert b"evil" not in head
    assert b"K-Proxy-Request: queue" not in head
    assert b"X-Gone" not in head
    assert trace in head
    assert b"X-Forwarded-For: 10.0.0.1, 127.0.0.1\r\n" in head
    assert b"Forwarded: for=10.0.0.1;host=%b;proto=http, for=127.0.0.1\r\n" % HOST in head


async def test_listener_opened_after_server_shutdown_is_closed() -> None:
    server = HttpServer(HttpSettings())
    await server.finish(grace_s=0)
    address = await server.listen(("127.0.0.1", 0), Forwarder(("127.0.0.1", 1)))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
