"""Connections to the ports of a pod, and its containers by name, for exec and port-forward."""

import asyncio

from serving.aio import netns
from serving.home.kubelet.container import ContainerKeeper
from serving.home.kubelet.listening import listening_ports
from serving.home.kubelet.pod import PodRun
from serving.home.kubelet.podsetup import QUEUE_PROXY
from serving.home.pods.locations import QUEUE_PORTS
from serving.home.pods.podplan import is_own_proxy, serving_ports
from serving.model.errors import NotFound


def keeper_of(pod: PodRun, container: str) -> ContainerKeeper:
    """What keeps a container running. Raises ``NotFound`` if it was not started."""
    found = pod.keepers.get(container)
    if found is None:
        raise NotFound(f"container {container} of pod {pod.key[1]} does not run")
    return found


async def connect_to(pod: PodRun, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the pod: a declared one, one that a container listens on, or one of the queue-proxy.

    Raises:
        OSError: when nothing of the pod listens there.
    """
    if port in QUEUE_PORTS:
        return await asyncio.open_connection(pod.location.address, port)
    declared = {one.get("containerPort") for one in serving_ports(pod.manifest)}
    if port in declared and any(is_own_proxy(pod.manifest, one) for one in pod.manifest["spec"]["containers"]):
        # The app listens where a queue-proxy does otherwise.
        return await asyncio.open_connection(pod.location.address, QUEUE_PORTS[0])
    if pod.box:
        # A namespace of its own: nothing else listens there.
        return await netns.open_connection("127.0.0.1", port, network=pod.box.network)
    pids = [session for name, session in pod.sessions.items() if name != QUEUE_PROXY]
    listening = await asyncio.to_thread(lambda: {one for pid in pids for one in listening_ports(pid)})
    if port not in listening and port in declared:
        # A declared port is a wish here: the app listens on the one that it was given.
        port = pod.location.port
    if port not in listening:
        found = ", ".join(map(str, sorted(listening))) or "no port"
        raise ConnectionRefusedError(f"the pod listens on {found}, not on {port}")
    return await asyncio.open_connection("127.0.0.1", port)
