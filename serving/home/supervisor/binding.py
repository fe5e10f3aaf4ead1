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
from serving.core.model.ports import (
    ACTIVATOR_METRICS_PORT,
    API_PORT,
    CONTROL_METRICS_PORT,
    DASHBOARD_PORT,
    INNER_PORT,
    PUBLIC_PORT,
    STATS_PORT,
    TLS_PORT,
)
from serving.home.state import StateFolder

_BACKLOG = 4096

_UNPRIVILEGED = "sysctl net.ipv4.ip_unprivileged_port_start"

Ports = Mapping[str, int]
"""The port of each listening socket by name: public, inner, api, stats."""


def bind(ports: Ports, *, unheard: Collection[str] = (), exposed: Collection[str] = ()) -> dict[str, socket.socket]:
    """Create a listening socket on 127.0.0.1 for each port; ports in ``exposed`` listen on all addresses, also of IPv6.

    Sockets in ``unheard`` are bound, but refuse connections until the activator listens. They are left out if their
    port is taken, unless they are exposed.

    Raises:
        SettingsError: with a problem for each port that is taken.
    """
    listeners: dict[str, socket.socket] = {}
    errors: dict[str, OSError] = {}
    has_ipv6 = socket.has_dualstack_ipv6()
    for name, port in ports.items():
        is_dual = name in exposed and has_ipv6
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        address = "" if name in exposed else "127.0.0.1", port
        try:
            listeners[name] = (
                _bound(address, family)
                if name in unheard
                else socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
            )
        except OSError as error:
            if name in unheard and name not in exposed:
                continue
            errors[name] = error
    if errors:
        for listener in listeners.values():
            listener.close()
        raise SettingsError(_problems(errors, ports))
    return listeners


def _problems(errors: Mapping[str, OSError], ports: Mapping[str, int]) -> list[Problem]:
    """A problem for each port in use. Ports in use by the same local system share one problem."""
    problems, names_by_holder = [], defaultdict[Path, list[str]](list)
    for name, error in errors.items():
        holder = _holder(ports[name])
        if holder is None:
            what = f"port {ports[name]} cannot be taken: {os.strerror(error.errno or 0)}"
            is_denied = isinstance(error, PermissionError)
            expected = f"a port from 1024, or `{_UNPRIVILEGED}={ports[name]}` by root" if is_denied else "a free port"
            problems.append(Problem(where=f"--{name}-port", what=what, expected=expected))
        else:
            names_by_holder[holder].append(name)
    for holder, names in names_by_holder.items():
        numbers = ", ".join(str(ports[name]) for name in names)
        them = f"port {numbers} is that" if len(names) == 1 else f"ports {numbers} are those"
        what = f"{them} of the `serving up` with the state folder {holder}"
        expected = f"other ports, such as 0, or `serving down --state {holder}` first"
        problems.append(Problem(where=", ".join(f"--{name}-port" for name in names), what=what, expected=expected))
    return problems


def _holder(port: int) -> Path | None:
    """The state folder of the local system that uses a port, from its daemons' environment; None if unknown."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            match = re.search(rb"(?:^|\0)SERVING_STATE=([^\0]+)", (process / "environ").read_bytes())
            state = Path(os.fsdecode(match[1])) if match else None
            if state is not None and port in StateFolder(state).read_ports().values():
                return state
    return None


def _bound(address: tuple[str, int], family: socket.AddressFamily) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class ListenPort(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket that the supervisor opens for daemons, with its default port.

    ``what`` describes it in the help.
    """

    name: str
    number: int
    what: str


PORTS = (
    ListenPort(name="public", number=PUBLIC_PORT, what="Port of all services."),
    ListenPort(name="tls", number=TLS_PORT, what="Port of all services over TLS, if there is a certificate."),
    ListenPort(name="inner", number=INNER_PORT, what="Port of cluster-local services."),
    ListenPort(name="api", number=API_PORT, what="Port of the Kubernetes API."),
    ListenPort(name="stats", number=STATS_PORT, what="Port of the autoscaler."),
    ListenPort(name="activator-metrics", number=ACTIVATOR_METRICS_PORT, what="Port of the activator's metrics."),
    ListenPort(name="control-metrics", number=CONTROL_METRICS_PORT, what="Port of the controller's metrics."),
    ListenPort(name="dashboard", number=DASHBOARD_PORT, what="Port of the dashboard."),
)
"""Ports in the order of help and output. ``--NAME-port=0`` takes any free port."""
