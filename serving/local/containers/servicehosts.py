"""The public hosts of all services on this machine: of their routes and tags, and of domain mappings."""

from urllib.parse import urlsplit

from serving.cluster.kinds import DOMAIN_MAPPING, ROUTE
from serving.cluster.port import Cluster
from serving.cluster.reflector import Reflector
from serving.model.objects import nested

__all__ = ["ServiceHosts"]


class ServiceHosts:
    """The hosts, kept up to date by the tasks in ``reflectors``; ``host in hosts`` says whether a service has it."""

    def __init__(self, cluster: Cluster) -> None:
        self.reflectors = (Reflector(cluster, ROUTE), Reflector(cluster, DOMAIN_MAPPING))
        self._hosts: frozenset[str] | None = None
        for one in self.reflectors:
            one.on_change(lambda _: self._forget())

    def __repr__(self) -> str:
        return f"ServiceHosts({len(self._hosts or ())})"

    def _forget(self) -> None:
        self._hosts = None

    def __contains__(self, host: object) -> bool:
        if self._hosts is None:
            objects = [one for reflector in self.reflectors for one in reflector.cache.values()]
            urls = [url for one in objects for url in _urls(one.get("status") or {})]
            self._hosts = frozenset(urlsplit(url).hostname or "" for url in urls)
        return host in self._hosts


def _urls(status: object) -> list[str]:
    targets = nested(status, "traffic") or ()
    return [url for url in (nested(status, "url"), *(nested(one, "url") for one in targets)) if url]
