"""Publishes addresses: the hosts file with all services of this machine, and the activators' Service.

Apps call each other by ``status.address.url``. Every resolver reads /etc/hosts: glibc, musl, Go, Node. The file has the
machine's own entries, then the hosts of each route. It is written in place, because the mount in a pod's namespace shows
the file and not its name.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from serving.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, ENDPOINT_SLICE, ROUTE, SERVICE
from serving.cluster.port import Cluster
from serving.cluster.reflector import Reflector
from serving.controller.revisions.public import ACTIVATOR_SERVICE
from serving.model.errors import AlreadyExists
from serving.model.objects import Object, annotations_of, name_of, namespace_of, nested
from serving.model.routehosts import HostRules, claimed_hosts, hosts_of, inner_host, tags_of
from serving.model.routepolicy import route_policy
from serving.settings.controller import ControllerSettings

_log = logging.getLogger("control")

_MACHINES = Path("/etc/hosts")
_ADDRESS = "127.0.0.1"
# Changes that come together are written once.
_PAUSE_S = 0.1
_READABLE = 0o644


def names_of(route: Object, settings: ControllerSettings) -> list[str]:
    """The hosts of a route and of its tags. "hello": hello.default.localhost, hello.default.svc.cluster.local and shorter."""
    found: list[str] = []
    for tag in ("", *tags_of(route)):
        hosts = hosts_of(route, settings.host_rules, tag=tag)
        short = hosts.inner.removesuffix(f".{settings.cluster_domain}")
        found += [hosts.shown, hosts.inner, short, short.removesuffix(".svc")]
    return list(dict.fromkeys(found))


def hosts_text(machines: str, routes: Iterable[Iterable[str]]) -> str:
    """A hosts file: the machine's own, and a line for each route's names; see hosts(5)."""
    lines = [f"{_ADDRESS} {' '.join(names)}" for names in routes]
    return "\n".join([machines.rstrip("\n"), "# services", *lines, ""])


class HostsFile:
    """Writes the hosts file at ``path`` whenever routes change. ``settings`` returns the present domains."""

    def __init__(self, cluster: Cluster, path: Path, settings: Callable[[], ControllerSettings]) -> None:
        self._path, self._settings = path, settings
        self._routes = Reflector(cluster, ROUTE)
        self._changed = asyncio.Event()
        self._routes.on_change(lambda _: self._changed.set())
        self._written = ""

    async def run(self) -> None:
        """Keep the file up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._routes.run(), name="hosts")
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    self.write()
                except OSError as error:
                    _log.warning("hosts.failed", extra={"error": str(error)})
                await asyncio.sleep(_PAUSE_S)

    def write(self) -> None:
        """Write the file if its content has changed. Raises ``OSError``."""
        settings, routes = self._settings(), self._routes.cache
        machines = _MACHINES.read_text(errors="replace") if _MACHINES.exists() else ""
        text = hosts_text(machines, (names_of(routes[key], settings) for key in sorted(routes)))
        if text == self._written:
            return
        content = text.encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _READABLE)
        try:
            # Pods have other users, whatever the umask.
            os.fchmod(descriptor, _READABLE)
            # A reader finds the old content or the new one: nothing is empty in between.
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)
        self._written = text


class ServiceHosts:
    """The public hosts, kept up to date by the tasks in ``reflectors``; ``in`` tells whether a service has a host.

    They are derived from names and claims, not from a status: an entry in a status must not make pods resolve a public host to
    the activator.
    """

    def __init__(self, cluster: Cluster, rules: Callable[[], HostRules]) -> None:
        self._rules = rules
        self._routes, self._mappings = Reflector(cluster, ROUTE), Reflector(cluster, DOMAIN_MAPPING)
        self._claims = Reflector(cluster, CLUSTER_DOMAIN_CLAIM)
        self.reflectors = (self._routes, self._mappings, self._claims)
        self._known: tuple[HostRules, tuple[frozenset[str], frozenset[str]]] | None = None
        for one in self.reflectors:
            one.on_change(lambda _: self._forget())

    def _forget(self) -> None:
        self._known = None

    def named(self) -> frozenset[str]:
        """The inner hosts of services that ask for a port beside their short names."""
        return self._hosts()[1]

    def __contains__(self, host: object) -> bool:
        return host in self._hosts()[0]

    def _hosts(self) -> tuple[frozenset[str], frozenset[str]]:
        """The public hosts, and the inner ones of services with a named port."""
        rules = self._rules()
        if self._known is None or self._known[0] != rules:
            routes = self._routes.cache.values()
            hosts = {one.host for route in routes for one in claimed_hosts(route, rules)}
            owners = {name_of(one): nested(one, "spec", "namespace") for one in self._claims.cache.values()}
            mapped = (one for one in self._mappings.cache.values() if owners.get(name_of(one)) == namespace_of(one))
            named = (one for one in routes if route_policy(annotations_of(one)).named_port)
            inner = frozenset(inner_host(name_of(one), namespace_of(one), rules) for one in named)
            self._known = rules, (frozenset(hosts | {name_of(one) for one in mapped}), inner)
        return self._known[1]


async def publish_activators(cluster: Cluster, namespace: str, *, inner_port: int) -> None:
    """Create the Service and its slice, which the store does not keep over a restart."""
    port: Object = {"name": "http", "port": inner_port, "protocol": "TCP"}
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ACTIVATOR_SERVICE, "namespace": namespace},
        "spec": {"ports": [{**port, "port": 80, "targetPort": inner_port}]},
    }
    found: Object = {
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
    for kind, body in ((SERVICE, service), (ENDPOINT_SLICE, found)):
        with contextlib.suppress(AlreadyExists):
            await cluster.create(kind, body)
