"""Parses the trace context of a request: W3C Trace Context (https://www.w3.org/TR/trace-context/), version 00. Pure."""

import re

import msgspec

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's span, from the request's traceparent."""

    trace_id: int
    span_id: int
    is_sampled: bool


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
