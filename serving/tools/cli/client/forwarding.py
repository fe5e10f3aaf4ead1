"""Forwards ports of this machine to ports of pods, as ``kubectl port-forward`` does, with one websocket per connection.

The protocol is ``v4.channel.k8s.io``: the first byte of a message is the channel, 0 for data and 1 for errors, and the
first message of each channel is the port.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State
from websockets.typing import Subprotocol

from serving.core.model.errors import ServingError, Unavailable
from serving.net.aio.clock import now_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import POD
from serving.tools.cli.client.api import ApiCall, ApiClient
from serving.tools.cli.client.connection import WebsocketPlace
from serving.tools.cli.client.resources import path_of

_T = TypeVar("_T")

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 32 * 1024
# The server closes a connection without requests.
_UNUSED_MAX_S = 5.0


async def open_websocket(place: WebsocketPlace, protocols: Sequence[str]) -> ClientConnection:
    """Open a websocket with one of these protocols. Raises ``Unavailable``, or ``ServingError`` if the API refuses."""
    try:
        return await connect(
            place.url.replace("http", "ws", 1),
            ssl=place.tls,
            subprotocols=[Subprotocol(protocol) for protocol in protocols],
            additional_headers=place.headers,
            proxy=None,
            compression=None,
            max_size=None,
            # The command does not answer the server's pings while it does not read.
            ping_timeout=None,
        )
    except InvalidStatus as error:
        text = (error.response.body or b"").decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError, LookupError, TypeError):
            text = str(json.loads(text)["message"])
        raise ServingError(text or f"status {error.response.status_code}") from error
    except (InvalidHandshake, OSError) as error:
        raise Unavailable(str(error) or type(error).__name__) from error


class PodPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a pod."""

    namespace: str
    pod: str
    port: int


class PortForwarder:
    """Forwards ports until the process ends. ``problem`` is why a pod last refused a connection."""

    def __init__(self, api: ApiClient) -> None:
        self.problem = ""
        self._api = api
        self._urls: dict[tuple[PodPort, int], str] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="forwarded ports", daemon=True).start()

    def forward(self, place: PodPort, *, local_port: int = 0) -> str:
        """Forward a pod's port; return its local URL. ``local_port`` 0 selects a free port.

        Raises:
            ServingError: with the API's message, when the API rejects the forwarding.
            OSError: when the local port is in use.
        """
        key = (place, local_port)
        if key not in self._urls:
            self._urls[key] = f"http://{_LOOPBACK}:{self._run(self._listen(place, local_port))}"
        return self._urls[key]

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, place: PodPort, local_port: int) -> int:
        # This websocket checks the user's rights, and serves the first connection.
        waiting = [(await self._open(place), now_s())]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                websocket, opened_s = waiting.pop() if waiting else (await self._open(place), now_s())
                if websocket.state is not State.OPEN or now_s() - opened_s > _UNUSED_MAX_S:
                    await websocket.close()
                    websocket = await self._open(place)
                async with websocket, supervise() as tasks:
                    tasks.start_background(_send(reader, websocket), name="forwarded request")
                    await self._receive(websocket, writer)
            except Exception as error:  # noqa: BLE001 - the loop of another thread: the connection ends, and its client says so
                self.problem = str(error)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, _LOOPBACK, local_port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _open(self, place: PodPort) -> ClientConnection:
        path = path_of(POD, place.namespace, place.pod, subresource="portforward")
        call = ApiCall(path=path, query={"ports": str(place.port)})
        # A program may supply new credentials.
        return await open_websocket(await asyncio.to_thread(self._api.websocket, call), [_PROTOCOL])

    async def _receive(self, websocket: ClientConnection, writer: asyncio.StreamWriter) -> None:
        begun = set[int]()
        with contextlib.suppress(ConnectionClosed, ConnectionError):
            async for message in websocket:
                assert isinstance(message, bytes)
                channel = message[0]
                if channel not in begun:
                    begun.add(channel)
                elif channel == _ERROR and message[1:]:
                    self.problem = message[1:].decode("utf-8", "replace").strip()
                    return
                elif channel == _DATA:
                    writer.write(message[1:])
                    await writer.drain()


async def _send(reader: asyncio.StreamReader, websocket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed, ConnectionError):
        while piece := await reader.read(_PIECE_BYTES):
            await websocket.send(bytes([_DATA]) + piece)
    # The protocol cannot end one direction alone.
    await websocket.close()
