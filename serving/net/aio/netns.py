"""Opens sockets in another network namespace (network_namespaces(7)).

A socket belongs to the namespace in which it was created. A single-threaded process enters a namespace only to create a
socket, then returns to its own namespace and connects. This needs root.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

# <linux/sched.h>
_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"
# A thread in the wrong namespace must not continue.
_LOST_EXIT = 70


def enter(descriptor: int) -> None:
    """Move this thread into the network namespace of a descriptor. Raises ``OSError``."""
    # Imported late, because a queue-proxy in a cluster never needs it.
    import ctypes  # noqa: PLC0415

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "network namespace")


def enter_at(path: str) -> None:
    """Move this thread into the network namespace at ``path``; "" does nothing. Raises ``OSError``."""
    if path:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def entered(path: str) -> Iterator[None]:
    """Enter the network namespace at ``path`` within a ``with`` block; "" does nothing.

    The block must not await. Raises ``OSError``.
    """
    if not path:
        yield
        return
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_at(path)
        try:
            yield
        finally:
            try:
                enter(home)
            except OSError:
                os._exit(_LOST_EXIT)
    finally:
        os.close(home)


async def open_connection(
    host: str, port: int, *, network: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to an IPv4 address in the network namespace at the path ``network``. Raises ``OSError``."""
    if not network:
        return await asyncio.open_connection(host, port)
    return await asyncio.open_connection(sock=await connected_socket(host, port, network=network))


async def connected_socket(host: str, port: int, *, network: str) -> socket.socket:
    """A socket connected to an IPv4 address in the network namespace at the path ``network``. Raises ``OSError``."""
    with entered(network):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock
