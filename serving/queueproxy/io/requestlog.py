"""The request log of a queue-proxy: a line per request, by the template of the settings.

A record is created in the event loop when a request ends. A thread formats and writes its line, so that a slow reader
of the log delays no request. The default template's line is encoded as JSON without the template. Source of the fields:
Knative, "Configuring request logs" (knative.dev/docs/serving/observability/logging/request-logging).
"""

from collections.abc import Callable

import msgspec

from serving.core.model.requestlines import LoggedRequest, LoggedRevision, headers_named, request_line
from serving.core.traffic.traceparents import read_traceparent
from serving.net.proxy.forwarding.accesslog import ExchangeLog, write_to_stdout
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.requesthead import RequestHead
from serving.queueproxy.io.podrequests import is_probe
from serving.queueproxy.podspec import PodSpec


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


class RequestLog(ExchangeLog[LoggedRequest]):
    """Logs the requests of one pod. Created only if the log is on."""

    def __init__(self, spec: PodSpec, *, write: Callable[[bytes], object] = write_to_stdout) -> None:
        super().__init__(write=write)
        settings = spec.settings.logging
        self._has_probes = settings.enable_probe_request_log
        self._template = settings.request_log_template if settings.has_template else ""
        self._names = frozenset(name.encode() for name in headers_named(self._template))
        self._revision = LoggedRevision(
            name=spec.revision,
            namespace=spec.namespace,
            service=spec.service,
            configuration=spec.configuration,
            pod_name=spec.pod,
            pod_ip=spec.address,
        )

    def _entry(self, exchange: Exchange, *, now_s: float) -> LoggedRequest | None:
        head = exchange.head
        if is_probe(head) and not self._has_probes:
            return None
        parent = read_traceparent(head.get(b"traceparent") or b"")
        return LoggedRequest(
            method=head.method.decode("latin-1"),
            target=head.target.decode("latin-1"),
            host=head.host.decode("latin-1"),
            protocol="HTTP/2.0" if exchange.is_http2 else f"HTTP/1.{head.minor}",
            size_bytes=-1 if head.chunked else head.content_length or 0,
            address=exchange.peer.address.decode("latin-1"),
            user_agent=_header(head, b"user-agent"),
            referer=_header(head, b"referer"),
            headers=tuple(
                (line.name.decode("latin-1"), line.value.decode("latin-1"))
                for line in head.lines
                if line.name in self._names
            ),
            status=exchange.response.status,
            response_bytes=exchange.response.body_bytes,
            latency_s=round(now_s - exchange.started_s, 6),
            trace_id=f"{parent.trace_id:032x}" if parent else _header(head, b"x-b3-traceid"),
        )

    def _line(self, record: LoggedRequest) -> bytes:
        if self._template:
            return request_line(self._template, record, self._revision).encode()
        request = HttpRequest(
            request_method=record.method,
            request_url=record.target,
            request_size=str(record.size_bytes),
            status=record.status,
            response_size=str(record.response_bytes),
            user_agent=record.user_agent,
            remote_ip=record.address,
            server_ip=self._revision.pod_ip,
            referer=record.referer,
            latency=f"{record.latency_s}s",
            protocol=record.protocol,
        )
        return msgspec.json.encode(RequestLogEntry(http_request=request, trace_id=record.trace_id)) + b"\n"


def _header(head: RequestHead, name: bytes) -> str:
    return (head.get(name) or b"").decode("latin-1")
