"""The listening sockets of ``serving up``, which its supervisor holds while daemons come and go. Standard library only."""

import os
import socket
from collections.abc import Collection, Mapping

from serving.model.errors import Problem, SettingsError

__all__ = ["Ports", "bind"]

_BACKLOG = 4096

Ports = Mapping[str, int]
"""Port of each listening socket by name: public, inner, api, stats."""


def bind(ports: Ports, *, unheard: Collection[str] = ()) -> dict[str, socket.socket]:
    """A listening socket on 127.0.0.1 for each port.

    Those named in ``unheard`` are bound and refuse connections until the activator listens; they are left out where the
    port is taken.

    Raises:
        SettingsError: with a problem for each port that is taken.
    """
    found: dict[str, socket.socket] = {}
    problems = []
    for name, port in ports.items():
        try:
            found[name] = (
                _bound(port) if name in unheard else socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
            )
        except OSError as error:
            if name in unheard:
                continue
            what = f"port {port} cannot be taken: {os.strerror(error.errno or 0)}"
            problems.append(Problem(where=f"--{name}-port", what=what, expected="a free port"))
    if problems:
        for one in found.values():
            one.close()
        raise SettingsError(problems)
    return found


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one
