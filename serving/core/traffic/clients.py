"""Counts the requests of each client address.

The address is the connection's peer. Behind trusted proxies (``trusted-proxies``) the address is the last one in
X-Forwarded-For that is not a trusted proxy. Each proxy appends its peer, so entries further left could be forged by the
client. IPv6 addresses count by their /64, the block that is assigned to one host.
"""

import ipaddress
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

_HOST_BITS = 64


class ClientLoad:
    """The waiting and running requests of one address."""

    __slots__ = ("__weakref__", "address", "request_count")

    def __init__(self, address: str) -> None:
        self.address = address
        self.request_count = 0

    def __repr__(self) -> str:
        return f"ClientLoad({self.address}, {self.request_count} requests)"


class Clients:
    """The loads of all addresses with connections or requests. ``trusts`` returns whether a proxy is trusted."""

    def __init__(self, trusts: Callable[[str], bool]) -> None:
        self._trusts = trusts
        self._loads: WeakValueDictionary[str, ClientLoad] = WeakValueDictionary()

    def load_of(self, peer: str, forwarded_for: Sequence[bytes]) -> ClientLoad:
        """Return the load of a client, given its peer address and X-Forwarded-For lines."""
        address = network_of(client_address(peer, forwarded_for, trusts=self._trusts))
        load = self._loads.get(address)
        if load is None:
            load = self._loads[address] = ClientLoad(address)
        return load


def client_address(peer: str, forwarded_for: Sequence[bytes], *, trusts: Callable[[str], bool]) -> str:
    """The client's address: 10.0.0.1 with "1.1.1.1, 2.2.2.2, 10.0.0.2" gives 2.2.2.2 if 10.0.0.0/8 is trusted."""
    address = peer
    hops = [hop for line in forwarded_for for hop in line.decode("latin-1").split(",")]
    while trusts(address) and hops:
        hop = _bare(hops.pop().strip())
        if hop is None:
            break
        address = hop
    return address


def network_of(address: str) -> str:
    """The network that counts as one client: an IPv4 address, or an IPv6 /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _HOST_BITS), strict=False))


def _bare(hop: str) -> str | None:
    """An address without port and brackets; None if it is invalid."""
    for text in (hop, hop.rpartition(":")[0]):
        try:
            return str(ipaddress.ip_address(text.strip("[]").partition("%")[0]))
        except ValueError:
            continue
    return None
