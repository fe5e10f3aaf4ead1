"""Whose word about the way of a request is taken: proxies that stand in front of us, by their addresses.

Input: the networks of a setting, as text, and an address; output: whether it is in one of them. An address that is no IP
address is in none. An IPv4 address that a socket shows in IPv6's way is the IPv4 address.
"""

import ipaddress
from collections.abc import Callable


def member_of(text: str) -> Callable[[str], bool]:
    """Whether an address is in one of these networks: "10.0.0.0/8, 192.0.2.7". Raises ``ValueError`` for any other text."""
    networks = [ipaddress.ip_network(one.strip()) for one in text.split(",") if one.strip()]

    def is_member(address: str) -> bool:
        if not networks:
            return False
        try:
            asked = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(asked, ipaddress.IPv6Address) and asked.ipv4_mapped is not None:
            asked = asked.ipv4_mapped
        # Networks of the other version contain nothing of this one.
        return any(asked in network for network in networks)

    return is_member
