"""The activators as endpoints, from the slices of their inner Service, merged by address family.

Input: the EndpointSlices of that Service, as a watch brings them. Output: addresses and port. An activator that is not ready or
is terminating is left out; a missing condition counts as ready, as discovery.k8s.io/v1 requires. While pods of two versions
listen on two ports, the port of the majority counts.
"""

from collections.abc import Mapping

import msgspec

from serving.model.objects import Object, nested

ACTIVATOR_SERVICE = "activator-service"
"""The Service, in the system's namespace, that leads to the activators' inner listener."""

# Every public slice names all activators: with more, each change would be megabytes for a thousand services.
_NAMED_MAX = 100
_PORT_NAME = "http"


class EndpointGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints of one port, as a slice has them; at least one."""

    port: int
    endpoints: tuple[Object, ...]


EndpointGroups = Mapping[str, EndpointGroup]
"""By family of addresses: "IPv4", "IPv6"."""


class Activators:
    """The slices and their merged endpoints."""

    __slots__ = ("_slices", "backends")

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], Object] = {}
        self.backends: EndpointGroups = {}

    def put(self, key: tuple[str, str], found: Object) -> bool:
        """Take a slice; returns whether the endpoints change."""
        self._slices[key] = found
        return self._sum_up()

    def drop(self, key: tuple[str, str]) -> bool:
        """Remove a slice; returns whether the endpoints change."""
        self._slices.pop(key, None)
        return self._sum_up()

    @property
    def addresses(self) -> tuple[str, ...]:
        """One address of each activator, as HOST:PORT: those of one family, because each pod may have one of each."""
        for family, group in sorted(self.backends.items()):
            shown = "[{}]:{}" if family == "IPv6" else "{}:{}"
            return tuple(shown.format(one["addresses"][0], group.port) for one in group.endpoints)
        return ()

    def _sum_up(self) -> bool:
        before = self.backends
        addresses: dict[tuple[str, int], set[str]] = {}
        for one in self._slices.values():
            port = _port_of(one)
            ready = {endpoint["addresses"][0] for endpoint in one.get("endpoints") or () if _takes_requests(endpoint)}
            if port and ready:
                addresses.setdefault((str(one.get("addressType")), port), set()).update(ready)
        # The largest group of a family comes last and wins.
        groups = sorted(addresses.items(), key=lambda group: (len(group[1]), group[0]))
        self.backends = {
            family: EndpointGroup(
                port=port,
                endpoints=tuple(
                    {"addresses": [address], "conditions": {"ready": True}} for address in sorted(found)[:_NAMED_MAX]
                ),
            )
            for (family, port), found in groups
        }
        return self.backends != before


def _takes_requests(endpoint: Object) -> bool:
    conditions = endpoint.get("conditions") or {}
    return (
        bool(endpoint.get("addresses")) and conditions.get("ready") is not False and not conditions.get("terminating")
    )


def _port_of(endpoint_slice: Object) -> int | None:
    for port in nested(endpoint_slice, "ports") or ():
        if port.get("name") == _PORT_NAME and port.get("port"):
            return int(port["port"])
    return None
