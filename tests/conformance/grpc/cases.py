"""The interoperability cases of gRPC that need no cloud, as grpc/doc/interop-test-descriptions.md gives them.

Three cases are ours: messages of 4 MiB, compression in both directions, and a deadline that reaches the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]

from tests.conformance.grpc import messages as m
from tests.conformance.grpc.server import ACTIVE, COMPRESS, ECHO_INITIAL, ECHO_TRAILING, REMAINING, UNBOUNDED

# No case takes that long unless something is broken.
_DEADLINE_S = 60.0
_REQUEST_SIZE, _RESPONSE_SIZE = 271_828, 314_159
_INPUT_SIZES = (27_182, 8, 1_828, 45_904)
_OUTPUT_SIZES = (31_415, 9, 2_653, 58_979)
_LARGE = 4 << 20
# Of grpcio's own, also without a server: a message was written between the deadline and its notice.
_WRITTEN_TOO_LATE = "Internal error from Core"
_SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


class Stub:
    """The methods of a service at a channel."""

    def __init__(self, channel: grpc.aio.Channel, service: str = m.SERVICE) -> None:
        def method(kind: Callable[..., Any], name: str, response: Any) -> Any:  # noqa: ANN401 - grpcio has no types
            encode, decode = (lambda message: message.SerializeToString()), response.FromString
            return kind(f"/{service}/{name}", request_serializer=encode, response_deserializer=decode)

        self.channel = channel
        self.empty = method(channel.unary_unary, "EmptyCall", m.Empty)
        self.unary = method(channel.unary_unary, "UnaryCall", m.SimpleResponse)
        self.unimplemented = method(channel.unary_unary, "UnimplementedCall", m.Empty)
        self.output = method(channel.unary_stream, "StreamingOutputCall", m.OutputResponse)
        self.input = method(channel.stream_unary, "StreamingInputCall", m.InputResponse)
        self.full_duplex = method(channel.stream_stream, "FullDuplexCall", m.OutputResponse)


def expect(seen: object, wanted: object) -> None:
    """Raise ``AssertionError`` with both if they differ."""
    if seen != wanted:
        raise AssertionError(f"{seen!r} instead of {wanted!r}")


async def failure(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    try:
        awaitable = await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"{awaitable!r} instead of an error")


def output_request(size: int, *, response: int) -> Any:  # noqa: ANN401 - a message of protobuf
    return m.OutputRequest(response_parameters=[m.ResponseParameters(size=response)], payload=m.zeros(size))


async def no_call_is_left(stub: Stub) -> None:
    """Wait until the server runs no call: a cancellation has reached it."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            call = stub.empty(m.Empty(), timeout=_DEADLINE_S)
            await call
            if dict(await call.trailing_metadata())[ACTIVE] == "0":
                return
            await asyncio.sleep(0.01)


async def empty_unary(stub: Stub) -> None:
    expect(await stub.empty(m.Empty(), timeout=_DEADLINE_S), m.Empty())


async def large_unary(stub: Stub) -> None:
    request = m.SimpleRequest(response_size=_RESPONSE_SIZE, payload=m.zeros(_REQUEST_SIZE))
    expect(len((await stub.unary(request, timeout=_DEADLINE_S)).payload.body), _RESPONSE_SIZE)


async def client_streaming(stub: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        for size in _INPUT_SIZES:
            yield m.InputRequest(payload=m.zeros(size))

    input_ = await stub.input(requests(), timeout=_DEADLINE_S)
    expect(input_.aggregated_payload_size, sum(_INPUT_SIZES))


async def server_streaming(stub: Stub) -> None:
    request = m.OutputRequest(response_parameters=[m.ResponseParameters(size=size) for size in _OUTPUT_SIZES])
    counts = [len(response.payload.body) async for response in stub.output(request, timeout=_DEADLINE_S)]
    expect(counts, list(_OUTPUT_SIZES))


async def ping_pong(stub: Stub) -> None:
    call = stub.full_duplex(timeout=_DEADLINE_S)
    for size, response in zip(_INPUT_SIZES, _OUTPUT_SIZES, strict=True):
        await call.write(output_request(size, response=response))
        expect(len((await call.read()).payload.body), response)
    await call.done_writing()
    expect(await call.read(), grpc.aio.EOF)
    expect(await call.code(), grpc.StatusCode.OK)


async def empty_stream(stub: Stub) -> None:
    call = stub.full_duplex(timeout=_DEADLINE_S)
    await call.done_writing()
    expect(await call.read(), grpc.aio.EOF)
    expect(await call.code(), grpc.StatusCode.OK)


async def timeout_on_sleeping_server(stub: Stub) -> None:
    error = await failure(_exchange(stub.full_duplex(timeout=0.001)))
    while error.details() == _WRITTEN_TOO_LATE:
        error = await failure(_exchange(stub.full_duplex(timeout=0.001)))
    expect(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
    await no_call_is_left(stub)


async def _exchange(call: Any) -> object:  # noqa: ANN401 - grpcio has no types
    # The call may have ended before; reading tells how.
    with contextlib.suppress(asyncio.InvalidStateError):
        await call.write(m.OutputRequest(payload=m.zeros(_INPUT_SIZES[0])))
    return await call.read()


async def cancel_after_begin(stub: Stub) -> None:
    call = stub.input(timeout=_DEADLINE_S)
    await asyncio.sleep(0)
    call.cancel()
    expect(await call.code(), grpc.StatusCode.CANCELLED)
    await no_call_is_left(stub)


async def cancel_after_first_response(stub: Stub) -> None:
    call = stub.full_duplex(timeout=_DEADLINE_S)
    await call.write(output_request(_INPUT_SIZES[0], response=_OUTPUT_SIZES[0]))
    expect(len((await call.read()).payload.body), _OUTPUT_SIZES[0])
    call.cancel()
    expect(await call.code(), grpc.StatusCode.CANCELLED)
    await no_call_is_left(stub)


async def custom_metadata(stub: Stub) -> None:
    value = ((ECHO_INITIAL, "test_initial_metadata_value"), (ECHO_TRAILING, b"\xab\xab\xab"))
    request = m.SimpleRequest(response_size=_RESPONSE_SIZE, payload=m.zeros(_REQUEST_SIZE))
    unary = stub.unary(request, metadata=value, timeout=_DEADLINE_S)
    await unary
    many = stub.full_duplex(metadata=value, timeout=_DEADLINE_S)
    await many.write(output_request(_REQUEST_SIZE, response=_RESPONSE_SIZE))
    await many.read()
    await many.done_writing()
    for call in (unary, many):
        expect(dict(await call.initial_metadata())[ECHO_INITIAL], value[0][1])
        expect(dict(await call.trailing_metadata())[ECHO_TRAILING], value[1][1])


async def status_code_and_message(stub: Stub) -> None:
    status = m.EchoStatus(code=2, message="test status message")
    error = await failure(stub.unary(m.SimpleRequest(response_status=status), timeout=_DEADLINE_S))
    expect((error.code(), error.details()), (grpc.StatusCode.UNKNOWN, status.message))
    call = stub.full_duplex(timeout=_DEADLINE_S)
    await call.write(m.OutputRequest(response_status=status))
    await call.done_writing()
    error = await failure(call.read())
    expect((error.code(), error.details()), (grpc.StatusCode.UNKNOWN, status.message))


async def special_status_message(stub: Stub) -> None:
    status = m.EchoStatus(code=2, message=_SPECIAL)
    error = await failure(stub.unary(m.SimpleRequest(response_status=status), timeout=_DEADLINE_S))
    expect((error.code(), error.details()), (grpc.StatusCode.UNKNOWN, _SPECIAL))


async def unimplemented_method(stub: Stub) -> None:
    error = await failure(stub.unimplemented(m.Empty(), timeout=_DEADLINE_S))
    expect(error.code(), grpc.StatusCode.UNIMPLEMENTED)


async def unimplemented_service(stub: Stub) -> None:
    other = Stub(stub.channel, f"{m.PACKAGE}.UnimplementedService")
    error = await failure(other.unimplemented(m.Empty(), timeout=_DEADLINE_S))
    expect(error.code(), grpc.StatusCode.UNIMPLEMENTED)


async def messages_of_4_mib(stub: Stub) -> None:
    request = m.SimpleRequest(response_size=_LARGE, payload=m.zeros(_LARGE))
    expect(len((await stub.unary(request, timeout=_DEADLINE_S)).payload.body), _LARGE)


async def compressed_both_ways(stub: Stub) -> None:
    request = m.SimpleRequest(response_size=_RESPONSE_SIZE, payload=m.zeros(_REQUEST_SIZE))
    call = stub.unary(request, compression=grpc.Compression.Gzip, metadata=((COMPRESS, "1"),), timeout=_DEADLINE_S)
    expect(len((await call).payload.body), _RESPONSE_SIZE)


async def deadline_reaches_the_server(stub: Stub) -> None:
    call = stub.empty(m.Empty(), timeout=_DEADLINE_S)
    await call
    left_ms = int(dict(await call.trailing_metadata())[REMAINING])
    # Clients may round a deadline up.
    expect(0 < left_ms <= _DEADLINE_S * 1000 + 1000, True)


CASES: dict[str, Callable[[Stub], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        empty_unary,
        large_unary,
        client_streaming,
        server_streaming,
        ping_pong,
        empty_stream,
        timeout_on_sleeping_server,
        cancel_after_begin,
        cancel_after_first_response,
        custom_metadata,
        status_code_and_message,
        special_status_message,
        unimplemented_method,
        unimplemented_service,
        messages_of_4_mib,
        compressed_both_ways,
        deadline_reaches_the_server,
    )
}


async def run_cases(address: tuple[str, int], authority: str) -> dict[str, str]:
    """Run all cases at an address; returns the problem of each, empty where there is none."""
    options = [*UNBOUNDED, ("grpc.default_authority", authority)]
    result = {}
    async with grpc.aio.insecure_channel(f"{address[0]}:{address[1]}", options=options) as channel:
        await channel.channel_ready()
        for name, case in CASES.items():
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    await case(Stub(channel))
            except (
                AssertionError,
                TimeoutError,
                grpc.aio.AioRpcError,
                asyncio.InvalidStateError,
                LookupError,
            ) as error:
                result[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            else:
                result[name] = ""
    return result
