"""Authorises queries: metrics, decisions, policies and dashboard views need the query token.

``SERVING_QUERY_TOKEN_FILE`` names the token's file: in the state folder on one machine, from a Secret on a cluster. The
file is read for each query, so that a new token is valid immediately. A daemon without the file refuses queries,
because every pod of a cluster and every user of a machine can reach the port. ``/healthz`` needs no token, for probes.
"""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

QUERY_TOKEN_FILE_VARIABLE = "SERVING_QUERY_TOKEN_FILE"  # noqa: S105 - the name of a variable
QUERY_TOKEN_SECRET = "serving-query-token"  # noqa: S105 - the name of a Secret
"""The Secret with the query token in a cluster."""

REFUSED_HEADERS = {"WWW-Authenticate": 'Bearer realm="queries"'}

# 32 characters of base64 are 192 bits.
_LENGTH_MIN = 32


class QueryGate:
    """Compares query tokens with the token in a file. Without a file (""), all queries are refused."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "QueryGate":
        """The gate for the token file that the variable ``SERVING_QUERY_TOKEN_FILE`` names."""
        return cls(environment.get(QUERY_TOKEN_FILE_VARIABLE, ""))

    def token(self) -> str:
        """The current token; "" if it is missing, or too short to be secret."""
        if not self._path:
            return ""
        try:
            token = Path(self._path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
        return token if len(token) >= _LENGTH_MIN else ""

    def headers(self) -> dict[str, str]:
        """The headers for this daemon's queries to another daemon."""
        token = self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def digest(self) -> str:
        """The SHA-256 of the token, with which a pod verifies a token; "" without a token."""
        token = self.token()
        return hashlib.sha256(token.encode()).hexdigest() if token else ""

    def view(self) -> str:
        """The value of the dashboard's cookie, which does not reveal the token; "" without a token."""
        token = self.token()
        return hmac.new(token.encode(), b"view", hashlib.sha256).hexdigest() if token else ""

    def objection(self, authorization: Sequence[str]) -> str:
        """Why a query with these Authorization headers is refused; "" if its token is correct."""
        token = self.token()
        if not token:
            return (
                f"queries are refused: {QUERY_TOKEN_FILE_VARIABLE} names no file with a token of at least {_LENGTH_MIN} "
                f"characters\n"
            )
        if is_same(bearer_of(authorization), token):
            return ""
        return "the query token is needed: `Authorization: Bearer` with that of the state folder's query-token\n"


def bearer_of(authorization: Sequence[str]) -> str:
    """The bearer token in a request's Authorization headers; "" unless there is exactly one such header."""
    scheme, _, token = (authorization[0] if len(authorization) == 1 else "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_same(token: str, expected: str) -> bool:
    """Compare in constant time, so that the duration reveals nothing. An empty ``expected`` matches nothing."""
    return bool(expected) and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected.encode())


_SERVICE_ENDS = (".svc", ".svc.cluster.local")


def host_names_of(text: str) -> frozenset[str]:
    """The names in a comma-separated setting, in lower case."""
    return frozenset(name.strip().lower() for name in text.split(",")) - {""}


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is an address, a name of one label, a Service's name, or one of ``names``, with any port.

    The owner of a name can point it to 127.0.0.1 (DNS rebinding). A browser then lets the owner's scripts read
    responses from this address, but sends the owner's name as Host.
    """
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
