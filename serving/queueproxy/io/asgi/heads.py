"""The head of a request in ASGI: read as the proxies read heads, and rewritten as a queue-proxy forwards them.

Names that only our daemons may set are left out, ``Host`` is the one that the client sent to the activator, and
X-Forwarded-* and Forwarded say the way that the request took.
"""

from serving.proxy.http1.lines import RESERVED, HeaderLine, read_line, read_lines
from serving.proxy.http1.rendering import ClientPeer
from serving.proxy.http1.requesthead import FORWARDED, RequestHead
from serving.queueproxy.io.asgi.messages import Scope
from serving.queueproxy.io.podrequests import Origin

_SECURE = {"https": b"https", "wss": b"https"}


def head_of(scope: Scope) -> RequestHead:
    """The head of a request or of a websocket's handshake. Raises ``BadHeaderLine``."""
    lines = read_lines([b"%b: %b" % (name, value) for name, value in scope["headers"]])
    names = {line.name for line in lines}
    return RequestHead(
        method=scope.get("method", "GET").encode(),
        target=scope.get("raw_path") or scope["path"].encode(),
        host=next((line.value for line in lines if line.name == b"host"), b""),
        lines=lines,
        wire=b"",
        reserved=not RESERVED.isdisjoint(names),
        forwarded=not FORWARDED.isdisjoint(names),
    )


def scope_for_app(scope: Scope, head: RequestHead, origin: Origin) -> Scope:
    """The scope as the app gets it."""
    is_trusted, host = origin
    host = head.host if host is None else host
    kept = [(b"host", host)] if host else []
    kept += [(line.name, line.value) for line in head.lines if _is_kept(line)]
    address = (scope.get("client") or ("",))[0]
    if not head.forwarded or not _is_said(head, address):
        peer = ClientPeer(address, _SECURE.get(scope.get("scheme", "http"), b"http"))
        written = peer.forwarded_lines(head, host, trusted=is_trusted).splitlines()
        kept += [(line.name, line.value) for line in map(read_line, written)]
    else:
        kept += [(line.name, line.value) for line in head.lines if line.name in FORWARDED]
    return {**scope, "headers": kept}


def _is_kept(line: HeaderLine) -> bool:
    # Neither plain nor looked at: about one hop.
    if line.name in RESERVED or line.name in FORWARDED or line.name == b"host":
        return False
    return line.plain or line.matters


def _is_said(head: RequestHead, address: str) -> bool:
    """Whether the server has read X-Forwarded-For already and shows its last address as the client's."""
    way = b",".join(head.values(b"x-forwarded-for")).rpartition(b",")[2].strip()
    return way == address.encode()
