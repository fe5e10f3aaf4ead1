"""Which session a request belongs to, and the cookie that starts one.

Input: how the route recognises a session (``serving.model.routepolicy``) and the request's header values. Output: the
session's number for ``serving.traffic.sessions``, or the cookie of a new session. The cookie holds a random number and
nothing about a pod, so it stays valid when pods come and go, and every activator reads it alike.
"""

from collections.abc import Iterable

from serving.traffic.sessions import session_number

SESSION_COOKIE = b"serving-session"
# Longer ones are not from here.
_VALUE_BYTES_MAX = 64


def session_in_header(values: Iterable[bytes]) -> int | None:
    """The session that a header names: equal first values are one session; None without a value."""
    value = next(iter(values), b"")
    return session_number(value) if value else None


def session_in_cookies(values: Iterable[bytes]) -> int | None:
    """The session in the Cookie headers of a request; None if it brings no session cookie."""
    for value in values:
        for pair in value.split(b";"):
            name, _, text = pair.strip().partition(b"=")
            if name == SESSION_COOKIE and 0 < len(text) <= _VALUE_BYTES_MAX:
                return session_number(text)
    return None


def new_session(random: bytes, *, is_secure: bool) -> tuple[int, bytes]:
    """A new session's number, and the header line that gives its cookie to the client; ``random`` are 16 random bytes."""
    text = random.hex().encode()
    attributes = b"; Path=/; HttpOnly; SameSite=Lax" + (b"; Secure" if is_secure else b"")
    return session_number(text), b"Set-Cookie: %b=%b%b\r\n" % (SESSION_COOKIE, text, attributes)
