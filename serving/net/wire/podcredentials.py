"""A pod's other requests to an autoscaler: credentials, and the announcement of its readiness."""

import asyncio
from urllib.parse import urlencode, urlsplit

import msgspec

from serving.net.aio.mutualtls import PeerTls, open_tls
from serving.net.aio.netns import open_connection

_RESPONSE_BYTES_MAX = 65_536
_TIMEOUT_S = 5.0
_PORT = 80


class IssuedCredentials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A certificate with its key as PEM ("" without inner TLS), and the pod's caller token.

    Expiries are in unix seconds, lifetimes in seconds. ``query_digest`` is the SHA-256 of the query token, "" if there
    is no token.
    """

    caller_token: str
    caller_token_not_after_s: float
    caller_token_life_s: float
    certificate: str = ""
    key: str = ""
    not_after_s: float = 0.0
    life_s: float = 0.0
    query_digest: str = ""


async def fetch_credentials(
    stats_url: str, names: dict[str, str], *, token: str, network: str, secured: PeerTls | None
) -> IssuedCredentials:
    """Request the credentials of the pod ``names`` from the autoscaler at a stats URL.

    Raises:
        OSError: when the autoscaler does not respond, or refuses.
    """
    body = await _request("credentials", stats_url, names, token=token, network=network, secured=secured)
    try:
        return msgspec.json.decode(body, type=IssuedCredentials)
    except msgspec.MsgspecError as error:
        raise ConnectionError(f"the autoscaler's credentials cannot be read: {error}") from error


async def announce_pod(
    stats_url: str, names: dict[str, str], *, port: int, token: str, secured: PeerTls | None
) -> None:
    """Announce to activators that the pod ``names`` accepts requests at ``port``.

    The announcement is sent through the autoscaler at a stats URL.

    Raises:
        OSError: when the autoscaler does not respond, or refuses.
    """
    await _request("announce", stats_url, names | {"port": str(port)}, token=token, network="", secured=secured)


async def _request(
    what: str, stats_url: str, names: dict[str, str], *, token: str, network: str, secured: PeerTls | None
) -> bytes:
    """Send a request to the autoscaler, and return the body of a response with status 200. Raises ``OSError``."""
    parts = urlsplit(stats_url)
    host, port = parts.hostname or "", parts.port or _PORT
    head = (
        f"GET /{what}?{urlencode(names)} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(_TIMEOUT_S):
        if secured is None:
            reader, writer = await open_connection(host, port, network=network)
        else:
            reader, writer = await open_tls(host, port, secured, network=network)
        try:
            writer.write(head.encode())
            response = await reader.read(_RESPONSE_BYTES_MAX)
            while piece := await reader.read(_RESPONSE_BYTES_MAX):
                response += piece
                if len(response) > _RESPONSE_BYTES_MAX:
                    break
        finally:
            writer.transport.abort()
    head_lines, _, body = response.partition(b"\r\n\r\n")
    status = head_lines.split(b" ", 2)[1:2]
    if status != [b"200"]:
        why = body.decode("utf-8", "replace").strip()[:200] or head_lines[:100].decode("latin-1") or "no response"
        raise ConnectionError(f"the autoscaler refused /{what}: {why}")
    return body
