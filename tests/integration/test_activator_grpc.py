"""gRPC calls through an activator: HTTP/2 on both sides, and retries of unprocessed calls on another pod."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tests.eventually import until
from tests.integration.activator_stage import HOST, PodServer, Stage, staged
from tests.integration.proxy.h2frames import END_HEADERS, END_STREAM, Code, Http2, Http2App, Kind, fields, frame
from tests.integration.proxy.peers import Link

CALL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo/Say"),
    (":authority", HOST),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
Script = Callable[[Http2App], Awaitable[None]]


class GrpcPod(PodServer):
    """A pod that runs a script on each HTTP/2 connection."""

    def __init__(self, name: str, script: Script) -> None:
        super().__init__(name)
        self.script = script
        self.links = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.links += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self.script(await Http2App.on(Link(reader, writer)))
        writer.close()


async def pod_of(stage: Stage, name: str, script: Script) -> GrpcPod:
    """A pod that is in the activator's directory."""
    pod = GrpcPod(name, script)
    await pod.start()
    stage.pods.append(pod)
    directory = stage.activator.ingress.router.directory
    before = len(directory.pods_of(("default", "hello-00001")))
    await stage.pod(name, server=pod)
    await until(lambda: len(directory.pods_of(("default", "hello-00001"))) > before)
    return pod


def call(stream_id: int, body: bytes = b"\0\0\0\0\x02hi") -> bytes:
    head = frame(Kind.HEADERS, fields(*CALL), flags=END_HEADERS, stream_id=stream_id)
    return head + frame(Kind.DATA, body, flags=END_STREAM, stream_id=stream_id)


async def echoing(app: Http2App) -> None:
    """Respond to each call with its body and trailers."""
    while True:
        new_frame = await app.frame(Kind.DATA)
        head = frame(
            Kind.HEADERS, fields((":status", "200"), CALL[4]), flags=END_HEADERS, stream_id=new_frame.stream_id
        )
        body = frame(Kind.DATA, new_frame.payload, stream_id=new_frame.stream_id)
        end = frame(
            Kind.HEADERS, fields(("grpc-status", "0")), flags=END_HEADERS | END_STREAM, stream_id=new_frame.stream_id
        )
        app.link.send(head + body + end)


async def test_grpc_calls_share_a_connection_to_pod_and_end_with_trailers() -> None:
    async with staged() as stage:
        await stage.service(slots=10)
        pod = await pod_of(stage, "p", echoing)
        client = Http2(await Link.to(stage.public))
        for stream_id in (1, 3, 5):
            client.send(call(stream_id, b"\0\0\0\0\x01%d" % stream_id))
            head, body = await client.response(stream_id)
            assert (head[":status"], body) == ("200", b"\0\0\0\0\x01%d" % stream_id)
            last = client.frames[-1]
            assert (last.kind, last.flags) == (Kind.HEADERS, END_HEADERS | END_STREAM)
        assert pod.links == 1
        await client.link.closed()


async def test_cancelled_grpc_call_is_cancelled_in_pod() -> None:
    event = asyncio.Event()
    cancelled: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def waiting(app: Http2App) -> None:
        await app.frame(Kind.DATA)
        event.set()
        cancelled.set_result((await app.frame(Kind.RST)).code)

    async with staged() as stage:
        await stage.service(slots=10)
        await pod_of(stage, "p", waiting)
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        async with asyncio.timeout(60):
            await event.wait()
            client.send(frame(Kind.RST, Code.CANCEL.to_bytes(4), stream_id=1))
            assert await cancelled == Code.CANCEL
        await client.link.closed()


async def test_refused_grpc_call_is_retried_on_another_pod() -> None:
    async def refusing(app: Http2App) -> None:
        while True:
            app.reset((await app.frame(Kind.DATA)).stream_id, Code.REFUSED_STREAM)

    async with staged() as stage:
        await stage.service(slots=1)
        refuser = await pod_of(stage, "p", refusing)
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        await until(lambda: refuser.links)
        await pod_of(stage, "q", echoing)
        head, body = await client.response(1)
        assert (head[":status"], body) == ("200", b"\0\0\0\0\x02hi")
        await client.link.closed()


async def test_cold_grpc_call_waits_for_its_pod() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve", slots=1)
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        await stage.active()
        await pod_of(stage, "p", echoing)
        assert (await client.response(1))[1] == b"\0\0\0\0\x02hi"
        await client.link.closed()
