"""A sample service for gRPC with every kind of call, without generated code. Needs grpcio.

Deploy it with a port named h2c. Messages are plain bytes; methods of ``serving.samples.Echo``:

- ``Say`` returns the message, and names its revision in the trailer ``revision``.
- ``Wait`` sleeps for the given number of seconds, and returns the maximum number of concurrent calls so far.
- ``Repeat`` returns the message three times. ``Join`` joins the messages, ``Count`` counts their bytes. ``Chat``
  returns each message immediately.
- ``Refuse`` returns the status NOT_FOUND with the message as status text.
- ``Cancelled`` returns how many calls of ``Wait`` were cancelled by their client or deadline.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import grpc  # type: ignore[import-untyped]  # It has no types.
import grpc.aio  # type: ignore[import-untyped]

SERVICE = "serving.samples.Echo"
_REPEATS = 3


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # as above
    """The gRPC service."""

    def __init__(self) -> None:
        self.running_count = 0
        self.most_count = 0
        self.cancelled_count = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call; None for an unknown method."""
        kinds = {
            "Say": grpc.unary_unary_rpc_method_handler(self._reply),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait),
            "Refuse": grpc.unary_unary_rpc_method_handler(self._refuse),
            "Cancelled": grpc.unary_unary_rpc_method_handler(self._cancelled),
            "Repeat": grpc.unary_stream_rpc_method_handler(self._repeat),
            "Join": grpc.stream_unary_rpc_method_handler(self._join),
            "Count": grpc.stream_unary_rpc_method_handler(self._count),
            "Chat": grpc.stream_stream_rpc_method_handler(self._chat),
        }
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        return kinds.get(method) if service == SERVICE else None

    async def _reply(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        context.set_trailing_metadata((("revision", os.environ.get("K_REVISION", "no revision")),))
        return request

    async def _wait(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        del context
        self.running_count += 1
        self.most_count = max(self.most_count, self.running_count)
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        finally:
            self.running_count -= 1
        return b"%d" % self.most_count

    async def _refuse(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, request.decode())
        raise AssertionError

    async def _cancelled(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        del request, context
        return b"%d" % self.cancelled_count

    async def _repeat(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        del context
        for _ in range(_REPEATS):
            yield request

    async def _join(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        del context
        return b"".join([request async for request in requests])

    async def _count(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        del context
        return b"%d" % sum([len(request) async for request in requests])

    async def _chat(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        del context
        async for request in requests:
            yield request


async def main() -> None:
    """Serve until the process ends."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"127.0.0.1:{os.environ.get('PORT', '8080')}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
