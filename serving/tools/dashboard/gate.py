"""Authorises actions: of the token's holder or a proxy's user, from this page, up to a maximum number per minute.

Input: a request's headers and the time. Output: None, or the reason for rejecting it. A browser adds the token header
only for this page's script, so no other site can act for the user; the gate also checks Origin, Sec-Fetch-Site and the
content type.
"""

import hmac
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

_PERIOD_S = 60.0
# Maximum number of actions with the token, and of attempts with a wrong token, per minute. More indicate a faulty
# script or an attack.
_ACTIONS_MAX = 30
_WRONG_MAX = 10


class GateRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is rejected: an HTTP status and a sentence."""

    status: int
    why: str


class Gate:
    """Authorises action requests. Without a ``token`` the gate rejects all of them."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._actions: dict[str | None, deque[float]] = {}
        self._wrong: deque[float] = deque(maxlen=_WRONG_MAX)

    @property
    def is_open(self) -> bool:
        """Whether a token is configured."""
        return bool(self._token)

    def judge(self, headers: Mapping[str, str], *, now_s: float, user: str | None = None) -> GateRefusal | None:
        """Why a request is rejected; None if it is allowed. An allowed request counts against its user's rate limit.

        Header names are in lower case. A request of a known ``user`` needs no token; with None, the request must have
        the gate's token.
        """
        refused = self._unfit(headers) or (self._unknown(headers, now_s) if user is None else None)
        if refused is not None:
            return refused
        # Otherwise a user with only the right to view could block the actions of others.
        actions = self._actions.setdefault(user, deque(maxlen=_ACTIONS_MAX))
        if _is_full(actions, now_s):
            return GateRefusal(status=429, why=f"more than {_ACTIONS_MAX} actions in a minute; try again soon")
        actions.append(now_s)
        return None

    def _unfit(self, headers: Mapping[str, str]) -> GateRefusal | None:
        if not self._token:
            return GateRefusal(status=403, why="this dashboard is read-only: it was started without token-file")
        foreign = _foreign(headers)
        if foreign:
            return GateRefusal(status=403, why=foreign)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return GateRefusal(
                status=415, why=f"{kind or 'no content type'} is not accepted; expected application/json"
            )
        return None

    def _unknown(self, headers: Mapping[str, str], now_s: float) -> GateRefusal | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Constant time: the duration reveals nothing about the token.
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self._token)
        if scheme.lower() == "bearer" and is_right:
            return None
        if _is_full(self._wrong, now_s):
            return GateRefusal(status=429, why="too many wrong tokens; try again in a minute")
        self._wrong.append(now_s)
        why = "the token is wrong" if token else "the token is missing"
        return GateRefusal(status=401, why=f"{why}; `serving dashboard --token` prints it")


def _foreign(headers: Mapping[str, str]) -> str:
    """Evidence of a cross-site request; "" without evidence."""
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        return f"the request comes from another site ({site})"
    origin = headers.get("origin")
    host = headers.get("host", "")
    if origin is not None and _netloc(origin) != host.lower():
        return f"the request comes from {origin}, which is not this dashboard at {host}; a proxy must pass Host with its port"
    return ""


def _netloc(origin: str) -> str:
    """Host and port of an origin, "" if the origin has no host."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_full(times: deque[float], now_s: float) -> bool:
    while times and now_s - times[0] >= _PERIOD_S:
        times.popleft()
    return len(times) == times.maxlen
