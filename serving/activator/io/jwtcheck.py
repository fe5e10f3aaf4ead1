"""Checks JSON Web Tokens by the rule of a route, and passes their claims to the app as headers.

The token's algorithm must be one that its key allows: neither ``none`` nor HMAC with a public key passes. While the
issuer's keys are missing, a request waits a bounded time for them, then gets 503. Headers with the prefix of claims are
removed from each request.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from serving.activator.io.jwtkeys import KeySet, SigningKey
from serving.activator.routing.sites import AccessRefusal, AccessRule
from serving.core.model.accessrules import JwtRule
from serving.net.aio.clock import now_s, wall_s
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.lines import HeaderLine
from serving.net.proxy.http1.requesthead import RequestHead

CLAIM_PREFIX = b"x-jwt-claim-"
TOKEN_BYTES_MAX = 8192
"""Largest token in bytes. An app that needs more claims can query the issuer."""

# Tolerated difference between the issuer's and this machine's clocks, in seconds, as in most validators.
_LEEWAY_S = 60.0
_SETS_MAX = 256
_VERIFIED_MAX = 4096
_CLAIM_BYTES_MAX = 1024
# Printable ASCII except "%", which starts an escape.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_OPTIONS: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}


class BadToken(Exception):
    """A rejected token; the text is the reason."""


class UnknownKey(BadToken):
    """A token whose key id is not among the keys."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A verified token: its claims as header ``lines``, and its expiry ``until_s`` in seconds since the epoch."""

    lines: tuple[HeaderLine, ...]
    until_s: float


def verify(token: str, rule: JwtRule, keys: Mapping[str, SigningKey], *, at_s: float) -> Verified:
    """Verify a token at ``at_s``, and return its claims. Raises ``BadToken``, ``UnknownKey``."""
    import jwt  # noqa: PLC0415 - only with a rule

    if len(token) > TOKEN_BYTES_MAX:
        raise BadToken(f"it has more than {TOKEN_BYTES_MAX} bytes")
    try:
        head = jwt.get_unverified_header(token)
        key = _key_of(head, keys)
        claims = jwt.decode(
            token, key.key, algorithms=[head["alg"]], audience=rule.audiences, issuer=rule.issuer, options=_OPTIONS
        )
        until_s, from_s = (float(claims.get(name, other)) for name, other in (("exp", 0), ("nbf", 0)))
    except BadToken:
        raise
    except Exception as error:  # hostile bytes may cause any error in the parser
        text = str(error) if isinstance(error, jwt.PyJWTError) else "it cannot be read"
        raise BadToken(text) from error
    if not math.isfinite(until_s) or until_s + _LEEWAY_S <= at_s:
        raise BadToken("it has expired")
    if not from_s - _LEEWAY_S <= at_s:
        raise BadToken("it is not valid yet")
    lines = [_line(name, claims[name]) for name in rule.claims if name in claims]
    return Verified(lines=tuple(line for line in lines if line is not None), until_s=until_s + _LEEWAY_S)


def _key_of(head: Mapping[str, Any], keys: Mapping[str, SigningKey]) -> SigningKey:
    """The key that signed a token. Raises ``BadToken`` if the key does not allow the token's algorithm."""
    if "crit" in head or head.get("b64") is False:
        raise BadToken("it has extensions that are not known here")
    kid = head.get("kid")
    key_id = kid if isinstance(kid, str) else next(iter(keys)) if kid is None and len(keys) == 1 else ""
    key = keys.get(key_id)
    if key is None:
        raise UnknownKey("its key is unknown")
    if head.get("alg") not in key.algorithms:
        raise BadToken(f"its algorithm is none of its key: {', '.join(sorted(key.algorithms))}")
    return key


def _line(name: str, value: object) -> HeaderLine | None:
    """A claim as a header line: text, number, or a list of them; None for other types and for long values."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str | int | float) for entry in values):
        return None
    texts = [str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in values]
    text = quote(",".join(texts), safe=_SAFE, errors="replace").strip().encode()
    # Names with an underscore would be dropped later.
    header = CLAIM_PREFIX + name.lower().replace("_", "-").encode()
    if len(text) > _CLAIM_BYTES_MAX:
        return None
    return HeaderLine(name=header, value=text, wire=b"%b: %b\r\n" % (header, text), plain=True, matters=False)


def with_claims(head: RequestHead, lines: tuple[HeaderLine, ...]) -> RequestHead:
    """The head with exactly these claims; claim headers from the client are removed."""
    rest = head.without(lambda line: line.name.startswith(CLAIM_PREFIX))
    wire = rest.wire + b"".join(line.wire for line in lines)
    return msgspec.structs.replace(rest, lines=[*rest.lines, *lines], wire=wire)


class JwtChecker:
    """Checks the tokens of requests, and caches keys and verified tokens."""

    def __init__(self) -> None:
        # The request whose wait for keys has just ended.
        self._resumed: Exchange | None = None
        self._sets: dict[tuple[str, str], KeySet] = {}
        self._verified: dict[tuple[AccessRule, str], tuple[Mapping[str, Any], Verified]] = {}

    def admits(self, exchange: Exchange, rule: AccessRule, *, again: Callable[[Exchange], None]) -> bool:
        """Check a request's token; True admits the request, with claims in its head.

        False: the request was rejected, or waits for keys. ``again`` is called with a request whose wait for keys has
        ended.
        """
        assert rule.jwt is not None
        name = f"{rule.namespace}/{rule.route}"
        if not rule.jwt.issuer:
            _refuse(exchange, _unavailable(name, "its annotation serving.dev/jwt cannot be read"))
            return False
        keys = self._keys_of(rule.jwt)
        keys.refresh()

        def resume() -> None:
            if exchange.is_waiting:
                self._resumed = exchange
                again(exchange)
                self._resumed = None

        # Only once, so that a slow failing issuer does not hold a request forever.
        may_wait = exchange is not self._resumed
        if not keys.is_usable:
            if not (may_wait and keys.call_after_fetch(resume)):
                # The reason is only logged, because the keys' address may be internal.
                _refuse(exchange, _unavailable(name, "its issuer's keys are not available"))
            return False
        credentials = [*exchange.head.values(b"authorization")]
        scheme, _, token = credentials[0].decode("latin-1").partition(" ") if len(credentials) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            _refuse(exchange, _unauthorized(name, "send Authorization: Bearer TOKEN, once", ""))
            return False
        try:
            verified = self._verify(rule, token.strip(), keys.keys)
        except UnknownKey as error:
            # Keys rotate, so the unknown key may be new.
            if not (may_wait and keys.call_after_fetch(resume)):
                _refuse(exchange, _unauthorized(name, str(error), ', error="invalid_token"'))
            return False
        except BadToken as error:
            _refuse(exchange, _unauthorized(name, str(error), ', error="invalid_token"'))
            return False
        exchange.head = with_claims(exchange.head, verified.lines)
        return True

    def _keys_of(self, rule: JwtRule) -> KeySet:
        place = (rule.keys_url, rule.issuer)
        key_set = self._sets.get(place)
        if key_set is None:
            if len(self._sets) >= _SETS_MAX:
                self._sets.clear()
            key_set = self._sets[place] = KeySet(*place, clock=now_s)
        return key_set

    def _verify(self, rule: AccessRule, token: str, keys: Mapping[str, SigningKey]) -> Verified:
        assert rule.jwt is not None
        at_s = wall_s()
        with_keys, known = self._verified.get((rule, token), (None, None))
        if known is not None and with_keys is keys and at_s < known.until_s:
            return known
        verified = verify(token, rule.jwt, keys, at_s=at_s)
        if len(self._verified) >= _VERIFIED_MAX:
            self._verified.clear()
        self._verified[rule, token] = keys, verified
        return verified


def _refuse(exchange: Exchange, refusal: AccessRefusal) -> None:
    exchange.respond(refusal.status, refusal.text, refusal.headers)


def _unauthorized(name: str, why: str, error: str) -> AccessRefusal:
    text = f"service {name} takes a JSON Web Token: {why}\n".encode("ascii", "replace")
    headers = f'Content-Type: text/plain; charset=utf-8\r\nWWW-Authenticate: Bearer realm="{name}"{error}\r\n'
    return AccessRefusal(status=401, text=text, headers=headers.encode())


def _unavailable(name: str, why: str) -> AccessRefusal:
    text = f"service {name} cannot check tokens now: {why}\n".encode("ascii", "replace")
    headers = b"Content-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n"
    return AccessRefusal(status=503, text=text, headers=headers)
