"""The results of admission: a request runs, waits in a place, or is rejected."""

import enum
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

RequestId = TypeVar("RequestId", bound=Hashable)


class QueueLimit(enum.StrEnum):
    """The bound that excluded a request from the queue."""

    COUNT = "count"
    BYTES = "bytes"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A slot was free: the request runs."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The request waits in place ``position``, 1 being the next to run, until ``deadline_s`` at the latest."""

    position: int
    deadline_s: float


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """Neither a slot nor a place in the queue is free; ``limited_by`` is the first exceeded bound.

    ``depth`` requests with ``depth_bytes`` bytes wait already. ``depth_bytes_max`` is None when bytes are not bounded.
    """

    limited_by: QueueLimit
    depth: int
    depth_max: int
    depth_bytes: int
    depth_bytes_max: int | None


class Granted(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request that waited for ``waited_s`` seconds and runs now."""

    request_id: RequestId
    waited_s: float


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the queue: its start time, and the weight of the request."""

    since_s: float
    weight_bytes: int


ADMITTED = Admitted()
