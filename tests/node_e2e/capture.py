"""What pods of a node send to each other, captured in the network namespace of the node."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Collection, Iterator

import msgspec

_ALL_PROTOCOLS = 0x0003
_IPV4 = b"\x08\x00"
_TCP = 6
_ETHERNET_BYTES = 14
_FRAME_BYTES_MAX = 65_536
_BUFFER_BYTES = 64 * 2**20
# The content type and version of TLS records.
_TLS = (b"\x14\x03", b"\x15\x03", b"\x16\x03", b"\x17\x03")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a TCP segment, and its ends as address and port."""

    sender: tuple[str, int]
    receiver: tuple[str, int]
    payload: bytes

    @property
    def is_tls(self) -> bool:
        """Whether it begins with a TLS record."""
        return self.payload.startswith(_TLS)


def segment_of(frame: bytes) -> Segment | None:
    """The TCP segment in an Ethernet frame; None without one, or without a payload."""
    packet = frame[_ETHERNET_BYTES:]
    if frame[12:14] != _IPV4 or len(packet) < 40 or packet[9] != _TCP:
        return None
    tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4])]
    payload = tcp[(tcp[12] >> 4) * 4 :]
    if not payload:
        return None
    addresses = [socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16)]
    ports = [int.from_bytes(tcp[at : at + 2]) for at in (0, 2)]
    sender, receiver = zip(addresses, ports, strict=True)
    return Segment(sender=sender, receiver=receiver, payload=payload)


def may_capture() -> bool:
    """Whether this process may open a packet socket."""
    try:
        _opened().close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def captured() -> Iterator[list[Segment]]:
    """All segments that pass an interface of this namespace during the context."""
    segments: list[Segment] = []
    ending, end = os.pipe()
    packets = _opened()
    thread = threading.Thread(target=_read, args=(packets, ending, segments))
    thread.start()
    try:
        yield segments
    finally:
        os.close(end)
        thread.join()
        os.close(ending)
        packets.close()


def between(segments: Collection[Segment], addresses: Collection[str]) -> list[Segment]:
    """The segments with both ends among these addresses."""
    return [segment for segment in segments if segment.sender[0] in addresses and segment.receiver[0] in addresses]


def _opened() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return sock


def _read(packets: socket.socket, ending: int, segments: list[Segment]) -> None:
    while True:
        ready, _, _ = select.select([packets.fileno(), ending], [], [])
        if ending in ready:
            return
        segment = segment_of(packets.recv(_FRAME_BYTES_MAX))
        if segment is not None:
            segments.append(segment)
