"""Network namespaces of pods: creates, routes and removes them, some before their pods exist.

A mount at a file keeps a pod's namespace. The namespace has a separate loopback and a link to this machine. Its address
has the last two numbers of the pod's loopback address, which are unique: 127.64.3.7 gives 10.137.3.7, and so does
127.66.3.7 on a virtual node. All routes lead to one gateway, an address of this machine that serves names and services.
Pods cannot reach each other. ``ip`` of iproute2 creates the links.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from serving.core.model.routehosts import named_network
from serving.home.containers.cgroups import find_cgroups
from serving.home.pods.locations import PodLocation, PodLocations, host_part
from serving.home.pods.podfolder import sweep_folders
from serving.home.processes.confine import LIBC, checked, mount_at
from serving.net.aio.cooperative import finished_in_thread

_INNER_NETWORK, _PUBLIC_NETWORK = "10.138", "10.139"
_HTTP_PORT, _HTTPS_PORT = 80, 443
_BACKLOG = 4096
# <linux/in.h>: bind to an address that the machine gets later.
_IP_FREEBIND = 15

# Networks created ahead, for two services that wake at the same time.
_AHEAD_COUNT = 2
# Delay after a pod took one, in seconds: by then the pod is ready and needs no core.
_AHEAD_LAG_S = 0.3
_AHEAD_RETRY_S = 5.0

_log = logging.getLogger("kubelet")

_CLONE_NEWNET, _MS_BIND, _MNT_DETACH = 0x40000000, 4096, 2
_POD_NETWORK = "10.137."
_OWN = "/proc/thread-self/ns/net"


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses at which pods reach activators: ``inner`` for cluster-local hosts, ``public`` for public ones."""

    inner: str
    public: str


def gateway_of(state: Path) -> Gateway:
    """The gateway for the pods of the system with this state folder. Other systems have other addresses."""
    third, fourth = hashlib.sha256(str(state).encode()).digest()[:2]
    host = f"{third}.{min(max(fourth, 1), 254)}"
    return Gateway(inner=f"{_INNER_NETWORK}.{host}", public=f"{_PUBLIC_NETWORK}.{host}")


def bind_gateway(gateway: Gateway, *, inner_port: int, public_port: int) -> dict[str, socket.socket]:
    """Listen on the gateway's addresses for requests of pods; return the sockets by name, such as "inner-pods-80".

    A port that cannot be bound is skipped; without root these are all ports. The inner listener also speaks TLS with
    the certificates of cluster-local hosts, whose default port is 443.
    """
    listeners = {}
    ports_by_listener = {
        "inner": (gateway.inner, {_HTTP_PORT, _HTTPS_PORT, inner_port}),
        "public": (gateway.public, {_HTTP_PORT, public_port}),
    }
    for name, (address, ports) in ports_by_listener.items():
        for port in ports:
            with contextlib.suppress(OSError):
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                listener.bind((address, port))
                listener.listen(_BACKLOG)
                listeners[f"{name}-pods-{port}"] = listener
    return listeners


class PodNetworks:
    """The network namespaces of pods, as files in a folder.

    ``gateway`` is the address at which pods reach this machine.
    """

    def __init__(self, folder: Path, *, gateway: Gateway) -> None:
        self._folder = folder
        self.gateway = gateway

    def path_of(self, pod: str) -> Path:
        """The file of a pod's namespace."""
        return self._folder / pod

    def prepare(self) -> None:
        """Add the gateway's addresses to this machine. Raises ``OSError``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _ip("".join(f"address replace {address}/32 dev lo\n" for address in (self.gateway.inner, self.gateway.public)))
        # All its addresses are this machine's, for services that pods call by short names.
        _ip(f"route replace local {named_network(self.gateway.inner)}.0/24 dev lo\n")

    def make_ahead(self, address: str) -> None:
        """Create the namespace of a future pod, by its address. Blocks for some milliseconds. Raises ``OSError``."""
        self.make(_ahead(address), address)

    def claim(self, pod: str, address: str) -> bool:
        """Assign a pod the namespace created ahead for its address; return whether there is one."""
        ahead, path = self.path_of(_ahead(address)), self.path_of(pod)
        if not os.path.ismount(ahead):
            return False
        path.touch(mode=0o600)
        try:
            mount_at(str(ahead), str(path), flags=_MS_BIND)
        except OSError:
            return False
        self.remove(ahead.name)
        return True

    def make(self, pod: str, address: str) -> Path:
        """Create a pod's namespace if it is missing; return its file.

        Blocks for some milliseconds. Raises ``OSError``.
        """
        path = self.path_of(pod)
        if os.path.ismount(path):
            return path
        path.touch(mode=0o600)
        failures: list[OSError] = []

        def make_namespace() -> None:
            try:
                self._make(path, address)
            except OSError as error:
                failures.append(error)

        # A separate thread enters the namespace and ends in it.
        thread = threading.Thread(target=make_namespace, name="netns")
        thread.start()
        thread.join()
        if failures:
            self.remove(pod)
            raise failures[0]
        link = _link_of(address)
        _ip(f"link set {link} up\nroute replace {routed_address(address)}/32 dev {link}\n")
        return path

    def _make(self, path: Path, address: str) -> None:
        checked(LIBC.unshare(_CLONE_NEWNET), "a network namespace")
        mount_at(_OWN, str(path), flags=_MS_BIND)
        # The namespace of the process's first thread is ours.
        _ip(
            "link set lo up\n"
            f"link add eth0 type veth peer name {_link_of(address)} netns {os.getpid()}\n"
            f"address add {routed_address(address)}/32 dev eth0\n"
            "link set eth0 up\n"
            f"route add {self.gateway.inner} dev eth0 scope link\n"
            f"route add default via {self.gateway.inner}\n"
        )

    def remove(self, pod: str) -> None:
        """Remove a pod's namespace, if any; its network link ends with it."""
        path = self.path_of(pod)
        LIBC.umount2(str(path).encode(), _MNT_DETACH)
        path.unlink(missing_ok=True)

    def sweep(self, pod_ids: Collection[str]) -> None:
        """Remove network namespaces of pods not in ``pod_ids``, left by a killed system."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if path.name not in pod_ids:
                    self.remove(path.name)

    def close(self) -> None:
        """Remove all namespaces, and the gateway's addresses from this machine."""
        self.sweep(())
        with contextlib.suppress(OSError):
            _ip("".join(f"address del {address}/32 dev lo\n" for address in (self.gateway.inner, self.gateway.public)))
        with contextlib.suppress(OSError):
            _ip(f"route del local {named_network(self.gateway.inner)}.0/24 dev lo\n")


class AheadNetworks:
    """Creates the networks of future pods in advance. ``networks`` is None if pods share the machine's network."""

    def __init__(self, locations: PodLocations, networks: PodNetworks | None) -> None:
        self._locations = locations
        self._networks = networks
        self._ready: list[PodLocation] = []
        self._wanted = asyncio.Event()

    def reserve(self) -> PodLocation:
        """Reserve a location with a network, if possible one that was created ahead. Raises ``OSError``."""
        self._wanted.set()
        return self._ready.pop(0) if self._ready else self._locations.reserve()

    async def run(self) -> None:
        """Create networks until cancelled."""
        while self._networks is not None:
            await self._wanted.wait()
            await asyncio.sleep(_AHEAD_LAG_S)
            self._wanted.clear()
            while len(self._ready) < _AHEAD_COUNT:
                location = self._locations.reserve()
                try:
                    await finished_in_thread(self._networks.make_ahead, location.address)
                except OSError as error:
                    self._locations.release(location)
                    _log.warning("network.not_ahead", extra={"error": str(error)})
                    await asyncio.sleep(_AHEAD_RETRY_S)
                else:
                    self._ready.append(location)


def _ahead(address: str) -> str:
    """The file of a namespace that is not yet assigned to a pod."""
    return f"ahead-{address}"


def routed_address(address: str) -> str:
    """The address of a pod's network, as reached from this machine. For 127.64.3.7 it is 10.137.3.7."""
    return _POD_NETWORK + host_part(address)


def _link_of(address: str) -> str:
    third, fourth = host_part(address).split(".")
    return f"serving-{int(third):02x}{int(fourth):02x}"


def _ip(commands: str) -> None:
    process = subprocess.run(["ip", "-batch", "-"], input=commands.encode(), capture_output=True, check=False)  # noqa: S607 - of the system
    if process.returncode:
        raise OSError(0, process.stderr.decode(errors="replace").strip().splitlines()[0], "ip")


def networks_of(state: Path) -> PodNetworks:
    """The networks of a system's pods."""
    return PodNetworks(state / "networks", gateway=gateway_of(state))


def cgroup_name_of(state: Path) -> str:
    """The name of the parent cgroup of all pods of a system."""
    return f"serving-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"


def remove_leftovers(state: Path) -> None:
    """Remove folders, networks and cgroups of a stopped system's pods, to unblock its state folder. Blocks."""
    sweep_folders(state / "pods", ())
    if not (state / "networks").is_dir():
        # There were no containers.
        return
    networks_of(state).close()
    cgroups = find_cgroups(cgroup_name_of(state))
    if cgroups is not None:
        cgroups.remove("")
