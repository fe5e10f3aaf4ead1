"""The allowed callers of a service: reads ``serving.dev/allow-from`` and ``serving.dev/jwt``.

Input: an annotation, as in "namespace/shop, serviceaccount/shop/cart, service/shop/front", or
"issuer=https://login.example.com, audience=api, jwks=https://login.example.com/keys". Output: a rule, and its invalid
entries. An invalid entry admits no caller, and an invalid rule for tokens admits no request.
"""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from serving.core.model.identities import CallerIdentity

_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_ENTRY = re.compile(
    rf"namespace/(?P<namespace>{_NAME})|(?P<kind>serviceaccount|service)/(?P<of>{_NAME})/(?P<name>{_NAME})"
)
_EVERYONE = "*"
# A request must satisfy every token rule of the service.
_ENTRIES_MAX = 64

_CLAIM = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")
_VALUE = re.compile(r"[!-~]{1,512}")
_LOCAL = re.compile(r"localhost|127\.[0-9.]+|\[::1\]|.+\.svc\.cluster\.local|.+\.localhost")
_AUDIENCES_MAX = _CLAIMS_MAX = 16
_DEFAULT_CLAIMS = ("sub",)
_PARTS = "issuer=URL, audience=NAME, jwks=URL, claims=sub+email"


class AllowedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace, or an account or service in a namespace; an empty name matches any."""

    namespace: str
    account: str = ""
    service: str = ""

    def admits(self, caller: CallerIdentity) -> bool:
        """Whether this entry admits the caller."""
        return (
            caller.namespace == self.namespace
            and self.account in ("", caller.account)
            and self.service in ("", caller.service)
        )


class CallerRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which callers may call a service. If ``is_open``, every caller may, including unauthenticated ones."""

    callers: tuple[AllowedCaller, ...] = ()
    is_open: bool = False

    def admits(self, caller: CallerIdentity) -> bool:
        """Whether the caller may call the service."""
        return self.is_open or any(allowed.admits(caller) for allowed in self.callers)


def caller_rule(text: str) -> tuple[CallerRule, list[str]]:
    """Parse an ``allow-from`` annotation: the caller rule, and the entries that cannot be parsed."""
    entries = [entry for entry in re.split(r"[,\s]+", text) if entry]
    wrong = [*_wrong(entries), *entries[_ENTRIES_MAX:]]
    if entries == [_EVERYONE]:
        return CallerRule(is_open=True), []
    callers = []
    for entry in entries[:_ENTRIES_MAX]:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            continue
        names = {"account" if match["kind"] == "serviceaccount" else "service": match["name"]} if match["kind"] else {}
        callers.append(AllowedCaller(namespace=match["namespace"] or match["of"], **names))
    return CallerRule(callers=tuple(callers)), wrong


def _wrong(entries: list[str]) -> Iterator[str]:
    is_alone = len(entries) == 1
    return (
        entry
        for entry in entries[:_ENTRIES_MAX]
        if not _ENTRY.fullmatch(entry) and not (is_alone and entry == _EVERYONE)
    )


class JwtRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for tokens: issuer, audiences, the URL of the keys, and the claims passed to the app as headers.

    ``jwks`` "" means that the issuer's OpenID configuration names the keys. ``issuer`` "" marks an invalid rule.
    """

    issuer: str = ""
    audiences: tuple[str, ...] = ()
    jwks: str = ""
    claims: tuple[str, ...] = _DEFAULT_CLAIMS

    @property
    def keys_url(self) -> str:
        """The URL of the key set, or of the OpenID configuration that names the key set."""
        return self.jwks or f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"


def jwt_rule(text: str) -> tuple[JwtRule, list[str]]:
    """Parse a ``jwt`` annotation: the token rule, and its problems."""
    values: dict[str, list[str]] = {"issuer": [], "audience": [], "jwks": [], "claims": []}
    problems: list[str] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = part.partition("=")
        if name not in values or not _VALUE.fullmatch(value):
            problems.append(f'"{part}" is none of {_PARTS}')
        else:
            values[name].append(value)
    claims = tuple("+".join(values["claims"]).split("+")) if values["claims"] else _DEFAULT_CLAIMS
    jwks = values["jwks"][0] if values["jwks"] else ""
    if len(values["issuer"]) != 1:
        problems.append("exactly one issuer=URL is needed")
    if not 0 < len(values["audience"]) <= _AUDIENCES_MAX:
        problems.append(f"audience=NAME is needed, at most {_AUDIENCES_MAX} times")
    if len(values["jwks"]) > 1:
        problems.append("at most one jwks=URL")
    url = jwks or next(iter(values["issuer"]), "https://x")
    if not is_key_url(url):
        problems.append(f'"{url}" is no https:// URL; http:// only for this machine and *.svc.cluster.local')
    if len(claims) > _CLAIMS_MAX or not all(map(_CLAIM.fullmatch, claims)):
        problems.append("claims=NAME+NAME are letters, digits, - and _")
    if problems:
        return JwtRule(), problems
    return JwtRule(issuer=values["issuer"][0], audiences=tuple(values["audience"]), jwks=jwks, claims=claims), []


def is_key_url(url: str) -> bool:
    """Whether keys may be fetched from the URL: https from any host, http only from hosts inside the cluster."""
    if "," in url or not _VALUE.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    del port
    if not host or parts.username is not None:
        return False
    named = f"[{host}]" if ":" in host else host
    return parts.scheme == "https" or (parts.scheme == "http" and bool(_LOCAL.fullmatch(named)))
