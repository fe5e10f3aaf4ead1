"""Reads unread bytes of a lost connection, and counts unreceived ones.

Both are asked within ``connection_lost``, while the socket is still open. A transport over TLS passes the socket below it.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Iterator

_READ_BYTES = 256 * 1024
# Of struct tcp_info (linux/tcp.h, since Linux 4.19): bytes_acked, which counts the SYN, and bytes_sent and bytes_retrans.
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ACKED = struct.Struct("=Q")
_ACKED_OFFSET = 120
_SENT = struct.Struct("=QQ")
_SENT_OFFSET = 200
_INFO_BYTES = _SENT_OFFSET + _SENT.size


def unread_pieces(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Read the received bytes that the loop has not read, as after a failed write. They are at most a receive buffer."""
    descriptor = _descriptor_of(transport)
    while descriptor >= 0:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            return
        if not data:
            return
        yield data


def unreceived_bytes(transport: asyncio.BaseTransport) -> int:
    """How many of the last written bytes the peer has not received; 0 if the kernel does not say.

    A peer that closes acknowledges all that it has received until then.
    """
    if _TCP_INFO is None or _descriptor_of(transport) < 0:
        return 0
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return 0
    if len(info) < _INFO_BYTES:
        return 0
    (acked,), (sent, resent) = _ACKED.unpack_from(info, _ACKED_OFFSET), _SENT.unpack_from(info, _SENT_OFFSET)
    # A transport that was closing has sent nothing of what was written.
    return int(sent - resent - (acked - 1)) if sent else sys.maxsize


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The open descriptor of a transport; -1 without one."""
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())
