"""Limits of the HTTP engine, shared by the queue-proxy and the activator: sizes, counts and timeouts.

The field ``http`` of each daemon's record has this type, so that a knob has the same name, range and default in both
daemons. Each field names the source of its default; where Knative has no bound, the bound is ours.
"""

import ipaddress
from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.settings.knob import BYTES, COUNT, DURATION, FLAG, PERCENT, TEXT, Knob, Value

REPLACE = "replace"
"""The value of ``forwarded_for`` that drops addresses claimed by clients."""
HOP_HEAD_BYTES, HOP_HEADER_COUNT = 4096, 16
"""Bytes and lines that activator and queue-proxy may add to a head; limits between them are larger by these."""


def _read_networks(text: str) -> Value:
    for network in filter(None, map(str.strip, text.split(","))):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise InvalidValue(
                text=network, expected=f"networks as 10.0.0.0/8, separated by commas ({error})"
            ) from error
    return text


_NETWORKS = msgspec.structs.replace(TEXT, name="list of networks", read=_read_networks, read_plain=_read_networks)


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on heads, bodies, connections and waiting. Times are in seconds, sizes in bytes."""

    head_bytes_max: Annotated[int, Knob(key="head-bytes-max", unit=BYTES, low=1024, high=1024**2)] = 64 * 1024
    """Maximum size of the headers of a request or response, from the first byte to the empty line. A request with
    larger headers gets 431; a response with larger headers becomes 502. Range: 1Ki to 1Mi. Default: Envoy's 60 KiB and
    room for its request line; Go allows 1 MiB.
    """

    header_count_max: int = 128
    """Most header lines of a request (431) or a response (502). Source: ours; Apache allows 100."""

    keep_underscore_headers: Annotated[bool, Knob(key="keep-underscore-headers", unit=FLAG)] = False
    """Whether request headers with "_" in their name are forwarded. By default such headers are dropped, because CGI
    and WSGI apps treat X_Forwarded_For as X-Forwarded-For. Activator and queue-proxy need the same value. Default:
    nginx, false; Knative forwards them.
    """

    body_bytes_max: Annotated[int, Knob(key="body-bytes-max", unit=BYTES, low=0)] = 0
    """Maximum size of a request's body; a request with a larger body gets 413. 0 means no limit. Range: from 0.
    Default: Knative, no limit.
    """

    body_held_bytes_max: int = 64 * 1024
    """Most bytes of a waiting request's body, or of pipelined requests, that are read ahead.

    Source: ours, one full read of a socket.
    """

    slot_after_body: Annotated[bool, Knob(key="slot-after-body", unit=FLAG)] = True
    """Whether a request gets a slot only when its whole body, or ``body_held_bytes_max`` of the body, has arrived.

    If the body has no Content-Length, its first byte is sufficient. A gRPC call gets a slot before any byte of its
    body. Default: nginx, true (it waits for the whole body); Envoy and Knative, false.
    """

    head_wait_max_s: Annotated[float, Knob(key="head-wait-max", unit=DURATION, above=0, high=3600)] = 10.0
    """Longest time until the headers of a request are complete; then the request gets 408. For the first request the
    time starts when the connection opens, for later requests at the first byte of their headers. Range: above 0 to 1h.
    Default: ours; nginx waits 60s, Knative's Go server for ever.
    """

    body_wait_max_s: float = 60.0
    """Longest pause between two pieces of a request's body while reading; then 408.

    ``body_rate_min`` ends slow bodies earlier. Source: nginx, 60s.
    """

    body_rate_min: Annotated[int, Knob(key="body-rate-min", unit=BYTES, low=0, high=1024**3)] = 240
    """Minimum rate of a request's body, in bytes per second. A slower request gets 408 after ``rate_grace_s``. A client
    that has sent faster may pause for up to ``body_wait_max_s``. The rate does not apply to gRPC calls, or once the
    response has begun. 0 means no minimum. Range: 0 to 1Gi. Default: ASP.NET's Kestrel, 240.
    """

    read_rate_min: int = 240
    """Least bytes a second that a client reads of a response while more wait for it; a slower one is cut off after
    ``rate_grace_s``. Bytes read faster allow a pause of up to twice that. gRPC calls and tunnels are exempt. 0 means
    none: then only ``write_wait_max_s`` holds. Source: ASP.NET's Kestrel, 240."""

    response_buffer_bytes_max: int = 1024**2
    """Most bytes of a response buffered for a slow client.

    Once the whole response is buffered, the pod's slot is free. gRPC calls and tunnels are not buffered. 0 means none.
    Source: ours, 1Mi; nginx has 64 KiB of memory and 1 GiB of disk.
    """

    response_buffers_bytes_max: int = 64 * 1024**2
    """Most bytes of all responses of a daemon buffered for slow clients. 0 means none.

    Source: ours, 64Mi in an activator and 16Mi in a queue-proxy; nginx has no such bound.
    """

    rate_grace_s: float = 10.0
    """Time before ``body_rate_min`` and ``read_rate_min`` are judged, in seconds: a client may be silent for so long at
    first. Source: ours, 10s, two lost packets on a bad line; Kestrel has 5s, Apache 20s."""

    client_idle_max_s: float = 180.0
    """Time from a response's end to the next request's first byte; then the connection is closed.

    Must be longer than clients keep idle connections. Source: ours, three times ``upstream_idle_max_s``, because the
    clients of a queue-proxy are activators.
    """

    connections_max: Annotated[int, Knob(key="connections-max", unit=COUNT, low=1, high=1_000_000)] = 20_000
    """Maximum number of client connections; further connections get 503 and are closed. Range: 1 to 1000000. Default:
    ours.
    """

    connections_per_address_max: Annotated[
        int, Knob(key="connections-per-address-max", unit=COUNT, low=0, high=1_000_000)
    ] = 0
    """Maximum number of connections from one address; further connections get 503 and are closed. 0 means no limit per
    address. Behind a load balancer all clients have its address. Range: 0 to 1000000. Default: ours, 0.
    """

    upstream_connect_max_s: float = 2.0
    """Longest time to connect to an upstream; then 502, or another upstream. Source: ours, 2s for an activator, which
    has other pods; Knative's dialer, 20s for a queue-proxy, which has one app."""

    upstream_idle_max_s: float = 60.0
    """Time for which an idle connection to an upstream is kept. Source: ours; Go's transport keeps them 90s, Node and
    uvicorn close theirs after 5s, which is what the single retry is for."""

    trusted_proxies: Annotated[str, Knob(key="trusted-proxies", unit=_NETWORKS)] = ""
    """Networks of trusted proxies, separated by commas: 10.0.0.0/8, 192.0.2.7. X-Forwarded-Proto, X-Forwarded-Host and
    Forwarded of these proxies are accepted. These headers of other peers are rewritten; ``forwarded_for`` determines
    the treatment of X-Forwarded-For from other peers. Default: ours, none.
    """

    forwarded_for: Annotated[str, Knob(key="forwarded-for", unit=TEXT, choices=("append", REPLACE))] = "append"
    """Treatment of X-Forwarded-For from a peer outside of ``trusted_proxies``. ``append`` adds the peer's address, so
    only the last address is reliable. ``replace`` keeps only the peer's address. The header of a trusted peer is always
    extended. Activator and queue-proxy need the same value. Default: Knative and nginx's
    ``$proxy_add_x_forwarded_for``, append; Envoy's edge and Traefik, replace.
    """

    access_log_ratio: Annotated[float, Knob(key="access-log-percentage", unit=PERCENT, low=0, high=1)] = 0.0
    """Percentage of requests with a line in the access log, as JSON on standard output. 0 means no log. Range: 0 to 100
    percent. Default: ours, 0: a line costs as much as a request.
    """

    tunnel_idle_max_s: Annotated[float, Knob(key="tunnel-idle-max", unit=DURATION, low=0, high=86400)] = 600.0
    """Longest time without a byte from either side of a tunnel (websocket); then the tunnel is closed. 0 means no
    limit. Range: 0 to 24h. Default: ours; libraries ping every 20 to 60s.
    """

    tunnel_age_max_s: float = 0.0
    """Longest life of a tunnel, from the request; then it is closed. 0 means no limit of its own: a revision's
    timeoutSeconds ends tunnels too. Source: ours, 0."""

    write_wait_max_s: float = 60.0
    """Longest time without progress in sending a response, in seconds; then its stream is reset, or its connection cut.
    ``read_rate_min`` ends slow readers before. Source: nginx ``send_timeout``, 60s."""

    http2_streams_max: int = 128
    """Most streams at once on a client's HTTP/2 connection; one more is refused with REFUSED_STREAM, which a client may
    try again. Source: nginx, 128; Go's server allows 250."""

    http2_count_period_s: float = 10.0
    """Span for counting frames that are cheap for an HTTP/2 peer: resets, pings, settings, idle frames. More of one
    kind in a span end the connection with ENHANCE_YOUR_CALM. Source: ours."""

    http2_resets_max: int = 200
    """Most RST_STREAM frames in a span. Source: ours; a browser that leaves a page sends a few dozen, and an attack
    ("rapid reset") sends thousands."""

    http2_pings_max: int = 200
    """Most PING frames in a span without a piece of a response in between. Source: ours; gRPC's clients ping while they
    are sent data, to measure the line."""

    http2_settings_max: int = 100
    """Most SETTINGS frames in a span. Source: ours; clients send one or two in all."""

    http2_idle_frames_max: int = 500
    """Most frames in a span without effect: DATA without bytes, PRIORITY, acknowledgements, unknown ones. Source:
    ours."""

    http2_continuations_max: int = 16
    """Most CONTINUATION frames of one head; more end the connection. Source: ours: 16 frames of 16 KiB are more than
    any head that is taken."""

    def with_hop_room(self) -> "HttpSettings":
        """The same settings with larger head limits, for heads between activator and queue-proxy."""
        return msgspec.structs.replace(
            self,
            head_bytes_max=self.head_bytes_max + HOP_HEAD_BYTES,
            header_count_max=self.header_count_max + HOP_HEADER_COUNT,
        )
