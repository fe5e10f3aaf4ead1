"""The results of admission: a request runs, waits in a place, or is rejected."""

import enum
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

RequestId = TypeVar("RequestId", bound=Hashable)


class QueueLimit(enum.StrEnum):
    """The bound of the queue that caused a rejection."""

    COUNT = "count"
    BYTES = "bytes"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The request runs, because a slot was free."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The request waits at ``position`` (1 runs next), at most until ``deadline_s``."""

    position: int
    deadline_s: float


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The request gets neither a slot nor a place in the queue. ``limited_by`` is the first exceeded bound.

    ``depth`` requests with ``depth_bytes`` bytes already wait. ``depth_bytes_max`` is None if bytes are not bounded.
    """

    limited_by: QueueLimit
    depth: int
    depth_max: int
    depth_bytes: int
    depth_bytes_max: int | None


class Granted(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request that runs now, after waiting ``waited_s`` seconds."""

    request_id: RequestId
    waited_s: float


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the queue: when the wait began, and the memory of the request."""

    since_s: float
    weight_bytes: int


ADMITTED = Admitted()
