"""Messages about slots between activator processes of one machine, as length-prefixed MessagePack.

``PeerHello`` comes first on a connection. ``Declare`` and ``ViewReady`` make a view (``ledger.py``); ``Ask`` and
``Give`` move slots in it (``broker.py``).
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.knative import RevisionKey
from serving.core.model.versions import SLOTS, FormatVersion, refuse_newer

Rounds: TypeAlias = tuple[tuple[int, int], ...]
"""The members of a view in order, each with its declaration's round."""

_RELOAD = "`serving up --reload` gives all activators one version"
_LENGTH_BYTES = 4
# A process declares about 100 bytes per used pod.
_FRAME_BYTES_MAX = 64 * 1024**2


class _TaggedMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """A message, encoded as an array whose first element is its name."""


class PeerHello(_TaggedMessage, frozen=True, kw_only=True):
    """The first message: the sender's index and message version; the connection identifies the process."""

    index: int
    version: FormatVersion = SLOTS


class InUse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A process's ``in_flight`` requests in a pod with ``slot_count`` slots."""

    key: RevisionKey
    pod: str
    in_flight: int
    slot_count: int


class Declare(_TaggedMessage, frozen=True, kw_only=True):
    """Declares the sender's requests in flight, because the set of live processes has changed.

    Until the next view (the next set of processes that share slots), the sender starts no more requests than these.
    ``round`` numbers the sender's declarations.
    """

    round: int
    in_use: tuple[InUse, ...]


class ViewReady(_TaggedMessage, frozen=True, kw_only=True):
    """States that the sender has all declarations, and their numbers by process.

    The next view (set of processes that share slots) begins once all members have sent equal ``rounds``.
    """

    rounds: Rounds


class Ask(_TaggedMessage, frozen=True, kw_only=True):
    """A request for slots: ``waiting_count`` requests wait, the oldest for ``waited_s``. A count of 0 withdraws it."""

    key: RevisionKey
    waiting_count: int
    waited_s: float


class Give(_TaggedMessage, frozen=True, kw_only=True):
    """Passes ``count`` slots of a pod to the receiver.

    ``rounds`` identifies the view (set of processes) in which they are passed; in any other view the message is
    ignored.
    """

    rounds: Rounds
    key: RevisionKey
    pod: str
    count: int


SlotMessage: TypeAlias = PeerHello | Declare | ViewReady | Ask | Give

Send: TypeAlias = Callable[[int, SlotMessage], None]
"""Sends a message to the process with an index; the message may be lost."""

_DECODER = msgspec.msgpack.Decoder(SlotMessage)


def encode(message: SlotMessage) -> bytes:
    """The frame of a message."""
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


class Frames:
    """Parses messages from the byte stream of one connection."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[SlotMessage]:
        """The messages completed by ``data``.

        Raises:
            InvalidValue: on bytes that are not a frame, or on a frame of a newer version. The connection is then unusable.
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
                message = _DECODER.decode(content)
            except UNREADABLE as error:
                raise InvalidValue(text=repr(content[:64]), expected=f"a message about slots: {error}") from error
            if isinstance(message, PeerHello):
                refuse_newer("messages about slots", message.version, known=SLOTS, action=_RELOAD)
            yield message
