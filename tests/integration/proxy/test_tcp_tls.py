"""One TLS port for several services: the server name selects the service, and the app terminates TLS."""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from serving.core.model.knative import TCP_ANNOTATION
from serving.core.settings.http import HttpSettings
from serving.net.cluster.kinds import EVENT, ROUTE
from serving.net.proxy.http1.requesthead import RefusalCode
from serving.net.proxy.tls.certificate import load_certificate
from serving.net.wire.tokens import pod_secret
from tests.eventually import until
from tests.integration.activator_stage import KEY, Stage, staged
from tests.integration.proxy.peers import Link
from tests.integration.proxy.pods import forwarding
from tests.integration.proxy.test_tcp import Listed, reserved_port
from tests.integration.tls_stage import client_context, issued
from tests.property.test_clienthello import hello, records

UNRECOGNIZED_NAME = b"\x15\x03\x03\0\2\2\x70"
DECODE_ERROR = b"\x15\x03\x03\0\2\2\x32"


def host_of(name: str) -> str:
    return f"{name}.default.localhost"


@contextlib.asynccontextmanager
async def tls_app(name: str) -> AsyncIterator[int]:
    """An app that sends a greeting over TLS, with a certificate for its name."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(f"{name}: ".encode() + await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    context = load_certificate(name, issued(host_of(name))).context
    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def sharing(*names: str, settings: HttpSettings | None = None) -> AsyncIterator[tuple[Stage, int]]:
    """Services at zero that share a port, each with one pod."""
    with reserved_port() as port:
        async with contextlib.AsyncExitStack() as stack:
            stage = await stack.enter_async_context(staged(http=settings or HttpSettings()))
            for name in names:
                revision, pod_name = f"{name}-00001", f"{name}-1"
                app = await stack.enter_async_context(tls_app(name))
                # Maps the shared port to the port of this app.
                secret = pod_secret(KEY, namespace="default", pod=pod_name)
                more = {"secret": secret, "tcp_ports": {port: app}}
                pod = await stack.enter_async_context(forwarding(unused, more=more, drain_grace_s=0.0))
                await stage.revision(revision, slots=0, state="Reserve")
                whole = {"revisionName": revision, "percent": 100}
                await stage.route(whole, name=name, annotations={TCP_ANNOTATION: f"{port}/tls"})
                await stage.pod(pod_name, of=revision, server=Listed(pod_name, pod.requests[1]))
            await until(lambda: not is_refused(port))
            # The port opens with the first service, so wait for the others.
            await until(lambda: all(stage.activator.tcp._is_served(port, host_of(name)) for name in names))
            yield stage, port


async def unused(link: Link) -> None:
    link.close()


def is_refused(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return False
    return True


async def greeting(port: int, name: str) -> str:
    """The greeting of the app with the certificate for this name."""
    host = host_of(name)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(), server_hostname=host)
    try:
        writer.write(b"hi\n")
        return (await reader.read()).decode()
    finally:
        writer.close()


async def reply(port: int, *pieces: bytes) -> bytes:
    """The bytes that a client receives after it has sent these pieces."""
    link = await Link.to(("127.0.0.1", port))
    try:
        for piece in pieces:
            link.send(piece)
            await asyncio.sleep(0)
        return await link.rest()
    finally:
        link.close()


async def test_server_name_selects_service_at_zero_on_shared_port() -> None:
    async with sharing("db", "broker") as (stage, port):
        assert await greeting(port, "broker") == "broker: hi\n"
        assert await greeting(port, "db") == "db: hi\n"
        await until(lambda: stage.level == 0)
        assert not stage.activator.server.refusals.counts


async def test_unknown_server_names_receive_tls_alert_and_are_counted() -> None:
    async with sharing("db") as (stage, port):
        for name in ("other", "db.default"):
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await greeting(port, name)
        assert await reply(port, records(hello())) == UNRECOGNIZED_NAME
        assert await reply(port, b"GET / HTTP/1.1\r\n\r\n") == DECODE_ERROR
        assert stage.activator.server.refusals.counts == {RefusalCode.SERVER_NAME: 4}
        assert await greeting(port, "db") == "db: hi\n"


async def test_client_without_complete_hello_is_disconnected_after_timeout() -> None:
    async with sharing("db", settings=HttpSettings(head_wait_max_s=0.2)) as (stage, port):
        for piece in (b"", b"\x16\x03\x01"):
            with contextlib.suppress(ConnectionResetError):
                assert await reply(port, piece) == b""
        await until(lambda: not stage.activator.server.connection_count)


async def test_removed_annotation_stops_one_service_on_shared_port() -> None:
    async with sharing("db", "broker") as (stage, port):
        before = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(), server_hostname=host_of("db"))
        patch = {"metadata": {"annotations": {TCP_ANNOTATION: None}}}
        await stage.cluster.patch(ROUTE, "default", "db", patch=patch)

        async def is_unknown() -> bool:
            try:
                await greeting(port, "db")
            except ssl.SSLError:
                return True
            return False

        await until(is_unknown)
        assert await greeting(port, "broker") == "broker: hi\n"
        before[1].write(b"still\n")
        assert await before[0].read() == b"db: still\n"
        before[1].close()


async def test_plain_claim_on_shared_tls_port_is_reported() -> None:
    async with sharing("db") as (stage, port):
        await stage.route({"percent": 100}, name="zzz", annotations={TCP_ANNOTATION: str(port)})
        await until(functools.partial(is_reported, stage, f"or share it as {port}/tls"))
        assert await greeting(port, "db") == "db: hi\n"


async def is_reported(stage: Stage, end: str) -> bool:
    return any(event["message"].endswith(end) for event in (await stage.cluster.list(EVENT)).items)
