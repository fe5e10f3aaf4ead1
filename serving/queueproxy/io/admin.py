"""The admin port of a queue-proxy: readiness, metrics, and orders to drain or wake."""

import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from serving.net.aio.supervise import TaskOwner
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.lines import header_lines
from serving.net.wire.tokens import matches
from serving.queueproxy.io.podrequests import PodRequests

_TEXT = (b"Content-Type", b"text/plain; charset=utf-8")
# Longest hold of a readiness request, in seconds.
_READY_WAIT_MAX_S = 60.0
# Time between a container's /wait-for-drain and the pod's order to stop, in seconds: without the order, only that
# container restarts. Source: knative/serving 98e5ef90, pkg/queue/sharedmain.
_STOP_FOLLOWS_S = 1.0
_ORDERS = {b"/drain": b"POST", b"/wait-for-drain": b"GET", b"/wake": b"POST"}
_ORDER_HELP = {
    b"/drain": b"POST /drain begins the drain",
    b"/wait-for-drain": b"GET /wait-for-drain begins the drain",
    b"/wake": b"POST /wake keeps the app awake for a while",
}
_HELP = b"there is /healthz, /readyz, /metrics, /caller-token, /drain, /wait-for-drain and /wake"
_NO_QUERY = b"the query token is needed: Authorization: Bearer, as for the pages of the daemons\n"
_BEARER = (b"WWW-Authenticate", b'Bearer realm="queries"')
_LOOPBACK = (b"127.0.0.1", b"::1", b"::ffff:127.0.0.1")


class AdminHandler:
    """Serves the admin port.

    - ``GET /healthz``: always 200.
    - ``GET /metrics``: for holders of the query token, or of the pod's secret.
    - ``GET /readyz``: 200 or 503. ``?wait=8`` delays the response up to 8 s while the app has never been ready.
    - ``GET /caller-token``: the token that identifies the app to other services; for the app of this pod only.
    - ``GET /wait-for-drain``: called by the kubelet before it stops a container of the app. Probes fail from then on.
      The response is sent once no request arrives or runs. If no stop signal follows within a second, the pod
      continues, and probes succeed again.
    - ``POST /drain``: starts the drain by calling ``on_drain``.

    - ``POST /wake``: thaws a sleeping app, and keeps it awake for half a minute. The response is sent once the app
      runs.

    The last three requests require the pod's secret if the pod has one.
    """

    def __init__(
        self,
        pod: PodRequests[Any],
        *,
        on_drain: Callable[[], None],
        numbers: Callable[[], bytes],
        caller_token: Callable[[], Awaitable[str]] | None = None,
        opens_queries: Callable[[str], Awaitable[bool]] | None = None,
        caller_key: str = "",
    ) -> None:
        self._pod = pod
        self._caller_token = caller_token
        self._caller_key = caller_key
        self._opens_queries = opens_queries
        self._tasks = TaskOwner()
        self._on_drain = on_drain
        self._numbers = numbers
        self._has_been_ready = False
        self._is_stopping = False
        self._probes: set[Exchange] = set()
        self._leaving: set[Exchange] = set()

    def begin(self, exchange: Exchange) -> None:
        """Respond to a request by its method and path."""
        head = exchange.head
        path, _, query = head.target.partition(b"?")
        needed = _ORDERS.get(path)
        if needed is not None:
            self._handle_order(exchange, path, method=needed)
        elif head.method not in (b"GET", b"HEAD"):
            exchange.respond(405, b"only GET is taken here", header_lines(_TEXT, (b"Allow", b"GET, HEAD")))
        elif path == b"/healthz":
            exchange.respond(200, b"ok")
        elif path == b"/readyz":
            self._respond_readiness(exchange, wait_s=_wait_s(query))
        elif path == b"/caller-token":
            self._respond_caller_token(exchange, query)
        elif path == b"/metrics":
            self._respond_numbers(exchange)
        else:
            exchange.respond(404, _HELP)

    def readiness_changed(self) -> None:
        """Respond to pending ``/readyz`` requests. Called when the app's readiness has changed."""
        self._has_been_ready = self._has_been_ready or self._pod.is_ready
        self._respond_to_probes()

    def stopping(self) -> None:
        """Fail probes from now on. Called when the pod is ordered to stop."""
        self._is_stopping = self._pod.is_draining = True
        self._respond_to_probes()

    def drained(self) -> None:
        """Respond to pending ``/wait-for-drain`` requests. No request runs or arrives, so the app may end."""
        for exchange in list(self._leaving):
            exchange.respond(200, b"drained")

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Raise ``NotImplementedError``: this handler does not forward requests."""
        raise NotImplementedError(exchange, error)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Raise ``NotImplementedError``: this handler does not forward requests."""
        raise NotImplementedError(exchange, reason)

    def overdue(self, exchange: Exchange) -> None:
        """Handle a request that has waited for its maximum time.

        ``/readyz`` is answered with the present state. ``/wait-for-drain`` ends the drain if no stop signal has
        followed.
        """
        if exchange in self._probes:
            self._respond_readiness(exchange, wait_s=0.0)
        elif exchange not in self._leaving:
            raise NotImplementedError(exchange)
        elif self._is_stopping:
            exchange.wait_until_s = math.inf
        else:
            self._pod.is_draining = False
            self._pod.wake()
            exchange.respond(200, b"no order to stop has followed")

    def body_ready(self, exchange: Exchange) -> None:
        """Raise ``NotImplementedError``: this handler does not wait for bodies."""
        raise NotImplementedError(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        """Ignore the body of a held request."""

    def reading_changed(self, exchange: Exchange) -> None:
        """Do nothing: responses are small."""

    def finish(self, exchange: Exchange) -> None:
        """Drop a pending request whose client has disconnected."""
        self._probes.discard(exchange)
        self._leaving.discard(exchange)

    def _respond_numbers(self, exchange: Exchange) -> None:
        """Send the metrics to a holder of the pod's secret, or to a client with a valid query token."""
        scheme, _, token = (exchange.head.get(b"authorization") or b"").decode("latin-1").partition(" ")
        if self._pod.takes_orders_from(exchange.head):
            self._send_numbers(exchange)
        elif self._opens_queries is None or scheme.lower() != "bearer":
            exchange.respond(401, _NO_QUERY, header_lines(_TEXT, _BEARER))
        else:
            self._await(self._judge_query(exchange, self._opens_queries(token.strip())))

    async def _judge_query(self, exchange: Exchange, opens: Awaitable[bool]) -> None:
        try:
            is_right = await opens
        except OSError:
            text = b"the autoscaler, which knows the query token, gives no answer now\n"
            exchange.respond(503, text, header_lines(_TEXT))
            return
        if is_right:
            self._send_numbers(exchange)
        else:
            exchange.respond(401, _NO_QUERY, header_lines(_TEXT, _BEARER))

    def _send_numbers(self, exchange: Exchange) -> None:
        exchange.respond(200, self._numbers(), header_lines((b"Content-Type", b"text/plain; version=0.0.4")))

    def _await(self, response: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(response, name="admin response")

    def _respond_caller_token(self, exchange: Exchange, query: bytes) -> None:
        """Send the app its caller token; refuse requests from other pods."""
        key = self._caller_key
        is_own = matches(query, f"key={key}") if key else exchange.peer.address in _LOOPBACK
        if not is_own:
            exchange.respond(403, b"the caller token is for the app of this pod only\n", header_lines(_TEXT))
        elif self._caller_token is None:
            exchange.respond(404, b"this pod has no autoscaler, and so no caller token\n", header_lines(_TEXT))
        else:
            self._await(_respond_token(exchange, self._caller_token))

    def _handle_order(self, exchange: Exchange, path: bytes, *, method: bytes) -> None:
        if exchange.head.method != method:
            exchange.respond(405, _ORDER_HELP[path], header_lines(_TEXT, (b"Allow", method)))
        elif not self._pod.takes_orders_from(exchange.head):
            exchange.respond(403, b"this needs the pod's secret")
        elif path == b"/drain":
            self._on_drain()
            exchange.respond(202, b"draining")
        elif path == b"/wake":
            self._pod.wake(is_held=True, then=lambda: exchange.respond(200, b"awake"))
        else:
            self._pod.is_draining = True
            self._pod.wake()
            self._leaving.add(exchange)
            exchange.wait_until_s = math.inf if self._is_stopping else exchange.started_s + _STOP_FOLLOWS_S
            self._respond_to_probes()

    def _respond_to_probes(self) -> None:
        for exchange in list(self._probes):
            self._respond_readiness(exchange, wait_s=0.0)

    def _respond_readiness(self, exchange: Exchange, *, wait_s: float) -> None:
        if self._pod.is_draining:
            exchange.respond(503, b"shutting down")
        elif self._pod.is_ready:
            exchange.respond(200, b"ready")
        elif wait_s > 0 and not self._has_been_ready:
            self._probes.add(exchange)
            exchange.wait_until_s = exchange.started_s + min(wait_s, _READY_WAIT_MAX_S)
        else:
            exchange.respond(503, b"the app is not ready")


async def _respond_token(exchange: Exchange, fetch: Callable[[], Awaitable[str]]) -> None:
    try:
        status, text = 200, await fetch()
    except OSError:
        status, text = 503, "the autoscaler gives no token now\n"
    if exchange.is_waiting:
        exchange.respond(status, text.encode(), header_lines(_TEXT, (b"Cache-Control", b"no-store")))


def _wait_s(query: bytes) -> float:
    """The seconds in ``wait=8``; 0 for anything else."""
    name, _, number = query.partition(b"=")
    return float(number) if name == b"wait" and number.isdigit() else 0.0
