"""The request log of a queue-proxy: a JSON line per request, with the fields of Knative's default template.

A record is taken in the loop when a request ends; its line is made and written in a thread, so that a slow reader of the log stops no
request. Source of the fields: Knative, "Configuring request logs" (knative.dev/docs/serving/observability/logging/request-logging).
"""

import logging
import re
from collections.abc import Callable

import msgspec

from serving.core.settings.queueproxy import RequestLogSettings
from serving.net.proxy.forwarding.accesslog import ExchangeLog, write_to_stdout
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.requesthead import RequestHead
from serving.queueproxy.io.podrequests import is_probe
from serving.queueproxy.podspec import PodSpec

_log = logging.getLogger(__name__)
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An ended request in the form of Google's HttpRequest. ``request_size`` is "-1" if unknown."""

    request_method: str
    request_url: str
    request_size: str
    status: int
    response_size: str
    user_agent: str
    remote_ip: str
    server_ip: str
    referer: str
    latency: str
    protocol: str


class RequestLogEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the request log."""

    http_request: HttpRequest
    trace_id: str


class RequestLog(ExchangeLog[RequestLogEntry]):
    """Logs the requests of one pod; exists only if the log is on."""

    def __init__(self, spec: PodSpec, *, write: Callable[[bytes], object] = write_to_stdout) -> None:
        super().__init__(write=write)
        settings = spec.settings.logging
        self._has_probes = settings.enable_probe_request_log
        self._address = spec.address
        if settings.request_log_template != RequestLogSettings().request_log_template:
            reason = "logging.request-log-template is ignored: lines have the fields of Knative's default template"
            _log.warning("queueproxy.request_log_template_ignored", extra={"reason": reason})

    def _entry(self, exchange: Exchange, *, now_s: float) -> RequestLogEntry | None:
        head = exchange.head
        if is_probe(head) and not self._has_probes:
            return None
        trace = _TRACE_PARENT.match(_header(head, b"traceparent"))
        request = HttpRequest(
            request_method=head.method.decode("latin-1"),
            request_url=head.target.decode("latin-1"),
            request_size="-1" if head.chunked else str(head.content_length or 0),
            status=exchange.response.status,
            response_size=str(exchange.response.body_bytes),
            user_agent=_header(head, b"user-agent"),
            remote_ip=exchange.peer.address.decode("latin-1"),
            server_ip=self._address,
            referer=_header(head, b"referer"),
            latency=f"{round(now_s - exchange.started_s, 6)}s",
            protocol="HTTP/2.0" if exchange.is_http2 else f"HTTP/1.{head.minor}",
        )
        return RequestLogEntry(http_request=request, trace_id=trace[1] if trace else _header(head, b"x-b3-traceid"))

    def _line(self, record: RequestLogEntry) -> bytes:
        return msgspec.json.encode(record) + b"\n"


def _header(head: RequestHead, name: bytes) -> str:
    return (head.get(name) or b"").decode("latin-1")
