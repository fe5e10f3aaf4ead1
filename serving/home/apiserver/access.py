"""Access control: a bearer token, compared in constant time, and an allow-list of Host names.

The token grants the right to run code on this machine. The Host list rejects a web page whose own name points at 127.0.0.1
(DNS rebinding) before the token is checked.
"""

import hmac
from collections.abc import Collection

from serving.home.apiserver.status import Fault

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def check_host(header: str, allowed: Collection[str]) -> None:
    """Raise ``Fault`` 403 unless a Host header names one of the allowed hosts, with any port."""
    host = header.strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in allowed:
        raise Fault(403, f"the Host header names {name or 'nothing'}; this server is {', '.join(sorted(allowed))}")


def check_token(header: str, *, token: str) -> None:
    """Raise ``Fault`` 401 unless an Authorization header carries the token."""
    scheme, _, given = header.partition(" ")
    offered = given.strip() if scheme.lower() == "bearer" else ""
    # Bytes: compare_digest rejects texts beyond ASCII, which a client may send.
    if not hmac.compare_digest(offered.encode("utf-8", "surrogateescape"), token.encode()):
        raise Fault(401, "Unauthorized: a bearer token is needed; the kubeconfig has it")
