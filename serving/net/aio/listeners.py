"""Finds the owner of a listening socket on this machine, by sock_diag(7) or, without it, proc_net_tcp(5).

Any process may query the owner. sock_diag(7) responds in some 20 µs. The tables of /proc take a millisecond or more on
a machine with many sockets.
"""

import contextlib
import errno
import functools
import os
import socket
import struct
from typing import NamedTuple

# <linux/netlink.h>, <linux/sock_diag.h>, <linux/inet_diag.h>, <linux/tcp_states.h>
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_LISTEN = 10
_NO_COOKIE = 0xFFFFFFFF
_MESSAGE_HEAD = struct.Struct("=IHHII")
# Family, protocol, extensions, states; then ports and addresses, the interface and the cookie.
_REQUEST = struct.Struct("=BBBxI2s2x4s12x16xI2I")
_REPLY = struct.Struct("=BBBB2s2x4s12x16xI2IIIIII")
_ERROR = struct.Struct("=i")
_REPLY_BYTES_MAX = 4096
# Columns of /proc/net/tcp.
_ADDRESS, _STATE, _USER, _INODE = 1, 3, 7, 9
_LISTEN_TEXT, _ANY = "0A", (b"\0" * 4, b"\0" * 16)
_MAPPED = b"\0" * 10 + b"\xff\xff"


class ListeningSocket(NamedTuple):
    """A listening socket: its user and its inode.

    ``cookie`` is a number that no other socket gets until the machine restarts. If the kernel has no cookies, it is the
    inode.
    """

    user: int
    inode: int
    cookie: int


def listener_at(host: str, port: int) -> ListeningSocket | None:
    """The socket that accepts connections to an IPv4 address of this machine; None if there is none."""
    if has_sock_diag():
        return _queried(host, port)
    return _read(host, port)


def is_closed(host: str, port: int) -> bool:
    """Whether no socket accepts connections to an IPv4 address of this machine; False if only a connection can tell."""
    reply = _reply(host, port) if has_sock_diag() else b""
    return (
        bool(reply)
        and _MESSAGE_HEAD.unpack_from(reply)[1] == _NLMSG_ERROR
        and _ERROR.unpack_from(reply, _MESSAGE_HEAD.size)[0] == -errno.ENOENT
    )


@functools.cache
def has_sock_diag() -> bool:
    """Whether the kernel supports sock_diag(7). Without it, no sockets are found."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return _queried("127.0.0.1", probe.getsockname()[1]) is not None


def _queried(host: str, port: int) -> ListeningSocket | None:
    reply = _reply(host, port)
    if not reply or _MESSAGE_HEAD.unpack_from(reply)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    fields = _REPLY.unpack_from(reply, _MESSAGE_HEAD.size)
    low, high = fields[7:9]
    return ListeningSocket(user=fields[-2], inode=fields[-1], cookie=high << 32 | low)


def _reply(host: str, port: int) -> bytes:
    """The kernel's reply about a listening socket; b"" without a reply."""
    address = (struct.pack("!H", port), socket.inet_aton(host))
    wanted = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << _LISTEN, *address, 0, _NO_COOKIE, _NO_COOKIE)
    head = _MESSAGE_HEAD.pack(_MESSAGE_HEAD.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
            link.send(head + wanted)
            return link.recv(_REPLY_BYTES_MAX)
    except OSError:
        return b""


def _read(host: str, port: int) -> ListeningSocket | None:
    wanted = {socket.inet_aton(host), _MAPPED + socket.inet_aton(host), *_ANY}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as table:  # noqa: PTH123 - a queue-proxy starts without pathlib
            for line in table.readlines()[1:]:
                fields = line.split()
                address, _, number = fields[_ADDRESS].partition(":")
                if fields[_STATE] == _LISTEN_TEXT and int(number, 16) == port and _bytes_of(address) in wanted:
                    inode = int(fields[_INODE])
                    return ListeningSocket(user=int(fields[_USER]), inode=inode, cookie=inode)
    return None


def listening_ports() -> set[int]:
    """All ports with a listener in the network of this process."""
    ports: set[int] = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as table:  # noqa: PTH123 - as above
            for line in table.readlines()[1:]:
                fields = line.split()
                if fields[_STATE] == _LISTEN_TEXT:
                    ports.add(int(fields[_ADDRESS].rpartition(":")[2], 16))
    return ports


def _bytes_of(address: str) -> bytes:
    """The bytes of an address from the kernel's table, whose 32-bit words have the machine's byte order."""
    words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
    return b"".join(struct.pack("=I", word) for word in words)


def has_socket(pid: int, inode: int) -> bool:
    """Whether a process has this socket open; False if its descriptors are not accessible."""
    wanted = f"socket:[{inode}]"
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                if os.readlink(descriptor.path) == wanted:  # noqa: PTH115 - as above
                    return True
    return False
