"""Publishes addresses: hosts files with all services of this machine, and the activators' Service.

Apps call each other by ``status.address.url``, or by short names if a service has a named port. All common resolvers
read /etc/hosts: glibc, musl, Go, Node. Each namespace has a file with the machine's entries, the hosts of each route,
and the short names of its services. The file is written in place, because a mount in a pod's namespace refers to the
file and not to its name.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from serving.controller.revisions.public import ACTIVATOR_SERVICE
from serving.core.model.errors import AlreadyExists
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of, nested
from serving.core.model.routehosts import (
    HostRules,
    claimed_hosts,
    hosts_of,
    inner_host,
    machine_gateway,
    named_address,
    tags_of,
)
from serving.core.model.routepolicy import route_policy
from serving.core.settings.controller import ControllerSettings
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, ENDPOINT_SLICE, NAMESPACE, ROUTE, SERVICE
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector

_log = logging.getLogger("control")

_MACHINES = Path("/etc/hosts")
_ADDRESS = "127.0.0.1"
# Changes within this time are written together, in seconds.
_PAUSE_S = 0.1
_READABLE, _FOLDER_MODE = 0o644, 0o700


def names_of(route: Object, settings: ControllerSettings) -> dict[str, list[str]]:
    """The hosts of a route and its tags: public ones by the key "shown", and cluster-local ones by the key "inner".

    For the route "hello" in the namespace "default", they are hello.default.localhost, and
    hello.default.svc.cluster.local with its short forms hello.default.svc and hello.default.
    """
    shown, inner = [], []
    for tag in ("", *tags_of(route)):
        hosts = hosts_of(route, settings.host_rules, tag=tag)
        short = hosts.inner.removesuffix(f".{settings.cluster_domain}")
        inner += [hosts.inner, short, short.removesuffix(".svc")]
        shown += [hosts.shown] if hosts.shown and not hosts.is_local else []
    return {"shown": shown, "inner": inner}


def entries_of(
    routes: Iterable[Object], settings: ControllerSettings, *, gateway: str
) -> tuple[list[str], dict[str, list[str]]]:
    """The lines of hosts files (hosts(5)): those for the pods of all namespaces, and further lines by namespace.

    The further lines are only for pods of that namespace. They map the short names of services with a named port.
    Cluster-local hosts of such a service have the address of its namespace behind ``gateway``. All other hosts have
    127.0.0.1.
    """
    everywhere: list[str] = []
    own: dict[str, list[str]] = {}
    for route in routes:
        names, namespace = names_of(route, settings), namespace_of(route)
        if not route_policy(annotations_of(route)).named_port:
            everywhere.append(_line(_ADDRESS, [*names["shown"], *names["inner"]]))
            continue
        address = named_address(gateway, namespace)
        everywhere += [_line(_ADDRESS, names["shown"])] if names["shown"] else []
        everywhere.append(_line(address, names["inner"]))
        own.setdefault(namespace, []).append(_line(address, [name_of(route)]))
    return everywhere, own


def _line(address: str, names: Iterable[str]) -> str:
    return " ".join([address, *dict.fromkeys(names)])


class HostsFiles:
    """Writes each namespace's hosts file in ``folder`` when routes change. ``settings`` returns the current domains.

    ``inner_port`` is the port of the activators' cluster-local listener.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, settings: Callable[[], ControllerSettings], *, inner_port: int
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._gateway = machine_gateway(inner_port)
        self._routes = Reflector(cluster, ROUTE, on_change=lambda _: self._changed.set())
        self._namespaces = Reflector(cluster, NAMESPACE, on_change=self._record_namespace)
        self._changed = asyncio.Event()
        self._gone: set[str] = set()
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        # By namespace; files that pods of an earlier process see have unknown text.
        self._written = dict.fromkeys((path.name for path in folder.iterdir()), "")

    def file_of(self, namespace: str) -> str:
        """The path of the hosts file for a namespace's pods.

        A missing file is created; "" if that fails.
        """
        if namespace not in self._written:
            self._written[namespace] = ""
            try:
                self.write([namespace])
            except OSError as error:
                _log.warning("hosts.failed", extra={"error": str(error)})
                del self._written[namespace]
                return ""
        return str(self._folder / namespace)

    async def run(self) -> None:
        """Keep the files up to date until cancelled."""
        async with supervise() as group:
            for reflector in (self._routes, self._namespaces):
                group.start(reflector.run(), name="hosts")
                # Earlier, names would disappear that are only not known yet.
                await reflector.synced.wait()
            self._gone |= self._written.keys() - self._known_namespaces()
            while True:
                self._changed.clear()
                try:
                    self.write(self._written)
                    self._remove_gone()
                except OSError as error:
                    _log.warning("hosts.failed", extra={"error": str(error)})
                await asyncio.sleep(_PAUSE_S)
                await self._changed.wait()

    def write(self, namespaces: Iterable[str]) -> None:
        """Write the files of namespaces whose content has changed. Raises ``OSError``."""
        routes = self._routes.cache
        machines = _MACHINES.read_text(errors="replace") if _MACHINES.exists() else ""
        everywhere, own = entries_of((routes[key] for key in sorted(routes)), self._settings(), gateway=self._gateway)
        for namespace in namespaces:
            lines = [machines.rstrip("\n"), "# services", *everywhere, *own.get(namespace, ()), ""]
            text = "\n".join(lines)
            if text != self._written[namespace]:
                _write_in_place(self._folder / namespace, text.encode())
                self._written[namespace] = text

    def _record_namespace(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._gone.add(change.key[1])
            self._changed.set()

    def _known_namespaces(self) -> set[str]:
        return {name for _, name in self._namespaces.cache}

    def _remove_gone(self) -> None:
        """Remove the hosts files of deleted namespaces."""
        for namespace in self._gone - self._known_namespaces():
            self._written.pop(namespace, None)
            (self._folder / namespace).unlink(missing_ok=True)
        self._gone.clear()


def _write_in_place(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _READABLE)
    try:
        # Pods have other users, so the umask does not apply.
        os.fchmod(descriptor, _READABLE)
        # A reader finds the old or the new content, never an empty file.
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


class ServiceHosts:
    """The public hosts of services, updated by the tasks in ``reflectors``; ``in`` tests whether a service has a host.

    Hosts are derived from the names of routes and from domain claims. The status of an object is not used, because a
    program that may only write statuses could then redirect a public host to the activator.
    """

    def __init__(self, cluster: Cluster, rules: Callable[[], HostRules]) -> None:
        self._rules = rules
        self._routes = Reflector(cluster, ROUTE, on_change=self._forget)
        self._mappings = Reflector(cluster, DOMAIN_MAPPING, on_change=self._forget)
        self._claims = Reflector(cluster, CLUSTER_DOMAIN_CLAIM, on_change=self._forget)
        self.reflectors = (self._routes, self._mappings, self._claims)
        self._known: tuple[HostRules, tuple[frozenset[str], frozenset[str]]] | None = None

    def _forget(self, _: CacheChange) -> None:
        self._known = None

    def named(self) -> frozenset[str]:
        """The cluster-local hosts of services with a named port, at which clients reach a service by its short name."""
        return self._hosts()[1]

    def __contains__(self, host: object) -> bool:
        return host in self._hosts()[0]

    def _hosts(self) -> tuple[frozenset[str], frozenset[str]]:
        """The public hosts, and the cluster-local hosts of services with a named port."""
        rules = self._rules()
        if self._known is None or self._known[0] != rules:
            routes = self._routes.cache.values()
            hosts = {claimed_host.host for route in routes for claimed_host in claimed_hosts(route, rules)}
            owners = {name_of(claim): nested(claim, "spec", "namespace") for claim in self._claims.cache.values()}
            mapped = (
                mapping
                for mapping in self._mappings.cache.values()
                if owners.get(name_of(mapping)) == namespace_of(mapping)
            )
            named = (route for route in routes if route_policy(annotations_of(route)).named_port)
            inner = frozenset(inner_host(name_of(route), namespace_of(route), rules) for route in named)
            self._known = rules, (frozenset(hosts | {name_of(mapping) for mapping in mapped}), inner)
        return self._known[1]


async def publish_activators(cluster: Cluster, namespace: str, *, inner_port: int) -> None:
    """Create the activators' Service and its EndpointSlice. They are not in the journal, so a restart loses them."""
    port: Object = {"name": "http", "port": inner_port, "protocol": "TCP"}
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ACTIVATOR_SERVICE, "namespace": namespace},
        "spec": {"ports": [{**port, "port": 80, "targetPort": inner_port}]},
    }
    endpoint_slice: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{ACTIVATOR_SERVICE}-local",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": ACTIVATOR_SERVICE},
        },
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [_ADDRESS], "conditions": {"ready": True}}],
    }
    for kind, body in ((SERVICE, service), (ENDPOINT_SLICE, endpoint_slice)):
        with contextlib.suppress(AlreadyExists):
            await cluster.create(kind, body)
