"""The gateway of a system's pods: two addresses of this machine, at which pods find services and their names.

At ``inner`` are the name server and the cluster-local services, at ``public`` the hosts of routes: each at port 80 and at the
port that it has for clients of this machine. The addresses differ from system to system, by the state folder.
"""

import contextlib
import hashlib
import socket
from pathlib import Path

import msgspec

_INNER_NETWORK, _PUBLIC_NETWORK = "10.138", "10.139"
_HTTP_PORT = 80
_BACKLOG = 4096
# <linux/in.h>: bind to an address that the machine is to have soon.
_IP_FREEBIND = 15


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """The two addresses."""

    inner: str
    public: str


def gateway_of(state: Path) -> Gateway:
    """The gateway of the system with this state folder."""
    third, fourth = hashlib.sha256(str(state).encode()).digest()[:2]
    host = f"{third}.{min(max(fourth, 1), 254)}"
    return Gateway(inner=f"{_INNER_NETWORK}.{host}", public=f"{_PUBLIC_NETWORK}.{host}")


def bind_gateway(gateway: Gateway, *, inner_port: int, public_port: int) -> dict[str, socket.socket]:
    """Listening sockets for the activators, as "inner-pods-80". One that cannot be bound is left out: without root all of them."""
    found = {}
    for name, address, own in (("inner", gateway.inner, inner_port), ("public", gateway.public, public_port)):
        for port in {_HTTP_PORT, own}:
            with contextlib.suppress(OSError):
                made = socket.socket()
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                made.bind((address, port))
                made.listen(_BACKLOG)
                found[f"{name}-pods-{port}"] = made
    return found
