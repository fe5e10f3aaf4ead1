"""The results of admission: a request runs, waits in a place, or is rejected."""

import enum
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

RequestId = TypeVar("RequestId", bound=Hashable)


class QueueLimit(enum.StrEnum):
    """The bound that kept a request out of the queue."""

    COUNT = "count"
    BYTES = "bytes"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A slot was free, and the request runs."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The request waits at ``position`` (1 runs next), at most until ``deadline_s``."""

    position: int
    deadline_s: float


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """No slot and no place in the queue is free; ``limited_by`` is the first exceeded bound.

    ``depth`` requests with ``depth_bytes`` bytes wait already. ``depth_bytes_max`` is None when bytes are not bounded.
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
    """A place in the queue: when the wait began, and the weight of the request."""

    since_s: float
    weight_bytes: int


ADMITTED = Admitted()
