"""What activator processes of one machine tell each other about slots: MessagePack, a frame is its length and its content.

``Hello`` comes first on a connection. ``Declare`` and ``Ready`` make a view (``ledger.py``); ``Ask`` and ``Give`` move
slots in it (``desk.py``).
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from serving.model.errors import InvalidValue
from serving.model.knative import RevisionKey

__all__ = ["Ask", "Declare", "Frames", "Give", "Hello", "InUse", "Message", "Ready", "Rounds", "Tell", "encode"]

Rounds: TypeAlias = tuple[tuple[int, int], ...]
"""The members of a view in their order, each with the number of the round in which it declared what it uses."""

_LENGTH_BYTES = 4
# A process declares some 100 bytes for each pod that it uses.
_FRAME_BYTES_MAX = 64 * 1024**2


class _Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Any of them, as an array that begins with its name."""


class Hello(_Message, frozen=True, kw_only=True):
    """Who speaks, by its index. Which life of it is for the line to know."""

    index: int


class InUse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A process has ``in_flight`` requests in a pod that takes ``slot_count``."""

    key: RevisionKey
    pod: str
    in_flight: int
    slot_count: int


class Declare(_Message, frozen=True, kw_only=True):
    """All that the sender uses in round ``round``; it uses no more than that until the next view."""

    round: int
    in_use: tuple[InUse, ...]


class Ready(_Message, frozen=True, kw_only=True):
    """The sender has heard these declarations, and begins the view once all its members say the same."""

    rounds: Rounds


class Ask(_Message, frozen=True, kw_only=True):
    """``waiting_count`` requests of a revision wait at the sender, the oldest for ``waited_s``. 0: none does any more."""

    key: RevisionKey
    waiting_count: int
    waited_s: float


class Give(_Message, frozen=True, kw_only=True):
    """``count`` slots of a pod pass to the receiver, in this view and no other."""

    rounds: Rounds
    key: RevisionKey
    pod: str
    count: int


Message: TypeAlias = Hello | Declare | Ready | Ask | Give

Tell: TypeAlias = Callable[[int, Message], None]
"""Sends a message to the process of an index; it may be lost."""

_DECODER = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A frame."""
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


class Frames:
    """Messages out of the bytes of one connection, in whatever pieces they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __repr__(self) -> str:
        return f"Frames({len(self._bytes)} bytes of the next)"

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now.

        Raises:
            InvalidValue: on what is no frame of ours; the connection is of no use any more.
        """
        self._bytes += data
        while len(self._bytes) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")
            if end > _FRAME_BYTES_MAX:
                raise InvalidValue(text=f"a frame of {end} bytes", expected=f"at most {_FRAME_BYTES_MAX} bytes")
            if len(self._bytes) < end:
                return
            content = bytes(self._bytes[_LENGTH_BYTES:end])
            del self._bytes[:end]
            try:
                yield _DECODER.decode(content)
            except msgspec.DecodeError as error:
                raise InvalidValue(text=repr(content[:64]), expected=f"a message about slots: {error}") from error
