"""TCP connections through the activator and the queue-proxy to an app without HTTP, over real sockets."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from serving.activator.io import tcplisteners
from serving.core.model.knative import TCP_ANNOTATION
from serving.core.model.tcpevents import tcp_states
from serving.core.settings.http import HttpSettings
from serving.net.cluster.kinds import EVENT, ROUTE
from serving.net.proxy.forwarding.relay import relay_head
from serving.net.wire.tokens import pod_secret
from tests.eventually import until
from tests.integration.activator_stage import HOST, KEY, PodServer, Stage, staged
from tests.integration.proxy.peers import Link, Script, backed
from tests.integration.proxy.pods import Pod, forwarding

WHOLE = {"revisionName": "hello-00001", "percent": 100}
Connect = Callable[[int], Awaitable[Link]]
SECRET = pod_secret(KEY, namespace="default", pod="hello-1")


@contextlib.contextmanager
def reserved_port() -> Any:  # noqa: ANN401 - an iterator of int
    """A reserved port: bound here without listening; other sockets of this user can still listen on it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


class Listed(PodServer):
    """A pod server that is listed in the store with another port."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name)
        self._listed_port = port

    @property
    def port(self) -> int:
        return self._listed_port


async def echo(link: Link) -> None:
    """Send a greeting, echo all bytes, and send a farewell line."""
    link.send(b"hello\n")
    while data := await link.reader.read(65536):
        link.send(data)
    link.send(b"bye\n")
    link.close()


async def served(
    stage: Stage, port: int, *, slots: int = 0, annotations: Mapping[str, str] = MappingProxyType({})
) -> None:
    await stage.revision("hello-00001", slots=slots, state="Reserve")
    await stage.route(WHOLE, annotations={TCP_ANNOTATION: str(port), **annotations})


@contextlib.asynccontextmanager
async def running(
    script: Script = echo,
    *,
    slots: int = 0,
    settings: Any = MappingProxyType({}),  # noqa: ANN401 - of the activator
) -> AsyncIterator[tuple[Stage, Pod, int]]:
    """An activator and a queue-proxy with its app; the activator's directory has the pod."""
    with reserved_port() as port:
        async with staged(**settings) as stage, forwarding(script, more={"secret": SECRET}, drain_grace_s=0.0) as pod:
            await served(stage, port, slots=slots)
            await stage.pod("hello-1", server=Listed("hello-1", pod.requests[1]))
            await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "hello-00001")))
            yield stage, pod, port


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect to the activator as soon as it listens; close all connections after the test."""
    links: list[Link] = []

    async def connected(port: int) -> Link:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    links.append(await Link.to(("127.0.0.1", port)))
                    return links[-1]
                await asyncio.sleep(0.01)

    yield connected
    for link in links:
        await link.closed()


async def test_tcp_connection_waits_at_zero_until_pod_exists(connect: Connect) -> None:
    with reserved_port() as port:
        async with staged() as stage, forwarding(echo, more={"secret": SECRET}, drain_grace_s=0.0) as pod:
            await served(stage, port)
            client = await connect(port)
            client.send(b"early")
            await stage.active()
            assert stage.level == 1
            await stage.pod("hello-1", server=Listed("hello-1", pod.requests[1]))
            assert await client.body(11) == b"hello\nearly"
            client.send(b"late")
            assert await client.body(4) == b"late"
            client.writer.write_eof()
            assert await client.rest() == b"bye\n"
            await until(lambda: stage.level == 0)


async def test_tcp_connection_counts_as_one_request_in_both_daemons(connect: Connect) -> None:
    async with running() as (stage, pod, port):
        clients = [await connect(port) for _ in range(3)]
        for client in clients:
            assert await client.body(6) == b"hello\n"
        assert stage.level == 3
        await pod.inside(3)
        for client in clients:
            client.close()
        await until(lambda: stage.level == 0)
        await pod.inside(0)


async def test_pod_accepts_as_many_tcp_connections_as_it_has_slots(connect: Connect) -> None:
    async with running(slots=1) as (stage, _, port):
        first, second = await connect(port), await connect(port)
        assert await first.body(6) == b"hello\n"
        await until(lambda: stage.level == 2)
        assert [waiting for _, _, waiting in stage.activator.ingress.router.inside()] == [1]
        first.close()
        assert await second.body(6) == b"hello\n"


async def test_bytes_sent_before_app_closes_reach_tcp_client(connect: Connect) -> None:
    async def short(link: Link) -> None:
        link.send(b"x" * 1_000_000)
        await link.writer.drain()
        link.close()

    async with running(short) as (_, _, port):
        for _ in range(10):
            client = await connect(port)
            assert len(await client.rest()) == 1_000_000


async def test_tcp_connection_without_pod_is_reset_after_queue_wait(connect: Connect) -> None:
    with reserved_port() as port:
        async with staged(queue_wait_max_s=0.2) as stage:
            await served(stage, port)
            client = await connect(port)
            with pytest.raises(ConnectionResetError):
                await client.reader.read()


async def test_queued_tcp_connection_is_not_counted_after_client_disconnects(connect: Connect) -> None:
    with reserved_port() as port:
        async with staged() as stage:
            await served(stage, port)
            client = await connect(port)
            await until(lambda: stage.level == 1)
            client.close()
            await until(lambda: stage.level == 0)


async def test_immediate_client_disconnects_leave_no_connection_to_app(connect: Connect) -> None:
    async with running() as (stage, pod, port):
        for _ in range(30):
            (await connect(port)).close()
        await until(lambda: stage.level == 0)
        await pod.inside(0)
        await until(lambda: all(task.done() for task in pod.app.tasks))


async def test_idle_tcp_connection_is_closed_at_tunnel_idle_limit(connect: Connect) -> None:
    async with running(settings={"http": HttpSettings(tunnel_idle_max_s=0.2)}) as (_, _, port):
        client = await connect(port)
        assert await client.rest() == b"hello\n"


async def test_removed_tcp_annotation_closes_port_but_not_open_connections(connect: Connect) -> None:
    async with running() as (stage, _, port):
        client = await connect(port)
        assert await client.body(6) == b"hello\n"
        await stage.cluster.patch(
            ROUTE, "default", "hello", patch={"metadata": {"annotations": {TCP_ANNOTATION: None}}}
        )
        await until(lambda: is_refused(port))
        client.send(b"still")
        assert await client.body(5) == b"still"


async def test_each_tcp_port_of_service_accepts_connections(connect: Connect) -> None:
    with reserved_port() as first, reserved_port() as second:
        async with staged() as stage, forwarding(echo, more={"secret": SECRET}, drain_grace_s=0.0) as pod:
            await stage.revision("hello-00001", slots=0, state="Reserve")
            await stage.route(WHOLE, annotations={TCP_ANNOTATION: f"{first},{second}"})
            await stage.pod("hello-1", server=Listed("hello-1", pod.requests[1]))
            clients = [await connect(port) for port in (first, second)]
            for client in clients:
                assert await client.body(6) == b"hello\n"
            assert stage.level == 2


async def test_mapped_tcp_port_connects_to_its_own_app_port(connect: Connect) -> None:
    async def second_app(link: Link) -> None:
        link.send(b"other\n")
        link.close()

    async with backed(second_app) as other:
        with reserved_port() as first, reserved_port() as second:
            more = {"secret": SECRET, "tcp_ports": {second: other.address[1]}}
            async with staged() as stage, forwarding(echo, more=more, drain_grace_s=0.0) as pod:
                await stage.revision("hello-00001", slots=0, state="Reserve")
                await stage.route(WHOLE, annotations={TCP_ANNOTATION: f"{first},{second}"})
                await stage.pod("hello-1", server=Listed("hello-1", pod.requests[1]))
                assert await (await connect(second)).rest() == b"other\n"
                assert await (await connect(first)).body(6) == b"hello\n"


async def states_of(stage: Stage) -> dict[int, str]:
    return tcp_states((await stage.cluster.list(EVENT)).items)


async def is_problem(stage: Stage, port: int, beginning: str) -> bool:
    """Whether the Events report a problem of a port that starts with `beginning`; "" means no problem."""
    problem = (await states_of(stage)).get(port)
    return problem is not None and (problem.startswith(beginning) if beginning else not problem)


async def test_occupied_tcp_port_is_reported_until_it_is_free(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcplisteners, "_RETRY_S", 0.05)
    async with running() as (stage, _, port):
        with socket.create_server(("127.0.0.1", 0)) as occupied:
            other = occupied.getsockname()[1]
            await stage.route(WHOLE, name="other", annotations={TCP_ANNOTATION: str(other)})
            await until(functools.partial(is_problem, stage, other, "another program listens at port"))
            # Other ports are served meanwhile.
            assert await (await connect(port)).body(6) == b"hello\n"
        await until(functools.partial(is_problem, stage, other, ""))
        assert (await states_of(stage))[port] == ""


async def test_persistent_tcp_port_problem_is_reported_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcplisteners, "_RETRY_S", 0.01)
    monkeypatch.setattr(tcplisteners, "_REPEAT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        async with staged() as stage:
            await stage.route(WHOLE, annotations={TCP_ANNOTATION: str(occupied.getsockname()[1])})

            async def is_counted() -> bool:
                return any(event["count"] > 2 for event in (await stage.cluster.list(EVENT)).items)

            await until(is_counted)


async def test_first_service_with_a_tcp_port_is_its_owner(connect: Connect) -> None:
    async with running() as (stage, _, port):
        await stage.route(WHOLE, name="zzz", annotations={TCP_ANNOTATION: str(port)})

        async def is_reported() -> bool:
            events = (await stage.cluster.list(EVENT)).items
            messages = [event["message"] for event in events if event["involvedObject"]["name"] == "zzz"]
            return messages == [f"port {port} belongs to default/hello, which asked for it first; choose another"]

        await until(is_reported)
        assert await (await connect(port)).body(6) == b"hello\n"


async def test_http_client_cannot_request_raw_tcp_relay() -> None:
    async def app(link: Link) -> None:
        head = await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))

    async with running(app) as (stage, pod, _):
        relay_headers = relay_head(HOST.encode(), 1).wire + b"Connection: Upgrade\r\nUpgrade: serving-tcp\r\n\r\n"
        for address in (stage.public, pod.requests):
            client = await Link.to(address)
            client.send(b"GET / HTTP/1.1\r\nHost: %b\r\n%b" % (HOST.encode(), relay_headers))
            _, seen = await client.message()
            assert b"Upgrade: serving-tcp\r\n" in seen
            assert b"k-tcp-relay" not in seen.lower()
            client.close()
