"""The spans of a traced request: a server span with the children queue, cold start and upstream.

Input: a ``Traced``, with the times recorded during the request. Output: ``Span``s, built in another thread after the
request's end. This module does not depend on OpenTelemetry; ``serving.net.metrics.otlp`` sends the spans.
"""

import enum
from collections.abc import Callable, Mapping
from random import SystemRandom

import msgspec

_SPAN_BITS = 64
_SERVER_ERROR = 500
_draw_bits = SystemRandom().getrandbits


class SpanKind(enum.StrEnum):
    """The side of a call that a span covers. An internal span covers neither side."""

    SERVER = "server"
    INTERNAL = "internal"
    CLIENT = "client"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span. Times are in seconds on the request's clock; the ``parent_id`` of a root span is 0."""

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    parent_id: int
    start_s: float
    end_s: float
    is_error: bool = False
    attributes: Mapping[str, str | int | bool] = {}


class RequestTrace:
    """The ids of a traced request, and the times of its steps."""

    __slots__ = (
        "cold_until_s",
        "granted_s",
        "is_cold",
        "is_queued",
        "parent_id",
        "refused",
        "server_id",
        "trace_id",
        "upstream_id",
    )

    def __init__(self, *, trace_id: int, parent_id: int, server_id: int, upstream_id: int) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.server_id = server_id
        self.upstream_id = upstream_id
        self.is_queued = False
        """Whether the request waited for a pod."""
        self.is_cold = False
        """Whether no pod existed when the request arrived."""
        self.granted_s: float | None = None
        """When the request got its first pod after waiting."""
        self.cold_until_s: float | None = None
        """When the cold start's first pod took a request, this one or another."""
        self.refused = ""
        """Why the request was refused."""

    def grant(self, at_s: float) -> None:
        """Record that the request has a pod. A pause between two attempts belongs to the upstream call."""
        if self.is_queued and self.granted_s is None:
            self.granted_s = at_s

    @property
    def traceparent(self) -> bytes:
        """The header for the pod. It names the span of the upstream call as parent."""
        return b"00-%032x-%016x-01" % (self.trace_id, self.upstream_id)


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """An ended request. ``upstream`` is the last upstream's address, or ""; ``status`` 0 means no response."""

    trace: RequestTrace
    namespace: str
    revision: str
    method: str
    host: str
    path: str
    status: int
    upstream: str
    try_count: int
    started_s: float
    ended_s: float
    ended_wall_s: float
    """The end of the request in seconds since the epoch; ``ended_s`` is on the loop's clock."""


def spans_of(traced: Traced, *, draw: Callable[[int], int] = _draw_bits) -> list[Span]:
    """The spans of an ended request, the server span first.

    ``queue`` is the whole wait for a slot. ``cold start`` is the part of the wait before the first pod existed. A
    request without a wait has neither. ``upstream`` is the time from the grant of a slot, or from the arrival without a
    wait, to the end, over all tries.
    """
    trace = traced.trace
    is_error = not traced.status or traced.status >= _SERVER_ERROR
    granted_s = trace.granted_s
    waited_until_s = traced.ended_s if granted_s is None else granted_s

    def below(name: str, kind: SpanKind, times: tuple[float, float], **more: object) -> Span:
        start_s, end_s = times
        span = Span(
            name=name,
            kind=kind,
            trace_id=trace.trace_id,
            span_id=draw(_SPAN_BITS) or 1,
            parent_id=trace.server_id,
            start_s=start_s,
            end_s=max(start_s, end_s),
        )
        return msgspec.structs.replace(span, **more)

    spans = [
        Span(
            name=traced.method,
            kind=SpanKind.SERVER,
            trace_id=trace.trace_id,
            span_id=trace.server_id,
            parent_id=trace.parent_id,
            start_s=traced.started_s,
            end_s=traced.ended_s,
            is_error=is_error,
            attributes=_server_attributes(traced),
        )
    ]
    is_turned = not traced.upstream
    if trace.is_queued:
        spans.append(below("queue", SpanKind.INTERNAL, (traced.started_s, waited_until_s), is_error=is_turned))
    if trace.is_cold:
        cold_until_s = waited_until_s if trace.cold_until_s is None else trace.cold_until_s
        spans.append(below("cold start", SpanKind.INTERNAL, (traced.started_s, cold_until_s), is_error=is_turned))
    if traced.upstream:
        sent_s = traced.started_s if granted_s is None else granted_s
        attributes = {**_address(traced.upstream), "serving.try.count": traced.try_count, **_status(traced)}
        more = {"span_id": trace.upstream_id, "is_error": is_error, "attributes": attributes}
        spans.append(below("upstream", SpanKind.CLIENT, (sent_s, traced.ended_s), **more))
    return spans


def _server_attributes(traced: Traced) -> dict[str, str | int | bool]:
    refused: dict[str, str | int | bool] = {"serving.refused": traced.trace.refused} if traced.trace.refused else {}
    return {
        "http.request.method": traced.method,
        **_address(traced.host),
        # Without the query, which may contain secrets.
        "url.path": traced.path,
        "k8s.namespace.name": traced.namespace,
        "kn.revision.name": traced.revision,
        "serving.cold_start": traced.trace.is_cold,
        **refused,
        **_status(traced),
    }


def _address(text: str) -> dict[str, str | int | bool]:
    """Split a host with optional port: "h.example:8080", "[::1]"."""
    host, colon, port = text.rpartition(":")
    is_with_port = bool(colon) and port.isdecimal()
    name = (host if is_with_port else text).removeprefix("[").removesuffix("]")
    return {"server.address": name, "server.port": int(port)} if is_with_port else {"server.address": name}


def _status(traced: Traced) -> dict[str, str | int | bool]:
    return {"http.response.status_code": traced.status} if traced.status else {}
