"""The test service of gRPC's interoperability cases, on grpcio.

    python -m tests.conformance.grpc.server PORT

Each response carries, beyond the published service, the trailer ``x-active-calls``: the number of other calls that are
running. It shows that a cancelled call has ended here too.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]

from tests.conformance.grpc import messages as m

ECHO_INITIAL = "x-grpc-test-echo-initial"
ECHO_TRAILING = "x-grpc-test-echo-trailing-bin"
ACTIVE = "x-active-calls"
REMAINING = "x-deadline-ms"
COMPRESS = "x-compress"
UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class TestService:
    """The methods that the cases call."""

    __test__ = False

    def __init__(self) -> None:
        self._active = 0

    async def _begin(self, context: Any) -> None:  # noqa: ANN401 - grpcio has no types
        invocation_metadata = dict(context.invocation_metadata())
        if ECHO_INITIAL in invocation_metadata:
            await context.send_initial_metadata(((ECHO_INITIAL, invocation_metadata[ECHO_INITIAL]),))
        if COMPRESS in invocation_metadata:
            context.set_compression(grpc.Compression.Gzip)
        trailing = [(ACTIVE, str(self._active))]
        if ECHO_TRAILING in invocation_metadata:
            trailing.append((ECHO_TRAILING, invocation_metadata[ECHO_TRAILING]))
        if (left_s := context.time_remaining()) is not None:
            trailing.append((REMAINING, str(int(left_s * 1000))))
        context.set_trailing_metadata(tuple(trailing))

    async def empty(self, _: Any, context: Any) -> Any:  # noqa: ANN401
        """EmptyCall."""
        await self._begin(context)
        return m.Empty()

    async def unary(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """UnaryCall: a payload of the size that is asked for, or the status."""
        await self._begin(context)
        if request.response_status.code:
            await context.abort(grpc_code(request.response_status.code), request.response_status.message)
        return m.SimpleResponse(payload=m.zeros(request.response_size))

    async def output(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """StreamingOutputCall: a response for each parameter."""
        await self._begin(context)
        for parameters in request.response_parameters:
            await asyncio.sleep(parameters.interval_us / 1e6)
            yield m.OutputResponse(payload=m.zeros(parameters.size))

    async def input(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: ANN401
        """StreamingInputCall: the size of all payloads."""
        await self._begin(context)
        self._active += 1
        try:
            size = sum([len(request.payload.body) async for request in requests])
        finally:
            self._active -= 1
        return m.InputResponse(aggregated_payload_size=size)

    async def full_duplex(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """FullDuplexCall: responses as each request asks."""
        await self._begin(context)
        self._active += 1
        try:
            async for request in requests:
                if request.response_status.code:
                    await context.abort(grpc_code(request.response_status.code), request.response_status.message)
                for parameters in request.response_parameters:
                    await asyncio.sleep(parameters.interval_us / 1e6)
                    yield m.OutputResponse(payload=m.zeros(parameters.size))
        finally:
            self._active -= 1


def grpc_code(number: int) -> grpc.StatusCode:
    """The code of a number."""
    return next(code for code in grpc.StatusCode if code.value[0] == number)


def handlers(service: TestService) -> dict[str, Any]:
    """A handler per method. ``UnimplementedCall`` is left out on purpose."""
    kinds = {
        "EmptyCall": (grpc.unary_unary_rpc_method_handler, service.empty, m.Empty),
        "UnaryCall": (grpc.unary_unary_rpc_method_handler, service.unary, m.SimpleRequest),
        "StreamingOutputCall": (grpc.unary_stream_rpc_method_handler, service.output, m.OutputRequest),
        "StreamingInputCall": (grpc.stream_unary_rpc_method_handler, service.input, m.InputRequest),
        "FullDuplexCall": (grpc.stream_stream_rpc_method_handler, service.full_duplex, m.OutputRequest),
    }
    return {
        name: make(
            behavior,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (make, behavior, request) in kinds.items()
    }


async def started(port: int, service: TestService) -> tuple[grpc.aio.Server, int]:
    """Start a server at a port, or at a free one for 0; returns it and its port."""
    server = grpc.aio.server(options=[*UNBOUNDED, ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(m.SERVICE, handlers(service)),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


async def main(port: int) -> None:
    """Serve until killed."""
    server, _ = await started(port, TestService())
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
