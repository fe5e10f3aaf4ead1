"""What a client sends while its request waits for a slot: read ahead, so that a client that leaves is noticed."""

import asyncio
from collections import deque
from collections.abc import Callable

from serving.queueproxy.io.asgi.messages import Message, Receive


class Inbox:
    """Messages from the server, read ahead up to a bound. ``on_gone`` is called when the client has left."""

    def __init__(self, receive: Receive, *, held_bytes_max: int, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._held_bytes_max = held_bytes_max
        self._on_gone = on_gone
        self._held: deque[Message] = deque()
        self._reading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Inbox({len(self._held)} messages)"

    def read_ahead(self) -> None:
        """Read until the client leaves, or as much as is held at most."""
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="read ahead")

    async def _read(self) -> None:
        held_bytes = 0
        while held_bytes < self._held_bytes_max:
            message = await self._receive()
            self._held.append(message)
            if message["type"].endswith(".disconnect"):
                self._on_gone()
                return
            held_bytes += len(message.get("body") or b"")

    async def stop(self) -> None:
        """Read ahead no more. A server loses no message when a read of it is cancelled."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._reading = None

    async def receive(self) -> Message:
        """The next message, for the app."""
        return self._held.popleft() if self._held else await self._receive()
