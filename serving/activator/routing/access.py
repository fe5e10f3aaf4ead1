"""Whether a request may reach a private service.

Input: the rule of the site, the token that the rule asks for, and the request's header values. Output: None if the request
may pass, else the answer. A caller sends ``Authorization: Bearer TOKEN``; one whose app uses that header itself sends
``X-Serving-Authorization: Bearer TOKEN``, which goes first and is not forwarded. Follows RFC 6750, section 3.
"""

import hmac
from collections.abc import Sequence

import msgspec

from serving.activator.routing.sites import AccessRule

OWN_AUTHORIZATION = b"x-serving-authorization"
_SCHEME = b"bearer "


class AccessRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that has no right: its status, its text and its header lines."""

    status: int
    text: bytes
    headers: bytes


def access_refusal(
    rule: AccessRule, token: str, *, own: Sequence[bytes], usual: Sequence[bytes]
) -> AccessRefusal | None:
    """The refusal of a request; None if it carries the token.

    ``own`` and ``usual`` are the values of X-Serving-Authorization and Authorization. More than one value of a header is
    refused: which of them counts would be a guess.
    """
    given = own or usual
    name = f"{rule.namespace}/{rule.route}".encode()
    if not given:
        text = b"service %b is private: send Authorization: Bearer TOKEN\n" % name
        return _refusal(name, text, b"")
    value = given[0]
    is_bearer = len(given) == 1 and value[: len(_SCHEME)].lower() == _SCHEME
    if is_bearer and hmac.compare_digest(value[len(_SCHEME) :].strip(), token.encode()):
        return None
    text = b"service %b is private, and this is not its token\n" % name
    return _refusal(name, text, b', error="invalid_token"')


def _refusal(name: bytes, text: bytes, error: bytes) -> AccessRefusal:
    headers = b'Content-Type: text/plain; charset=utf-8\r\nWWW-Authenticate: Bearer realm="%b"%b\r\n' % (name, error)
    return AccessRefusal(status=401, text=text, headers=headers)
