"""Samples requests for tracing, and exports ended ones.

A request with a traceparent is sampled by its flag; of the other requests a share is sampled. The ids are generated at
the request's head, because the pod needs them. The spans are built after the end (``spans``), from times that are
measured for all requests.

Follows W3C Trace Context (https://www.w3.org/TR/trace-context/), version 00.
"""

from collections.abc import Callable
from random import SystemRandom
from typing import Protocol

from serving.core.traffic.traceparents import read_traceparent
from serving.net.aio.clock import wall_s
from serving.net.metrics.spans import RequestTrace, Traced

_TRACE_BITS, _SPAN_BITS = 128, 64
_draw_bits = SystemRandom().getrandbits


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
    """Samples requests, and exports ended ones. ``send`` must return immediately.

    ``ratio`` is the sampled share of requests without a traceparent. ``draw(n)`` returns n random bits.
    """

    def __init__(
        self, ratio: float, *, send: Callable[[Traced], None], draw: Callable[[int], int] = _draw_bits
    ) -> None:
        self._send = send
        self._bound = int(ratio * 2**_SPAN_BITS)
        self._draw = draw

    def begin(self, traceparent: bytes) -> RequestTrace | None:
        """Generate the ids of a request from its traceparent ("" without one); None if the request is not sampled."""
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
