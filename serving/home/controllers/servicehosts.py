"""The public hosts of all services on this machine: of their routes and tags, and of domain mappings with a claim."""

from collections.abc import Callable

from serving.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, ROUTE
from serving.cluster.port import Cluster
from serving.cluster.reflector import Reflector
from serving.model.objects import name_of, namespace_of, nested
from serving.model.routehosts import HostRules, claimed_hosts


class ServiceHosts:
    """The hosts, kept up to date by the tasks in ``reflectors``; ``host in hosts`` says whether a service has it.

    They follow from names and claims and not from any status: a pod must not get the address of the activator for a host
    of the world by an entry in a status.
    """

    def __init__(self, cluster: Cluster, rules: Callable[[], HostRules]) -> None:
        self._rules = rules
        self._routes, self._mappings = Reflector(cluster, ROUTE), Reflector(cluster, DOMAIN_MAPPING)
        self._claims = Reflector(cluster, CLUSTER_DOMAIN_CLAIM)
        self.reflectors = (self._routes, self._mappings, self._claims)
        self._known: tuple[HostRules, frozenset[str]] | None = None
        for one in self.reflectors:
            one.on_change(lambda _: self._forget())

    def __repr__(self) -> str:
        return f"ServiceHosts({len(self._known[1]) if self._known else 0})"

    def _forget(self) -> None:
        self._known = None

    def __contains__(self, host: object) -> bool:
        rules = self._rules()
        if self._known is None or self._known[0] != rules:
            hosts = {one.host for route in self._routes.cache.values() for one in claimed_hosts(route, rules)}
            owners = {name_of(one): nested(one, "spec", "namespace") for one in self._claims.cache.values()}
            mapped = (one for one in self._mappings.cache.values() if owners.get(name_of(one)) == namespace_of(one))
            self._known = rules, frozenset(hosts | {name_of(one) for one in mapped})
        return host in self._known[1]
