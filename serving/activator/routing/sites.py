"""The site of a host: revisions with their shares, the access rule, and sessions.

Input: a site, a tag, and a random number or a session's number. Output: the revision of one request.
"""

import bisect
import enum
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from serving.core.model.accessrules import CallerRule, JwtRule
from serving.core.model.errors import InvalidValue
from serving.core.model.identities import CallerIdentity
from serving.core.model.knative import RevisionKey
from serving.core.model.responses import TEXT_PLAIN
from serving.core.model.routepolicy import OPEN_POLICY, RoutePolicy
from serving.core.traffic.policy import session_number

INNER_DOMAIN = "svc.cluster.local"

OWN_AUTHORIZATION = b"x-serving-authorization"
_SCHEME = b"bearer "
CALLER = b"x-serving-caller"
"""The header with a caller's token. It is reserved, so services never receive it."""

SESSION_COOKIE = b"serving-session"
# This system sets no longer values.
_VALUE_BYTES_MAX = 64


class Listener(enum.StrEnum):
    """The listener that received a request. Only the inner one serves cluster-local hosts."""

    PUBLIC = "public"
    INNER = "inner"


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """The access requirements of a route.

    ``is_private``: requests need the route's token. ``version`` is part of the token, so that a new version (in the
    route's annotation) invalidates old tokens; "" is the first. ``callers`` are the admitted callers, None for all.
    ``jwt``: requests need a JSON Web Token.
    """

    namespace: str
    route: str
    version: str
    is_private: bool = True
    callers: CallerRule | None = None
    jwt: JwtRule | None = None

    @property
    def is_lasting(self) -> bool:
        """Whether the result for a request also holds for later equal requests; False if the rule checks tokens."""
        return self.jwt is None and (self.callers is None or self.callers.is_open)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of one host: revisions with their shares, and revisions by tag.

    ``bounds`` are the cumulative percents of the revisions: 90 and 10 percent have bounds 90 and 100. The host of a tag
    has one revision and no tags. ``policy`` is the route's policy; ``access`` is None for a public site.
    """

    route: str
    namespace: str
    revisions: tuple[str, ...]
    bounds: tuple[int, ...]
    tags: Mapping[str, "Site"] = {}
    policy: RoutePolicy = OPEN_POLICY
    access: AccessRule | None = None


def choose(site: Site, *, tag: str | None, draw: Callable[[], float]) -> RevisionKey:
    """Choose a revision of a site by tag, else by weight; an unknown tag is ignored.

    ``draw`` returns random numbers in [0, 1): with 90 and 10 percent, 0.89 is the first revision and 0.9 the second.
    """
    if tag is not None and (tagged := site.tags.get(tag)) is not None:
        return choose(tagged, tag=None, draw=draw)
    if len(site.revisions) == 1:
        return site.namespace, site.revisions[0]
    place = bisect.bisect_right(site.bounds, draw() * site.bounds[-1])
    return site.namespace, site.revisions[place]


def shares_of(site: Site) -> Iterator[tuple[str, int]]:
    """The revisions of a site with their percents."""
    before = 0
    for revision, bound in zip(site.revisions, site.bounds, strict=True):
        yield revision, bound - before
        before = bound


class AccessRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The response to an unauthorised request: status, text and header lines."""

    status: int
    text: bytes
    headers: bytes


def access_refusal(
    rule: AccessRule, token: str, *, own: Sequence[bytes], usual: Sequence[bytes]
) -> AccessRefusal | None:
    """The refusal of a request; None if the request has the token.

    ``own`` are the values of X-Serving-Authorization, ``usual`` those of Authorization. A header with several values is
    refused as ambiguous.
    """
    credentials = own or usual
    name = f"{rule.namespace}/{rule.route}".encode()
    if not credentials:
        text = b"service %b is private: send Authorization: Bearer TOKEN\n" % name
        return _refusal(name, text, b"")
    value = credentials[0]
    is_bearer = len(credentials) == 1 and value[: len(_SCHEME)].lower() == _SCHEME
    if is_bearer and hmac.compare_digest(value[len(_SCHEME) :].strip(), token.encode()):
        return None
    text = b"service %b is private, and this is not its token\n" % name
    return _refusal(name, text, b', error="invalid_token"')


def caller_refusal(
    rule: AccessRule, tokens: Sequence[bytes], *, read: Callable[[str], CallerIdentity]
) -> AccessRefusal | None:
    """The refusal of a caller; None if the caller is allowed.

    ``tokens`` are the values of X-Serving-Caller; ``read`` reads a token, or raises ``InvalidValue``.
    """
    if rule.callers is None or rule.callers.is_open:
        return None
    why = b"send X-Serving-Caller: TOKEN, once" if len(tokens) != 1 else b""
    if not why:
        try:
            caller = read(tokens[0].decode("latin-1"))
        except InvalidValue as error:
            why = error.expected.encode()
        else:
            if rule.callers.admits(caller):
                return None
            named = (caller.namespace, caller.account, caller.service or "none")
            why = "namespace {}, serviceaccount {}, service {} is none of them".format(*named).encode()
    text = b"service %b is for the callers of its allow-from only: %b\n" % (
        f"{rule.namespace}/{rule.route}".encode(),
        why,
    )
    return AccessRefusal(status=403, text=text, headers=TEXT_PLAIN)


def _refusal(name: bytes, text: bytes, error: bytes) -> AccessRefusal:
    headers = b'Content-Type: text/plain; charset=utf-8\r\nWWW-Authenticate: Bearer realm="%b"%b\r\n' % (name, error)
    return AccessRefusal(status=401, text=text, headers=headers)


def session_in_header(values: Iterable[bytes]) -> int | None:
    """The number of the session that a header names; None without a value.

    The number is derived from the first value, so requests with equal values belong to the same session.
    """
    value = next(iter(values), b"")
    return session_number(value) if value else None


def session_in_cookies(values: Iterable[bytes]) -> int | None:
    """The number of the session in a request's Cookie headers; None without a session cookie."""
    for value in values:
        for pair in value.split(b";"):
            name, _, text = pair.strip().partition(b"=")
            if name == SESSION_COOKIE and 0 < len(text) <= _VALUE_BYTES_MAX:
                return session_number(text)
    return None


def new_session(random: bytes, *, is_secure: bool) -> tuple[int, bytes]:
    """The number of a new session, and the Set-Cookie line for its client; ``random`` are 16 random bytes."""
    text = random.hex().encode()
    attributes = b"; Path=/; HttpOnly; SameSite=Lax" + (b"; Secure" if is_secure else b"")
    return session_number(text), b"Set-Cookie: %b=%b%b\r\n" % (SESSION_COOKIE, text, attributes)
