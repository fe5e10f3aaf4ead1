"""Samples requests for tracing, and exports ended ones.

A request with a traceparent is sampled by its flag; of the other requests a share is sampled. The ids are generated at
the request's head, because the pod needs them. The spans are built after the end (``spans``), from times that are
measured for all requests.

Follows W3C Trace Context (https://www.w3.org/TR/trace-context/), version 00.
"""

import re
from collections.abc import Callable
from random import SystemRandom
from typing import Protocol

import msgspec

from serving.net.aio.clock import wall_s
from serving.net.metrics.spans import RequestTrace, Traced

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_TRACE_BITS, _SPAN_BITS = 128, 64
_draw_bits = SystemRandom().getrandbits


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's span, from the request's traceparent."""

    trace_id: int
    span_id: int
    is_sampled: bool


class EndedHead(Protocol):
    """The head of an ended request."""

    @property
    def method(self) -> bytes:
        """The method, such as GET."""
        ...

    @property
    def host(self) -> bytes:
        """The host as sent by the client."""
        ...

    @property
    def target(self) -> bytes:
        """Path and query."""
        ...


class EndedRequest(Protocol):
    """An ended request, as ``serving.net.proxy`` provides it."""

    @property
    def head(self) -> EndedHead:
        """The head of the request."""
        ...

    @property
    def upstream_text(self) -> str:
        """The last upstream; "" without one."""
        ...

    @property
    def started_s(self) -> float:
        """When the request's head was complete."""
        ...


class Tracer:
    """Samples requests, and exports ended ones: ``send`` must return immediately.

    ``ratio`` is the sampled share of the requests without a traceparent. ``draw(n)`` returns n random bits.
    """

    def __init__(
        self, ratio: float, *, send: Callable[[Traced], None], draw: Callable[[int], int] = _draw_bits
    ) -> None:
        self._send = send
        self._bound = int(ratio * 2**_SPAN_BITS)
        self._draw = draw

    def begin(self, traceparent: bytes) -> RequestTrace | None:
        """Generate ids for a request, given its traceparent or None; None if it is not sampled."""
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is not None:
            if not parent.is_sampled:
                return None
            trace_id, parent_id = parent.trace_id, parent.span_id
        else:
            if self._draw(_SPAN_BITS) >= self._bound:
                return None
            trace_id, parent_id = self._id(_TRACE_BITS), 0
        return RequestTrace(
            trace_id=trace_id, parent_id=parent_id, server_id=self._id(_SPAN_BITS), upstream_id=self._id(_SPAN_BITS)
        )

    def end(
        self,
        trace: RequestTrace,
        ended: EndedRequest,
        *,
        key: tuple[str, str],
        status: int,
        try_count: int,
        at_s: float,
    ) -> None:
        """Export a request of the revision ``key`` that ended at ``at_s`` with ``status``."""
        head = ended.head
        self._send(
            Traced(
                trace=trace,
                namespace=key[0],
                revision=key[1],
                method=head.method.decode("latin-1"),
                host=head.host.decode("latin-1"),
                path=head.target.partition(b"?")[0].decode("latin-1"),
                status=status,
                upstream=ended.upstream_text,
                try_count=try_count,
                started_s=ended.started_s,
                ended_s=at_s,
                ended_wall_s=wall_s(),
            )
        )

    def _id(self, bits: int) -> int:
        # 0 means no parent.
        return self._draw(bits) or 1


def read_traceparent(text: bytes) -> Parent | None:
    """Parse a traceparent; None if it is invalid. Later versions may have more fields at the end."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id=trace_id, span_id=span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))
