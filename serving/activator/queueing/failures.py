"""Determines who failed a request, and why: the client, the activator, the queue-proxy or the app.

Input: how the request ended, the activator's record of it, and the Proxy-Status header (RFC 9209) of a response by the
queue-proxy. Output: the failed party and the reason as text; two empty texts if the request did not fail.
"""

import re

import msgspec

from serving.core.traffic.requesthistory import printable

CLIENT, ACTIVATOR, QUEUE_PROXY, APP = "client", "activator", "queue-proxy", "app"

# Values of ExchangeOutcome, whose module is not pure.
_GONE, _CUT, _REFUSED = "client_gone", "cut", "refused"
_SERVER_ERROR = 500
_UNAVAILABLE = 503
_TIMED_OUT = 504
_OWN_STATUS = re.compile(rb'(?i)^proxy-status: queue-proxy; details="((?:[^"\\\r\n]|\\.)*)"\r$', re.MULTILINE)
_POD_WAIT = re.compile(rb"(?i)^server-timing: pod-wait;dur=(\d{1,12}(?:\.\d{1,6})?)\r$", re.MULTILINE)


class RequestFacts(msgspec.Struct, kw_only=True):
    """Facts about a waiting or failed request.

    The request waited for ``waited_s`` seconds; during ``start_s`` of them no pod was ready. ``is_cold``: no pod was
    ready when it arrived. ``failed_by`` is the component that failed it, and ``why`` the reason; both are "" without a
    failure.
    """

    waited_s: float = 0.0
    start_s: float = 0.0
    is_cold: bool = False
    failed_by: str = ""
    why: str = ""

    def fail(self, failed_by: str, why: str) -> None:
        """Record the last failure of the request: who failed it, and why."""
        self.failed_by = failed_by
        self.why = why


class RequestEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended. ``outcome`` is a value of ``ExchangeOutcome``.

    ``response_lines`` are the queue-proxy's header lines about its response. ``is_sent``: a pod got the request.
    ``is_unread``: the client has not read all of the response. ``is_overdue``: the request exceeded a timeout, which
    ``timeout_text`` names.
    """

    outcome: str
    status: int
    response_lines: bytes
    is_sent: bool
    is_unread: bool
    is_overdue: bool
    timeout_text: str


def pod_wait_s(response_lines: bytes) -> float:
    """Seconds that a request waited in its pod before the app, from the queue-proxy's Server-Timing header."""
    return sum(map(float, _POD_WAIT.findall(response_lines))) / 1000


def failure_of(end: RequestEnd, facts: RequestFacts) -> tuple[str, str]:
    """Return who failed a request, and why; two empty texts if it succeeded."""
    # The failure came first if a client disconnects during an error response.
    if end.outcome == _GONE and end.status < _SERVER_ERROR:
        return CLIENT, _leaving(end, facts)
    if end.outcome == _CUT:
        return _cut(end)
    if end.outcome == _REFUSED:
        return _refusal(end, facts)
    if end.status < _SERVER_ERROR:
        return "", ""
    own = _OWN_STATUS.search(end.response_lines)
    if own is None:
        return APP, f"the app responded {end.status}"
    details = printable(own[1].replace(b"\\", b""))
    # A queue-proxy's 503 concerns its queue; 502 and 504 concern the app.
    return (QUEUE_PROXY if end.status == _UNAVAILABLE else APP), f"{details} (from the queue-proxy)"


def _leaving(end: RequestEnd, facts: RequestFacts) -> str:
    if end.is_unread:
        return "the client left, or did not read its response in time"
    if end.status:
        return "the client left before its response was complete"
    if end.is_sent:
        return "the client left before the app responded"
    return f"the client left while the request waited for a pod{' to start' if facts.is_cold else ''}"


def _cut(end: RequestEnd) -> tuple[str, str]:
    if end.is_overdue:
        return APP, "the response had begun and was cut off: its time was up"
    if end.is_unread:
        return CLIENT, "the client did not read its response in time"
    return APP, "the response had begun and ended early: the app or its pod ended, or the activator stopped"


def _refusal(end: RequestEnd, facts: RequestFacts) -> tuple[str, str]:
    if end.status == _TIMED_OUT:
        if end.is_sent:
            return APP, f"{end.timeout_text}: the app did not respond in time"
        return ACTIVATOR, f"{end.timeout_text}: no pod took the request in time"
    if facts.why:
        return facts.failed_by, facts.why
    if end.status < _SERVER_ERROR:
        return CLIENT, f"the activator refused the request with status {end.status}"
    if end.is_sent:
        return APP, "the pod ended the connection without a response: the app or its pod ended"
    return ACTIVATOR, f"the activator responded {end.status}: it sent the request to no pod"
