"""Checks a request's Host against the daemon's names, to prevent DNS rebinding by other sites.

The owner of a name can point it to 127.0.0.1 (DNS rebinding), and a browser then lets that site's scripts read responses from
there; but the owner cannot change the browser's Host header. Addresses and names that cannot be registered always pass: those of
one label, and of a cluster's Services. Input: the header and the names of the setting. It reads nothing else of the request.
"""

import ipaddress
from collections.abc import Collection

_SERVICE_ENDS = (".svc", ".svc.cluster.local")


def host_names_of(text: str) -> frozenset[str]:
    """The names in a comma-separated setting, in lower case."""
    return frozenset(name.strip().lower() for name in text.split(",")) - {""}


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is an address, a name of one label, a Service's, or one of ``names``. The port is ignored."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or not port.isdecimal():
        name = host.lower()
    return _is_address(name) or "." not in name or name.endswith(_SERVICE_ENDS) or name in names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
