"""Who may act: the holder of the token, from our own page, a bounded number of times.

Input: a request's headers and the time. Output: None, or why not. A browser sends a token of a header for nobody but our
own script, so that no other site can act in a person's name; Origin, Sec-Fetch-Site and the content type are looked at besides.
"""

import hmac
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

__all__ = ["Gate", "Refusal"]

_PERIOD_S = 60.0
# Actions by the token, and tries with a wrong one, in a minute: more is a mistake of a script, or a guess.
_ACTIONS_MAX = 30
_WRONG_MAX = 10


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request may not act: an HTTP status and a sentence."""

    status: int
    why: str


class Gate:
    """Judges requests to act. Without a ``token`` nobody may."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._actions: deque[float] = deque(maxlen=_ACTIONS_MAX)
        self._wrong: deque[float] = deque(maxlen=_WRONG_MAX)

    def __repr__(self) -> str:
        return f"Gate({'open to its token' if self._token else 'read-only'})"

    @property
    def is_open(self) -> bool:
        """Whether there is a token at all."""
        return bool(self._token)

    def judge(self, headers: Mapping[str, str], *, now_s: float) -> Refusal | None:
        """None if the request may act, which counts as one action. Names of headers in small letters."""
        refused = self._unfit(headers) or self._unknown(headers, now_s)
        if refused is None and _is_full(self._actions, now_s):
            refused = Refusal(status=429, why=f"more than {_ACTIONS_MAX} actions in a minute; try again soon")
        if refused is None:
            self._actions.append(now_s)
        return refused

    def _unfit(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why such a request is not taken from anybody."""
        if not self._token:
            return Refusal(status=403, why="this dashboard is read-only: it was started without token-file")
        foreign = _foreign(headers)
        if foreign:
            return Refusal(status=403, why=foreign)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return Refusal(status=415, why=f"{kind or 'no content type'} is not taken; expected application/json")
        return None

    def _unknown(self, headers: Mapping[str, str], now_s: float) -> Refusal | None:
        """Why the token is not taken."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compared whole, whatever it is: the time says nothing about the token.
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        if scheme.lower() == "bearer" and is_right:
            return None
        if _is_full(self._wrong, now_s):
            return Refusal(status=429, why="too many wrong tokens; try again in a minute")
        self._wrong.append(now_s)
        why = "this token is not right" if given else "no token was given"
        return Refusal(status=401, why=f"{why}; `serving dashboard --token` prints it")


def _foreign(headers: Mapping[str, str]) -> str:
    """Why the request comes from another site; "" if it does not."""
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        return f"the request comes from another site ({site})"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return f"the request comes from {origin}, which is not this dashboard"
    return ""


def _is_full(times: deque[float], now_s: float) -> bool:
    while times and now_s - times[0] >= _PERIOD_S:
        times.popleft()
    return len(times) == times.maxlen
