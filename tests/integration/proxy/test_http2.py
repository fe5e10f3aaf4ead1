"""HTTP/2 with prior knowledge through two chained proxies, with grpcio, httpx and curl as clients."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]
import httpx
import pytest
from hyperframe.frame import SettingsFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.upstream import Http2Pool
from serving.net.proxy.server.listener import HttpServer
from tests.eventually import until
from tests.integration.proxy.peers import Forwarder, Link, proxied

SERVICE = "echo.Echo"


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All four kinds of call, without generated code."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        kinds = {
            f"/{SERVICE}/Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            f"/{SERVICE}/Fail": grpc.unary_unary_rpc_method_handler(self._fail),
            f"/{SERVICE}/Hang": grpc.unary_unary_rpc_method_handler(self._hang),
            f"/{SERVICE}/Down": grpc.unary_stream_rpc_method_handler(self._down),
            f"/{SERVICE}/Up": grpc.stream_unary_rpc_method_handler(self._up),
            f"/{SERVICE}/Both": grpc.stream_stream_rpc_method_handler(self._both),
        }
        return kinds.get(handler_call_details.method)

    async def _unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        context.set_trailing_metadata((("after", "all"),))
        return request

    async def _fail(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, request.decode())
        raise AssertionError

    async def _hang(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        del context
        self.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return request

    async def _down(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        del context
        for _ in range(5):
            yield request

    async def _up(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        del context
        return b"".join([request async for request in requests])

    async def _both(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        del context
        async for request in requests:
            yield request


def url(address: tuple[str, int]) -> str:
    return f"http://{address[0]}:{address[1]}/"


class Chain:
    """A front proxy with HTTP/1.1 to a back proxy with h2c to a grpcio app."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.app = grpc.aio.server()
        self.app.add_generic_rpc_handlers((self.echo,))
        limits = HttpSettings()
        self.front = HttpServer(limits)
        self.back = HttpServer(limits)
        self.back.pool = Http2Pool(limits, clock=self.back.clock)
        self.address = ("", 0)

    async def __aenter__(self) -> Self:
        port = self.app.add_insecure_port("127.0.0.1:0")
        await self.app.start()
        self.at_back = Forwarder(("127.0.0.1", port))
        self.at_front = Forwarder(await self.back.listen(("127.0.0.1", 0), self.at_back))
        self.address = await self.front.listen(("127.0.0.1", 0), self.at_front)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.front.finish(grace_s=0)
        await self.back.finish(grace_s=0)
        await self.app.stop(None)
        for handler in (self.at_front, self.at_back):
            assert len(handler.begun) == len(handler.finished)

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(url(self.address).removeprefix("http://").rstrip("/"))


async def test_all_four_grpc_call_types_are_forwarded() -> None:
    async with Chain() as chain, chain.channel() as channel:
        call = channel.unary_unary(f"/{SERVICE}/Unary")(b"one")
        assert await call == b"one"
        assert ("after", "all") in tuple(await call.trailing_metadata())
        assert [reply async for reply in channel.unary_stream(f"/{SERVICE}/Down")(b"x")] == [b"x"] * 5
        assert await channel.stream_unary(f"/{SERVICE}/Up")(iter([b"a", b"b"])) == b"ab"
        both = channel.stream_stream(f"/{SERVICE}/Both")()
        for message in (b"1", b"2", b"3"):
            # Each response arrives before the next request message is sent.
            await both.write(message)
            assert await both.read() == message
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF


async def test_trailers_only_grpc_response_is_forwarded() -> None:
    async with Chain() as chain, chain.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Fail")(b"nothing here")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "nothing here"


async def test_grpc_messages_larger_than_the_window_are_forwarded_both_ways() -> None:
    big = bytes(3_000_000)
    async with Chain() as chain, chain.channel() as channel:
        assert await channel.unary_unary(f"/{SERVICE}/Unary")(big) == big


async def test_cancelled_grpc_call_is_cancelled_in_app() -> None:
    async with Chain() as chain, chain.channel() as channel:
        call = channel.unary_unary(f"/{SERVICE}/Hang")(b"")
        async with asyncio.timeout(60):
            await chain.echo.started.wait()
            call.cancel()
            await chain.echo.cancelled.wait()


async def test_http_503_is_converted_to_grpc_status_unavailable() -> None:
    async def refusing(link: Link) -> None:
        await link.head()
        link.send(
            b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n100% is full\n"
        )

    async with proxied(refusing) as proxy:
        target = url(proxy.address).removeprefix("http://").rstrip("/")
        async with grpc.aio.insecure_channel(target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{SERVICE}/Unary")(b"one")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "100% is full")
        assert ("retry-after", "1") in tuple(caught.value.trailing_metadata() or ())


async def test_grpc_calls_succeed_during_and_after_drain() -> None:
    async with Chain() as chain, chain.channel() as channel:
        both = channel.stream_stream(f"/{SERVICE}/Both")()
        await both.write(b"1")
        assert await both.read() == b"1"
        chain.front.drain()
        for message in (b"2", b"3"):
            await both.write(message)
            assert await both.read() == message
            assert await channel.unary_unary(f"/{SERVICE}/Unary")(b"beside") == b"beside"
        # The open call stays on the first connection; other calls use new ones, which close after their calls.
        waiting = channel.unary_unary(f"/{SERVICE}/Hang")(b"")
        await until(chain.echo.started.is_set)
        assert chain.front.connection_count == 2
        waiting.cancel()
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF
        assert await channel.unary_unary(f"/{SERVICE}/Unary")(b"after") == b"after"
        await until(lambda: chain.front.connection_count == 0)


async def test_httpx_sends_many_requests_over_one_connection() -> None:
    async with proxied() as proxy, httpx.AsyncClient(http1=False, http2=True) as client:
        target = url(proxy.address)
        responses = await asyncio.gather(*[client.post(target, content=b"") for _ in range(50)])
        assert {response.status_code for response in responses} == {200}
        assert {response.http_version for response in responses} == {"HTTP/2"}
        assert proxy.server.connection_count == 1


async def test_curl_with_prior_knowledge_receives_http2_response() -> None:
    async with proxied() as proxy:
        arguments = ("-s", "--max-time", "5", "--http2-prior-knowledge", "-w", " HTTP/%{http_version}")
        target = url(proxy.address) + "x"
        curl = await asyncio.create_subprocess_exec("curl", *arguments, target, stdout=asyncio.subprocess.PIPE)
        output, _ = await curl.communicate()
        assert output.startswith(b"GET /x HTTP/1.1\r\n")
        assert output.endswith(b" HTTP/2")


@given(noise=st.binary(max_size=300))
@settings(max_examples=40, deadline=None)
def test_arbitrary_http2_bytes_do_not_hang_connection(noise: bytes) -> None:
    async def case() -> None:
        async with proxied() as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize() + noise)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(60):
                    await reader.read()
            writer.close()

    asyncio.run(case())
