"""The clients of ``bench/soak.py``: each does one thing of its kind, and returns how it went."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import grpc.aio  # type: ignore[import-untyped]  # it has no types
from websockets.asyncio.client import connect

from serving.tools.samples import grpc_echo

HOST = b"Host: hello.default.localhost\r\n"
RESPONSE_WITHIN_S = 20.0
BODY = b"x" * 50_000

Kind = Callable[[int, random.Random], Awaitable[str]]


async def _asked(port: int, wire: bytes, *, leave_after_s: float | None = None) -> str:
    """Send, and read to the end; the status, or what came instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(wire)
        if leave_after_s is not None:
            await asyncio.sleep(leave_after_s)
            return "left"
        async with asyncio.timeout(RESPONSE_WITHIN_S):
            return (await reader.read())[9:12].decode() or "closed"
    finally:
        writer.close()


async def short(port: int, _: random.Random) -> str:
    """A connection for one request."""
    return await _asked(port, b"GET / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def kept(port: int, dice: random.Random) -> str:
    """Some requests on one connection, sent ahead."""
    count = dice.randint(2, 50)
    wire = b"GET / HTTP/1.1\r\nX-Unique: %d\r\n%b\r\n" % (dice.getrandbits(64), HOST)
    return await _asked(port, wire * count + b"GET / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def by_length(port: int, dice: random.Random) -> str:
    """A body by its length."""
    body = BODY[: dice.randint(1, len(BODY))]
    head = b"PUT / HTTP/1.1\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(body))
    return await _asked(port, head + body)


async def in_chunks(port: int, dice: random.Random) -> str:
    """A body in chunks, of any sizes."""
    body, wire = BODY[: dice.randint(1, len(BODY))], b""
    while body:
        size = dice.randint(1, 20_000)
        wire += b"%x\r\n%b\r\n" % (len(body[:size]), body[:size])
        body = body[size:]
    head = b"PUT / HTTP/1.1\r\nConnection: close\r\n%bTransfer-Encoding: chunked\r\n\r\n" % HOST
    return await _asked(port, head + wire + b"0\r\n\r\n")


async def websocket(port: int, dice: random.Random) -> str:
    """A tunnel with some echoes; every second one ends without a goodbye."""
    url = f"ws://{HOST[6:-2].decode()}/echo"
    async with (
        asyncio.timeout(RESPONSE_WITHIN_S),
        connect(url, host="127.0.0.1", port=port, compression=None, proxy=None) as client,
    ):
        for _ in range(dice.randint(1, 20)):
            message = dice.randbytes(dice.randint(1, 2000))
            await client.send(message)
            if await client.recv() != message:
                return "another echo"
        if dice.random() < 0.5:
            client.transport.abort()
    return "echoed"


async def events(port: int, dice: random.Random) -> str:
    """A stream of events that is left after some."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /events?pause=0.05 HTTP/1.1\r\n%b\r\n" % HOST)
        async with asyncio.timeout(RESPONSE_WITHIN_S):
            for number in range(1, dice.randint(2, 20)):
                await reader.readuntil(b"data: %d\n\n" % number)
        return "heard"
    finally:
        writer.close()


async def slow(port: int, _: random.Random) -> str:
    """An answer after 100 ms."""
    return await _asked(port, b"GET /slow HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def leaves(port: int, dice: random.Random) -> str:
    """A client that leaves before its answer."""
    wire = b"GET /slow HTTP/1.1\r\n%b\r\n" % HOST
    return await _asked(port, wire, leave_after_s=dice.uniform(0, 0.1))


async def half(port: int, dice: random.Random) -> str:
    """A client that leaves in the middle of its body."""
    wire = b"POST / HTTP/1.1\r\n%bContent-Length: 100000\r\n\r\n%b" % (HOST, BODY)
    return await _asked(port, wire, leave_after_s=dice.uniform(0, 0.05))


async def nonsense(port: int, dice: random.Random) -> str:
    """Bytes that are no request."""
    return await _asked(port, dice.randbytes(50) + b"\r\n\r\n")


def channel_to(port: int) -> grpc.aio.Channel:
    """A connection that nothing else uses."""
    options = [
        ("grpc.default_authority", HOST[6:-2].decode()),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


def method(name: str) -> str:
    """The path of a method of the sample app."""
    return f"/{grpc_echo.SERVICE}/{name}"


async def grpc_unary(port: int, dice: random.Random) -> str:
    """Some calls at once on one connection, with messages of all sizes."""
    async with channel_to(port) as channel:
        say = channel.unary_unary(method("Say"))
        sent = [dice.randbytes(dice.choice((0, 10, 1000, 100_000))) for _ in range(dice.randint(1, 30))]
        responses = await asyncio.gather(*[say(one, timeout=RESPONSE_WITHIN_S) for one in sent])
    return "echoed" if responses == sent else "another echo"


async def grpc_large(port: int, dice: random.Random) -> str:
    """A large message there and back."""
    message = dice.randbytes(dice.randint(1, 3_000_000))
    async with channel_to(port) as channel:
        response = await channel.unary_unary(method("Say"))(message, timeout=RESPONSE_WITHIN_S)
    return "echoed" if response == message else "another echo"


async def grpc_chat(port: int, dice: random.Random) -> str:
    """A stream in both directions; every second one is cancelled in the middle."""
    async with channel_to(port) as channel:
        call = channel.stream_stream(method("Chat"))(timeout=RESPONSE_WITHIN_S)
        for _ in range(dice.randint(1, 50)):
            message = dice.randbytes(dice.randint(1, 2000))
            await call.write(message)
            if await call.read() != message:
                return "another echo"
        if dice.random() < 0.5:
            call.cancel()
        else:
            await call.done_writing()
            await call.read()
    return "echoed"


async def grpc_cancelled(port: int, dice: random.Random) -> str:
    """Calls that are cancelled while they wait."""
    async with channel_to(port) as channel:
        calls = [channel.unary_unary(method("Wait"))(b"30") for _ in range(dice.randint(1, 5))]
        await asyncio.sleep(dice.uniform(0, 0.1))
        for call in calls:
            call.cancel()
    return "left"


async def grpc_late(port: int, dice: random.Random) -> str:
    """A call whose deadline passes."""
    async with channel_to(port) as channel:
        try:
            await channel.unary_unary(method("Wait"))(b"30", timeout=dice.uniform(0.01, 0.2))
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "answered"


KINDS: tuple[Kind, ...] = (short, kept, by_length, in_chunks, slow, websocket, events, leaves, half, nonsense)
GRPC_KINDS: tuple[Kind, ...] = (grpc_unary, grpc_large, grpc_chat, grpc_cancelled, grpc_late)
RIGHT = {
    **dict.fromkeys(("short", "kept", "by_length", "in_chunks", "slow"), "200"),
    **dict.fromkeys(("grpc_unary", "grpc_large", "grpc_chat"), "echoed"),
    "grpc_late": "DEADLINE_EXCEEDED",
    "websocket": "echoed",
    "events": "heard",
}
