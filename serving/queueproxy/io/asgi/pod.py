"""A queue-proxy in the process of its app: every request that the server hands to the app passes through here."""

import asyncio
import math

from serving.proxy.http1.lines import BadHeaderLine
from serving.queueproxy.io.asgi.call import AppCall
from serving.queueproxy.io.asgi.calls import RunningCalls
from serving.queueproxy.io.asgi.heads import head_of, scope_for_app
from serving.queueproxy.io.asgi.messages import App, Receive, Scope, Send, send_answer
from serving.queueproxy.io.podrequests import DIRECT, TEXT, PodRequests, is_probe
from serving.queueproxy.podspec import APP_PROBE, PodSpec
from serving.traffic.breaker import Admitted, Queued, Rejected


class AsgiPod(PodRequests[AppCall]):
    """Decides about the requests of one pod, which are calls of its app."""

    def __init__(self, spec: PodSpec, app: App, *, calls: RunningCalls) -> None:
        super().__init__(spec, clock=calls.clock)
        self._app = app
        self._calls = calls
        self._http = spec.settings.http

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or websocket."""
        try:
            head = head_of(scope)
        except BadHeaderLine as error:
            await send_answer(scope, send, status=400, body=str(error).encode(), headers=TEXT)
            return
        origin = DIRECT
        if head.reserved and self._is_believed(head):
            if is_probe(head):
                if head.get(b"k-network-probe") == APP_PROBE:
                    # It asks the app itself: it takes no slot and counts for nothing.
                    await self._app(scope_for_app(scope, head, origin), receive, send)
                    return
                status, body, headers = self._probe_answer(head)
                await send_answer(scope, send, status=status, body=body, headers=headers)
                return
            origin = (head.get(b"k-proxy-request") == b"activator", head.get(b"k-original-host"))
        forwarded = scope_for_app(scope, head, origin)
        call = AppCall(
            self,
            forwarded,
            receive=receive,
            send=send,
            proxied=origin[0],
            held_bytes_max=self._http.body_held_bytes_max,
        )
        await call.run(self._app)

    # What calls need.

    @property
    def closes_connections(self) -> bool:
        """Whether each answer is the last of its connection."""
        return self._calls.draining

    def clock(self) -> float:
        """Monotonic time, in seconds."""
        return self._clock()

    def arrive(self, call: AppCall, now_s: float) -> Admitted | Queued | Rejected:
        """Count a call, and admit, queue or reject it."""
        return self._arrive(call, now_s, proxied=call.proxied)

    def expire(self, now_s: float) -> None:
        """End the wait of the calls that have waited too long."""
        for timed_out in self._expire(now_s):
            timed_out.request_id.time_out()

    def began(self, call: AppCall, task: asyncio.Task[None]) -> None:
        """A call runs."""
        del call
        self._calls.add(task)

    def became_tunnel(self, task: asyncio.Task[None]) -> None:
        """The app has accepted a websocket."""
        self._calls.became_tunnel(task)

    def leave(self, call: AppCall, now_s: float) -> None:
        """Count a call out; its slot goes to the call that has waited longest."""
        if call.gauges:
            self.gauges.take(b"endpoint-load-metrics: %b" % call.gauges, now_s)
        self.request_metrics.note(call.final_status, now_s - call.started_s)
        for granted in self._leave(call, now_s, proxied=call.proxied, is_answered=call.is_answered):
            granted.request_id.grant()

    def due_s(self, call: AppCall) -> float:
        """When the call's time is up; in a websocket what the app sends counts as pieces of its answer."""
        has_begun = call.has_spoken if call.is_tunnel else bool(call.status)
        due_s = self._timeouts.due_s(call.started_s, written_s=call.written_s, has_begun=has_begun)
        if not call.is_tunnel:
            return due_s
        used_s = max(call.written_s, call.heard_s)
        silent_s, old_s = self._http.tunnel_idle_max_s or math.inf, self._http.tunnel_age_max_s or math.inf
        return min(due_s, used_s + silent_s, call.started_s + old_s)
