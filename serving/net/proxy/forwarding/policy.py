"""The timeouts of one request, and the networks of trusted peers."""

import ipaddress
import math
from collections.abc import Callable

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a request in seconds; ``math.inf`` means no limit.

    A request that exceeds a limit gets a 504; a response that has begun is cut off. ``total_s`` is from the request's
    head to the end of the response, including the queue. ``response_start_s`` is from the head to the first byte of the
    response. ``idle_s`` is from the head, or the last piece of the response, to the next piece. In a tunnel (after a
    101) the upstream's bytes count as pieces of the response. ``text`` is the body of the 504.
    """

    total_s: float = math.inf
    response_start_s: float = math.inf
    idle_s: float = math.inf
    text: bytes = b"request timeout"

    def due_s(self, started_s: float, *, written_s: float, has_begun: bool) -> float:
        """When a request that makes no more progress expires.

        ``started_s`` is when the head arrived. ``written_s`` is when the last piece of the response was written.
        ``has_begun``: the response has begun.
        """
        due_s = min(started_s + self.total_s, written_s + self.idle_s)
        return due_s if has_begun else min(due_s, started_s + self.response_start_s)


NO_TIMEOUTS = Timeouts()


def member_of(text: str) -> Callable[[str], bool]:
    """Return a check whether an address belongs to networks, such as "10.0.0.0/8, 192.0.2.7".

    Raises ``ValueError`` for any other text.
    """
    networks = [ipaddress.ip_network(network.strip()) for network in text.split(",") if network.strip()]

    def is_member(address: str) -> bool:
        if not networks:
            return False
        try:
            client = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(client, ipaddress.IPv6Address) and client.ipv4_mapped is not None:
            client = client.ipv4_mapped
        # Networks of the other IP version contain no address of this one.
        return any(client in network for network in networks)

    return is_member
