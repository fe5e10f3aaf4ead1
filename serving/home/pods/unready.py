"""Explains why a running container is not ready. Pure.

Input: the ports on which the container's processes listen, and the failure of its readiness probe. Output: a reason and
a message for the pod's conditions and Events, or None without a problem. The most frequent mistake is checked first: an
app that ignores PORT and listens on another port.
"""

from collections.abc import Collection

import msgspec

from serving.core.model.knative import OTHER_PORT

_PORTS_SHOWN_MAX = 5


class Unready(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pod or container is not ready: a reason in CamelCase, and a message for people."""

    reason: str
    message: str


class ObservedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of a running container, to explain why it is not ready.

    The container should listen on ``port`` (0 for a container without requests) and listens on ``ports``. ``probe`` is
    its readiness probe, such as "GET /health", and ``probe_failure`` the probe's last failure; both may be "". ``host``
    is the address on which a container with an in-process queue-proxy must listen, else "". ``port_option`` is the
    option of `serving deploy` for the port, if the container has a separate network. ``foreign`` describes a process of
    another pod or user that listens on the port, or "".
    """

    container: str
    port: int
    ports: Collection[int] = ()
    probe: str = ""
    probe_failure: str = ""
    host: str = ""
    port_option: str = ""
    foreign: str = ""


def explain(observed: ObservedContainer) -> Unready | None:
    """Why the container is not ready; None if unknown."""
    name, port = observed.container, observed.port
    if observed.foreign:
        message = f"container {name} gets no requests: {observed.foreign}"
        return Unready(reason="PortTaken", message=message)
    if port and port not in observed.ports:
        if observed.ports:
            ports = _listed(observed.ports)
            advice = "it must listen on $PORT (or deploy it with --fixed-port)"
            if observed.port_option:
                advice = f"it must listen on {port}, or {observed.port_option} must name the port on which it listens"
            message = f"container {name} listens on {ports}{OTHER_PORT}{port}; {advice}"
            return Unready(reason="WrongPort", message=message)
        message = f"container {name} does not listen yet; it was given PORT={port} and must listen there"
        return Unready(reason="NotListening", message=message)
    if observed.probe_failure:
        message = f"readiness probe of container {name} failed: {observed.probe}: {observed.probe_failure}"
        return Unready(reason="ReadinessProbeFailed", message=message)
    if observed.host:
        message = (
            f"container {name} listens on port {port}, and its queue-proxy has not reported: it must listen on $HOST "
            f"({observed.host}), and its app be wrapped in serving.asgi.QueueProxyMiddleware, as `python -m serving.asgi` does"
        )
        return Unready(reason="NoQueueProxy", message=message)
    return None


def with_log(message: str, lines: str) -> str:
    """The message, and the last lines of the container's log if it wrote any."""
    return f"{message}; last lines of its log:\n{lines}" if lines.strip() else message


def _listed(ports: Collection[int]) -> str:
    shown = [str(port) for port in sorted(ports)[:_PORTS_SHOWN_MAX]]
    more = len(ports) - len(shown)
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(shown)}{f' and {more} more' if more else ''}"
