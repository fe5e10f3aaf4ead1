"""Checks that pods of this machine can call a service by its short name, as in ``http://api:8080/``."""

import os
import socket
from pathlib import Path

from serving.core.model.objects import Object, annotations_of, name_of, namespace_of
from serving.core.model.routehosts import machine_gateway, named_address
from serving.core.model.routepolicy import route_policy
from serving.home.processes import mounts
from serving.home.state import StateFolder

UNRESOLVED = "apps cannot resolve the names of other services: no mount namespaces here"
_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_UNPRIVILEGED_START = 1024
_TIMEOUT_S = 1.0


def short_url(service: Object) -> str:
    """http://NAME:PORT/ for a service with a port for its short name, NAME:PORT if it is a TCP port, else ""."""
    policy = route_policy(annotations_of(service))
    address = f"{name_of(service)}:{policy.named_port}"
    if any(port.number == policy.named_port for port in policy.tcp_ports):
        return address
    return f"http://{address}/" if policy.named_port else ""


def privileged_problem(port: int) -> str:
    """Why this user cannot serve a short name on a port; "" if the user can."""
    if os.geteuid() == 0 or port >= _unprivileged_start():
        return ""
    return f"port {port} needs root; pods reach the service at the port of cluster-local services"


def short_name_problem(service: Object, state: Path) -> str:
    """Why pods on this machine cannot use a service's short name; "" if they can."""
    if not mounts.can_mount():
        return UNRESOLVED
    port = route_policy(annotations_of(service)).named_port
    try:
        inner_port = StateFolder(state).read_ports()["inner"]
    except (OSError, ValueError, LookupError) as error:
        return f"ports.json: {error}"
    address = named_address(machine_gateway(inner_port), namespace_of(service))
    try:
        socket.create_connection((address, port), timeout=_TIMEOUT_S).close()
    except OSError as error:
        return (
            privileged_problem(port) or f"{address}:{port} is not open: {error.strerror}; see the log of the activator"
        )
    return ""


def _unprivileged_start() -> int:
    try:
        return int(_UNPRIVILEGED.read_text())
    except (OSError, ValueError):
        return _UNPRIVILEGED_START
