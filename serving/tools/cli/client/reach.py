"""Finds the address of a component: ports of this machine's ``serving up``, or forwarded ports of a cluster's pods.

On a cluster the module needs the user's rights to list the pods of the system's namespace, to forward their ports, and
to read the Secret with the query token (the Role serving-queries).
"""

import base64
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from serving.core.model.errors import ServingError
from serving.core.model.objects import Object, is_true, name_of, nested
from serving.home.state import StateFolder, default_state_path
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import POD, SECRET
from serving.net.metrics.queries import QUERY_TOKEN_SECRET, QueryGate
from serving.tools.cli.client.api import ApiCall, ApiClient, message_of
from serving.tools.cli.client.resources import path_of

if TYPE_CHECKING:
    from serving.tools.cli.client.forwarding import PortForwarder

_NAME_LABEL = "app.kubernetes.io/name"
# Used in the names of ports on one machine.
_PAGE = "-metrics"


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a daemon.

    On a cluster, ``daemon`` is the name label of its pods, and ``container_port`` the name of their port. On one
    machine, ``port`` is the port's name in the state folder.
    """

    daemon: str
    container_port: str
    port: str


AUTOSCALER = Component(daemon="autoscaler", container_port="stats", port="stats")
_ACTIVATOR_PAGES = Component(daemon="activator", container_port="metrics", port=f"activator{_PAGE}")
PUBLIC = Component(daemon="activator", container_port="public", port="public")
INNER = Component(daemon="activator", container_port="inner", port="inner")
DASHBOARD = Component(daemon="dashboard", container_port="http", port="dashboard")


class Reach:
    """The addresses of an installation's components. Methods raise ``ServingError`` for a missing component.

    ``advice`` ends the message about a component of a cluster that has no ready pod.
    """

    def __init__(self, api: ApiClient, *, advice: str = "`serving doctor` says why") -> None:
        self._api, self._advice = api, advice
        self._namespace = system_namespace()
        self._forwarder: PortForwarder | None = None

    def url(self, component: Component, *, host: str = "", local_port: int = 0) -> str:
        """The URL of a ready instance, or of the instance at the address ``host``.

        ``local_port`` is the local port of a port forwarding; 0 selects a free port.
        """
        if self._api.state_path is not None:
            return machine_url(component, self._api.state_path)
        pods = [pod for pod in self._pods(component) if host in ("", nested(pod, "status", "podIP"))]
        if not pods:
            raise ServingError(f"no pod of {component.daemon} has the address {host}")
        return self._forwarded(component, pods[0], local_port=local_port)

    def activator_pages(self) -> dict[str, str]:
        """The URL of each ready activator's metrics page, by name; empty on one machine if the system does not run."""
        if self._api.state_path is not None:
            return machine_pages(self._api.state_path)
        return {name_of(pod): self._forwarded(_ACTIVATOR_PAGES, pod) for pod in self._pods(_ACTIVATOR_PAGES)}

    def token(self) -> str:
        """The query token; "" for an older installation, which has no token."""
        if self._api.state_path is not None:
            return state_token(self._api.state_path)
        status, response = self._api.call("GET", f"{path_of(SECRET, self._namespace)}/{QUERY_TOKEN_SECRET}")
        if status == HTTPStatus.NOT_FOUND:
            return ""
        if status >= HTTPStatus.BAD_REQUEST:
            secret = f"{self._namespace}/{QUERY_TOKEN_SECRET}"
            raise ServingError(f"the query token in the Secret {secret} cannot be read: {message_of(response)}")
        return base64.b64decode((response.get("data") or {}).get("token", "")).decode()

    def dashboard_link(self, *, local_port: int = 0) -> str:
        """The link that opens the dashboard. It includes the query token."""
        return f"{self.url(DASHBOARD, local_port=local_port)}/?token={self.token()}"

    def hint(self) -> str:
        """Advice for a component that does not respond."""
        if self._api.state_path is not None:
            return "is `serving up` running?"
        problem = self._forwarder.problem if self._forwarder is not None else ""
        return problem or f"`serving doctor` looks at the pods in {self._namespace}"

    def _pods(self, component: Component) -> list[Object]:
        query = {"labelSelector": f"{_NAME_LABEL}={component.daemon}"}
        status, response = self._api.send(ApiCall(path=path_of(POD, self._namespace), query=query))
        if status >= HTTPStatus.BAD_REQUEST:
            raise ServingError(f"the pods of {component.daemon} cannot be listed: {message_of(response)}")
        pods: list[Object] = [
            pod for pod in response["items"] if is_true(pod, "Ready") and not pod["metadata"].get("deletionTimestamp")
        ]
        if not pods:
            raise ServingError(f"no pod of {component.daemon} is ready in namespace {self._namespace}; {self._advice}")
        return pods

    def _forwarded(self, component: Component, pod: Object, *, local_port: int = 0) -> str:
        # The forwarder needs the websocket library, and commands on one machine do not.
        from serving.tools.cli.client.forwarding import PodPort, PortForwarder  # noqa: PLC0415 - as said

        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
        port = next((port["containerPort"] for port in ports if port.get("name") == component.container_port), None)
        if port is None:
            raise ServingError(f"pod {name_of(pod)} has no port {component.container_port}")
        if self._forwarder is None:
            self._forwarder = PortForwarder(self._api)
        place = PodPort(namespace=self._namespace, pod=name_of(pod), port=port)
        try:
            return self._forwarder.forward(place, local_port=local_port)
        except ServingError as error:
            raise ServingError(
                f"port {port} of pod {place.namespace}/{place.pod} cannot be forwarded: {error}"
            ) from error


def state_token(state_path: Path | None) -> str:
    """The query token in a state folder; "" without a readable token."""
    return QueryGate(StateFolder(state_path or default_state_path()).query_token).token()


def machine_url(component: Component, state_path: Path) -> str:
    """The address of a component of a running ``serving up``.

    Raises ``ServingError`` if the component has no address.
    """
    state = StateFolder(state_path)
    try:
        return f"http://127.0.0.1:{state.read_ports()[component.port]}"
    except (OSError, ValueError, KeyError) as error:
        raise ServingError(
            f"{state.ports} names no port {component.port}; start the system with `serving up`, or give its address (see --help)"
        ) from error


def machine_pages(state_path: Path) -> dict[str, str]:
    """The URL of each activator's metrics page, by the activator's name; empty if ``serving up`` does not run."""
    try:
        ports = StateFolder(state_path).read_ports()
    except (OSError, ValueError):
        return {}
    names = (name for name in ports if name.startswith("activator") and name.endswith(_PAGE))
    return {name.removesuffix(_PAGE): f"http://127.0.0.1:{ports[name]}" for name in names}
