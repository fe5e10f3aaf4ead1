"""User tokens for the API: a Secret in the system's namespace per token, with role, expiry and hash.

A token is ``NAME.SECRET``. The secret has 256 random bits, so one SHA-256 protects it sufficiently. It is shown once to
its creator, and is neither stored nor logged. A token is invalid from the first request after its Secret is deleted.
"""

import datetime as dt
import hashlib
import re
import secrets

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.grants import Grant, Role
from serving.core.model.knative import ACCESS_TOKEN_LABEL
from serving.core.model.objects import Object, is_dns_label, name_of
from serving.home.apiserver.requests import Fault
from serving.home.apiserver.roles import FULL_GRANT
from serving.home.pods.sources import data_of
from serving.home.schemas.records import decoded
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import stamp
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET
from serving.net.wire.tokens import matches

NAME_EXPECTED = "1 to 40 lower-case letters, digits and -, as the name of an object, and not serving-admin"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_PREFIX = "access-token-"
_SECRET_BYTES = 32


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of an access token.

    ``grant`` is the user with the role and the namespaces that the token grants. ``digest`` is the SHA-256 of the
    secret, in hexadecimal. ``until_s`` is the expiry in seconds since the epoch.
    """

    grant: Grant
    digest: str
    until_s: float


def new_token(grant: Grant, *, until_s: float) -> tuple[str, Object]:
    """Create a token: its text for the user, and the Secret to store. Raises ``InvalidValue``."""
    name = grant.user
    if not _NAME.fullmatch(name) or name == FULL_GRANT.user:
        raise InvalidValue(text=name, expected=NAME_EXPECTED)
    for namespace in grant.namespaces or ():
        if not is_dns_label(namespace):
            raise InvalidValue(text=namespace, expected="the name of a namespace; all namespaces are -A")
    if system_namespace() in (grant.namespaces or ()) and grant.role is not Role.VIEW:
        raise InvalidValue(
            text=system_namespace(),
            expected="a namespace of services; that of the system is written by an admin of all namespaces",
        )
    text = secrets.token_urlsafe(_SECRET_BYTES)
    data = {
        "role": str(grant.role),
        "namespaces": "*" if grant.namespaces is None else ",".join(sorted(grant.namespaces)),
        "expires": stamp(until_s),
        "sha256": _digest(text),
    }
    metadata = {"name": secret_name(name), "namespace": system_namespace(), "labels": {ACCESS_TOKEN_LABEL: name}}
    return f"{name}.{text}", {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": ACCESS_TOKEN_LABEL,
        "stringData": data,
    }


def secret_name(name: str) -> str:
    """The name of the Secret of a token."""
    return f"{_PREFIX}{name}"


def read_token(secret: Object) -> AccessToken:
    """The token of a Secret. Raises ``ValueError`` for a Secret that is not a valid token."""
    name = name_of(secret).removeprefix(_PREFIX)
    if secret.get("type") != ACCESS_TOKEN_LABEL or name == name_of(secret) or not _NAME.fullmatch(name):
        raise ValueError(f"{name_of(secret)}: not an access token")
    data = {key: value.decode() for key, value in data_of(SECRET.name, secret).items()}
    try:
        namespaces = None if data["namespaces"] == "*" else frozenset(data["namespaces"].split(",")) - {""}
        grant = Grant(user=name, role=Role(data["role"]), namespaces=namespaces)
        until = dt.datetime.fromisoformat(data["expires"])
        return AccessToken(grant=grant, digest=data["sha256"], until_s=until.timestamp())
    except KeyError as error:
        raise ValueError(f"{name_of(secret)}: {error} is missing") from error


class Unauthorized(Fault):
    """A request without a valid token. ``reason`` is for the log; clients do not see it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(401, "Unauthorized")


class Authenticator:
    """Finds the user and role (``Grant``) of a token: the token of the state folder, or an access token of a user."""

    def __init__(self, cluster: MemoryCluster, admin_token: str) -> None:
        self._secrets = cluster.table(SECRET).objects
        self._admin_token = admin_token

    def authenticate(self, header: str, *, now_s: float) -> Grant:
        """The user and role for an Authorization header. Raises ``Unauthorized``; its reason is only for the log.

        ``now_s`` is seconds since the epoch.
        """
        scheme, _, credentials = header.partition(" ")
        text = credentials.strip() if scheme.lower() == "bearer" else ""
        if not text:
            raise Unauthorized("no bearer token")
        return self.grant_of(text, now_s=now_s)

    def grant_of(self, text: str, *, now_s: float) -> Grant:
        """The user and role of a token. Raises ``Unauthorized``; its reason is only for the log.

        ``now_s`` is seconds since the epoch.
        """
        if matches(text, self._admin_token):
            return FULL_GRANT
        name, _, secret = text.partition(".")
        stored = self._secrets.get((system_namespace(), secret_name(name)))
        if stored is None:
            raise Unauthorized("unknown token")
        try:
            token = read_token(decoded(stored.encoded))
        except ValueError as error:
            raise Unauthorized(str(error)) from error
        if not matches(_digest(secret), token.digest):
            raise Unauthorized("unknown token")
        if token.until_s <= now_s:
            raise Unauthorized(f"the token {name} has expired")
        return token.grant


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
