"""Encoding of messages between activators."""

import msgspec
import pytest

from serving.activator.slots.messages import (
    Ask,
    Declare,
    Frames,
    Give,
    InUse,
    PeerHello,
    SlotMessage,
    ViewReady,
    encode,
)
from serving.core.model.errors import InvalidValue, NewerFormat
from serving.core.model.versions import SLOTS

KEY = ("default", "hello-00001")
MESSAGES: list[SlotMessage] = [
    PeerHello(index=1),
    Declare(round=7, in_use=(InUse(key=KEY, pod="p", in_flight=1, slot_count=2),)),
    ViewReady(rounds=((0, 7), (1, 9))),
    Ask(key=KEY, waiting_count=3, waited_s=0.25),
    Give(rounds=((0, 7), (1, 9)), key=KEY, pod="p", count=1),
]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_round_trip_for_any_chunk_size(size: int) -> None:
    wire = b"".join(map(encode, MESSAGES))
    frames, results = Frames(), list[SlotMessage]()
    for start in range(0, len(wire), size):
        results += frames.feed(wire[start : start + size])
    assert results == MESSAGES


@pytest.mark.parametrize("content", [msgspec.msgpack.encode(["Steal", 1]), b"\x93\xa9Peer\xffello\x01\x01"])
def test_unknown_or_malformed_message_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidValue, match="a message about slots"):
        list(Frames().feed(len(content).to_bytes(4, "big") + content))


def test_oversized_frame_is_rejected_by_its_length() -> None:
    with pytest.raises(InvalidValue, match="at most 67108864 bytes"):
        list(Frames().feed(b"\xff\xff\xff\xff"))


def test_newer_peer_version_is_rejected_and_newer_fields_are_accepted() -> None:
    def framed(*fields: object) -> bytes:
        content = msgspec.msgpack.encode(fields)
        return len(content).to_bytes(4, "big") + content

    assert list(Frames().feed(framed("PeerHello", 1))) == [PeerHello(index=1)]
    assert list(Frames().feed(framed("PeerHello", 1, SLOTS, "more"))) == [PeerHello(index=1)]
    with pytest.raises(NewerFormat, match="`serving up --reload` gives all activators one version"):
        list(Frames().feed(framed("PeerHello", 1, SLOTS + 1)))
