"""exec and attach over websockets, with the protocols and channels of ``channels``.

Clients send stdin and the size of their terminal; they get stdout, stderr and the final Status.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import WSMsgType, web

from serving.core.model.errors import UNREADABLE, ClusterError
from serving.core.model.objects import Object
from serving.home.apiserver.channels import CLOSE, PROTOCOLS, RESIZE, STATUS, STDIN
from serving.home.apiserver.podstreams import ExecSession
from serving.home.apiserver.requests import Fault, refusal
from serving.net.aio.supervise import TaskOwner

_log = logging.getLogger(__name__)

_FAILED = {"metadata": {}, "status": "Failure"}


class _TerminalSize(msgspec.Struct, rename="pascal"):
    width: int
    height: int


async def upgraded(request: web.Request, protocols: tuple[str, ...]) -> web.WebSocketResponse:
    """Upgrade the request to a websocket. Raises ``Fault`` 400 if the client supports none of ``protocols``."""
    socket = web.WebSocketResponse(protocols=protocols, autoping=True, max_msg_size=0)
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    if not socket.can_prepare(request).ok:
        raise Fault(
            400,
            "this server streams over websockets and not over SPDY: use kubectl 1.31 or newer, or 1.29 with "
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true",
        )
    if not any(protocol.strip() in protocols for protocol in offered.split(",")):
        raise Fault(400, f"the websocket's protocol is one of {', '.join(protocols)}, not {offered or 'none'}")
    await socket.prepare(request)
    return socket


async def stream_session(request: web.Request, begin: Callable[[], Awaitable[ExecSession]]) -> web.WebSocketResponse:
    """Run a session over a websocket until the command ends or the client disconnects.

    The client receives every error as the final Status, because after the upgrade there is no other response.
    """
    socket = await upgraded(request, PROTOCOLS)
    with contextlib.suppress(ConnectionResetError):
        try:
            await _stream(socket, await begin())
        except (ClusterError, Fault) as error:
            await _end(socket, refusal(error))
        except ConnectionResetError:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost frame of a stream: its client must get an answer
            if not isinstance(error, OSError):
                _log.exception("api.stream_failed path=%s", request.path)
            await _end(socket, {**_FAILED, "message": str(error), "reason": "InternalError", "code": 500})
    return socket


async def _stream(socket: web.WebSocketResponse, session: ExecSession) -> None:
    try:
        async with TaskOwner() as tasks:
            receiving = tasks.start(_receive(socket, session), name="exec input")
            sending = tasks.start(_send(socket, session), name="exec output", is_awaited=True)
            await asyncio.wait([receiving, sending], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
                code = await session.exit_code()
                await _end(socket, _failure(code) if code else {"metadata": {}, "status": "Success"})
    finally:
        await session.close()


async def _send(socket: web.WebSocketResponse, session: ExecSession) -> None:
    # A client that disconnects ends the inner loop, because output must not be read after its descriptors are closed.
    async with contextlib.aclosing(session.output()) as output:
        async for channel, piece in output:
            await socket.send_bytes(bytes([channel]) + piece)


async def _receive(socket: web.WebSocketResponse, session: ExecSession) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await session.write(data)
        elif channel == CLOSE and data == bytes([STDIN]):
            session.end_input()
        elif channel == RESIZE:
            with contextlib.suppress(*UNREADABLE):
                size = msgspec.json.decode(data, type=_TerminalSize)
                session.resize(columns=size.width, rows=size.height)


async def _end(socket: web.WebSocketResponse, status: Object) -> None:
    await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(status))
    await socket.close()


def _failure(code: int) -> Object:
    return {
        **_FAILED,
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
