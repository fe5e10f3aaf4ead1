"""Early responses to clients that wait for a pod: a page, the beginning of an event stream, or a placeholder.

The page reloads each second, without a script or another file. Its status is 503 with Retry-After, so that caches and
crawlers do not store it. API clients do not accept text/html, so they wait for the pod's response.
"""

import asyncio
import html

from serving.activator.io.visit import Visit
from serving.core.model.scaledworkload import PlaceholderResponse
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.lines import header_lines

# Responses with these statuses have no body.
_BODILESS = frozenset({204, 304})
_PAGE_AFTER_S = 0.5
"""How long a request waits before the page is sent, in seconds; most starts are shorter."""
_PAGE_HEADERS = (
    b"Content-Type: text/html; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\n"
    b"Retry-After: 1\r\n"
    b"Refresh: 1\r\n"
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{name} is starting</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1.1rem/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 90vh; margin: 0 }}
main {{ text-align: center; padding: 1rem }}
.bar {{ width: 12rem; height: .3rem; margin: 1.5rem auto; border-radius: 1rem; background: #8884; overflow: hidden }}
.bar::before {{ content: ""; display: block; width: 40%; height: 100%; border-radius: 1rem; background: #3b82f6;
  animation: slide 1.2s ease-in-out infinite alternate }}
@keyframes slide {{ to {{ transform: translateX(150%) }} }}
@media (prefers-reduced-motion: reduce) {{ .bar::before {{ animation: none }} }}
</style>
</head>
<body>
<main role="status">
<h1>{name} is starting</h1>
<div class="bar"></div>
<p>It was asleep. This page reloads itself until the service answers.</p>
</main>
</body>
</html>
"""


def wants_placeholder(method: bytes, accept: bytes | None) -> bool:
    """Whether a request is a browser's page request: a GET whose Accept header includes text/html."""
    if method != b"GET" or accept is None:
        return False
    return any(part.partition(b";")[0].strip().lower() == b"text/html" for part in accept.split(b","))


def placeholder_page(service: str) -> bytes:
    """The HTML page that a browser gets while a service starts, in UTF-8."""
    return _PAGE.format(name=html.escape(service)).encode()


def respond_with(exchange: Exchange, placeholder: PlaceholderResponse) -> None:
    """Send the placeholder of a ScaledWorkload."""
    body = placeholder.body.encode()
    lines = [(name.encode(), value.encode("latin-1")) for name, value in placeholder.headers.items()]
    if not any(name.lower() == b"content-type" for name, _ in lines):
        kind = b"text/html" if body.startswith(b"<") else b"text/plain"
        lines.append((b"Content-Type", kind + b"; charset=utf-8"))
    status = placeholder.status_code
    exchange.respond(status, b"" if status in _BODILESS else body, header_lines(*lines) + exchange.response_headers)


def respond_early(exchange: Exchange, visit: Visit) -> None:
    """Send the placeholder page, or the first events of a stream, while a request waits for its first pod."""
    if not (exchange.is_waiting and visit.is_cold):
        return
    site = visit.site
    if site.policy.has_placeholder and exchange.body.is_complete:
        _offer_placeholder(exchange, visit, service=site.route.partition("/")[2])
    if site.policy.has_start_events and not visit.is_grpc:
        _offer_events(exchange)


def _offer_events(exchange: Exchange) -> None:
    from serving.net.proxy.forwarding.earlyevents import begin_events, wants_events  # noqa: PLC0415 - few routes have them

    if wants_events(exchange.head, exchange.body.peek()):
        begin_events(exchange, later=asyncio.get_running_loop().call_later)


def _offer_placeholder(exchange: Exchange, visit: Visit, *, service: str) -> None:
    """Send a browser the placeholder page, unless a pod takes the request soon."""

    def show() -> None:
        if exchange.is_waiting and visit.is_cold:
            exchange.respond(503, placeholder_page(service), _PAGE_HEADERS + exchange.response_headers)

    if wants_placeholder(exchange.head.method, exchange.head.get(b"accept")):
        asyncio.get_running_loop().call_later(_PAGE_AFTER_S, show)
