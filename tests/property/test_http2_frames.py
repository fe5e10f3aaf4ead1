"""For any frames in any order and chunks: no crash, no hang, and other clients are served."""

import asyncio
import contextlib
from typing import Any

import uvloop
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.upstream import Http2Pool
from serving.net.proxy.server.listener import HttpServer
from tests.integration.proxy.h2frames import GET, OPENING, PREFACE, Http2, fields, frame, request
from tests.integration.proxy.h2frames import settings as settings_frame
from tests.integration.proxy.peers import Forwarder, Link, backed, get, proxied

# A hang takes 10 s, and shrinking would repeat it for hours.
QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
ids = st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1])
payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [fields(*GET), fields((":status", "200")), bytes(8), b"\0\0\0\1", b"\0\0\0\0", b"\x7f\xff\xff\xff"]
    ),
)
anything = st.builds(
    lambda kind, payload, flags, stream_id: frame(kind, payload, flags=flags, stream_id=stream_id),
    st.integers(min_value=0, max_value=12),
    payloads,
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x25, 0xFF]),
    ids,
)
some = st.one_of(
    anything,
    st.sampled_from(
        [request(1), request(3, flags=4), request(5, flags=0), settings_frame((4, 0)), settings_frame((4, 70000))]
    ),
)


def run(case: Any) -> None:  # noqa: ANN401 - a coroutine
    """Run a case; an uncaught exception fails it."""
    uncaught: list[dict[str, Any]] = []

    def collect(_: object, context: dict[str, Any]) -> None:
        # The tasks of the scripted upstream are cancelled at the end, which its streams report.
        if not isinstance(context.get("exception"), asyncio.CancelledError):
            uncaught.append(context)

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(collect)
        async with asyncio.timeout(60):
            await case

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    assert not uncaught


@given(frames=st.lists(some, max_size=12), cut=st.integers(min_value=0, max_value=200))
@settings(max_examples=120, deadline=None, phases=QUICK)
def test_arbitrary_client_frames_do_not_affect_other_clients(frames: list[bytes], cut: int) -> None:
    async def case() -> None:
        wire = OPENING + b"".join(frames)
        async with proxied() as proxy:
            link = await proxy.client()
            for piece in (wire[:cut], wire[cut:]):
                link.send(piece)
                await asyncio.sleep(0)
            link.writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await link.rest()
            other = Http2(await proxy.client())
            other.send(request(1))
            assert (await other.response())[0][":status"] == "200"

    run(case())


@given(frames=st.lists(some, max_size=12))
@settings(max_examples=80, deadline=None, phases=QUICK)
def test_arbitrary_app_frames_end_every_request(frames: list[bytes]) -> None:
    async def saying(link: Link) -> None:
        assert await link.reader.readexactly(len(PREFACE)) == PREFACE
        link.send(settings_frame() + b"".join(frames))
        link.writer.write_eof()
        await link.rest()

    async def case() -> None:
        limits = HttpSettings()
        async with backed(saying) as backend:
            server = HttpServer(limits)
            server.pool = Http2Pool(limits, clock=server.clock)
            handler = Forwarder(backend.address)
            client = await Link.to(await server.listen(("127.0.0.1", 0), handler))
            client.send(get())
            with contextlib.suppress(ConnectionError):
                # A 502, a truncated response, or none after a 1xx: the connection ends in each case.
                await client.reader.read(1)
            await client.closed()
            await server.finish(grace_s=0)
            assert len(handler.finished) == len(handler.begun)

    run(case())
