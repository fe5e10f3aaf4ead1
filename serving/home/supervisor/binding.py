"""Binds the listening sockets of ``serving up``. The supervisor holds them while daemons restart."""

import contextlib
import os
import re
import socket
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.home.state import StateFolder

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
    errors: dict[str, OSError] = {}
    for name, port in ports.items():
        try:
            found[name] = (
                _bound(port) if name in unheard else socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
            )
        except OSError as error:
            if name in unheard:
                continue
            errors[name] = error
    if errors:
        for one in found.values():
            one.close()
        raise SettingsError(_problems(errors, ports))
    return found


def _problems(errors: Mapping[str, OSError], ports: Mapping[str, int]) -> list[Problem]:
    """A problem for each taken port; ports of another local system share one."""
    found, held = [], defaultdict[Path, list[str]](list)
    for name, error in errors.items():
        holder = _holder(ports[name])
        if holder is None:
            what = f"port {ports[name]} cannot be taken: {os.strerror(error.errno or 0)}"
            found.append(Problem(where=f"--{name}-port", what=what, expected="a free port"))
        else:
            held[holder].append(name)
    for holder, names in held.items():
        numbers = ", ".join(str(ports[name]) for name in names)
        them = f"port {numbers} is that" if len(names) == 1 else f"ports {numbers} are those"
        what = f"{them} of the `serving up` with the state folder {holder}"
        expected = f"other ports, such as 0, or `serving down --state {holder}` first"
        found.append(Problem(where=", ".join(f"--{name}-port" for name in names), what=what, expected=expected))
    return found


def _holder(port: int) -> Path | None:
    """The state folder of the local system holding a port, from its daemons' environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            found = re.search(rb"(?:^|\0)SERVING_STATE=([^\0]+)", (process / "environ").read_bytes())
            state = Path(os.fsdecode(found[1])) if found else None
            if state is not None and port in StateFolder(state).read_ports().values():
                return state
    return None


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


class ListenPort(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket on 127.0.0.1 that the supervisor holds and hands down. ``number`` is its default."""

    name: str
    number: int
    what: str


PORTS = (
    ListenPort(name="public", number=8080, what="Port of all services."),
    ListenPort(name="tls", number=8443, what="Port of all services over TLS, if there is a certificate."),
    ListenPort(name="inner", number=8081, what="Port of cluster-local services."),
    ListenPort(name="api", number=6080, what="Port of the Kubernetes API."),
    ListenPort(name="stats", number=6081, what="Port of the autoscaler."),
    ListenPort(name="activator-metrics", number=6082, what="Port of the activator's metrics."),
    ListenPort(name="control-metrics", number=6083, what="Port of the metrics of control."),
    ListenPort(name="dashboard", number=6090, what="Port of the dashboard."),
)
"""Ports in the order of help and output. ``--NAME-port=0`` takes any free port."""
