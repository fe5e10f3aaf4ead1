"""Frames that pods and activators send to the autoscaler once a second: MessagePack, one frame in one binary message.

The connection identifies the sender (its token is bound to one pod or one activator), so a frame carries no sender. Frames are
maps keyed by field name; unknown keys are ignored, so that an older autoscaler reads a newer pod. Decoding checks types and
bounds (0 to 10^12, no NaN, no infinity). The autoscaler decides what is plausible and when it counts: it stamps frames when
they arrive.
"""

from typing import Annotated, TypeVar

import msgspec

from serving.model.errors import InvalidValue
from serving.model.stat import GAUGES_MAX

# More than any pod can have, and far from where sums of floats lose whole numbers (2**53).
_AMOUNT_MAX = 1e12
Amount = Annotated[float, msgspec.Meta(ge=0, le=_AMOUNT_MAX)]
F = TypeVar("F")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
GaugeName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_.-]{0,62}$")]
Gauges = Annotated[dict[GaugeName, Amount], msgspec.Meta(max_length=GAUGES_MAX)]


class PodStat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One period of one pod: mean requests inside, and requests that came, per second.

    ``at_s`` is the pod's own wall-clock, for the log only. The ``proxied_`` pair is the part that came through an
    activator, which reports it too.
    """

    at_s: float
    concurrency: Amount
    proxied_concurrency: Amount = 0.0
    request_count: Amount = 0.0
    proxied_request_count: Amount = 0.0
    ended_count: Amount = 0.0
    """Requests that were answered per second, without those that failed in the server."""

    response_time_s: Amount = 0.0
    """Their mean response time in seconds; 0 without any."""

    gauges: Gauges = {}
    """Numbers that the app reports of itself, by name."""


class RevisionStat(msgspec.Struct, frozen=True, kw_only=True):
    """What one activator holds of one revision, waiting and in flight, and how many requests came per second.

    The ``window_`` pair is what counts for means over windows, where pokes have reported a part of it already; None: the same.
    """

    namespace: Name
    revision: Name
    concurrency: Amount
    request_count: Amount = 0.0
    window_concurrency: Amount | None = None
    window_request_count: Amount | None = None


class ActivatorStats(msgspec.Struct, frozen=True, kw_only=True):
    """All revisions of one activator, or one alone when it pokes."""

    stats: list[RevisionStat]


class RelayedStat(msgspec.Struct, frozen=True, kw_only=True):
    """One report that reached an autoscaler which does not decide on that revision, as it read it."""

    namespace: Name
    revision: Name
    sender: Name
    """The pod, or the activator."""

    is_activator: bool = False
    concurrency: Amount
    request_count: Amount = 0.0
    window_concurrency: Amount | None = None
    window_request_count: Amount | None = None
    proxied_concurrency: Amount = 0.0
    proxied_request_count: Amount = 0.0
    ended_count: Amount = 0.0
    response_time_s: Amount = 0.0
    gauges: Gauges = {}


class RelayedStats(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that one autoscaler relays to another, in the order of arrival. It is never relayed again."""

    stats: list[RelayedStat]


_ENCODER = msgspec.msgpack.Encoder()
_POD_DECODER = msgspec.msgpack.Decoder(PodStat)
_ACTIVATOR_DECODER = msgspec.msgpack.Decoder(ActivatorStats)
_RELAYED_DECODER = msgspec.msgpack.Decoder(RelayedStats)


def encode_pod_stat(stat: PodStat) -> bytes:
    """A pod's statistic as a frame."""
    return _ENCODER.encode(stat)


def encode_activator_stats(stats: ActivatorStats) -> bytes:
    """An activator's statistics as a frame."""
    return _ENCODER.encode(stats)


def encode_relayed_stats(stats: RelayedStats) -> bytes:
    """What is passed on, as a frame."""
    return _ENCODER.encode(stats)


def decode_pod_stat(frame: bytes) -> PodStat:
    """The statistic in a pod's frame. Raises ``InvalidValue`` when it is no such frame."""
    return _decoded(_POD_DECODER, frame, expected="a statistic of a pod")


def decode_activator_stats(frame: bytes) -> ActivatorStats:
    """The statistics in an activator's frame. Raises ``InvalidValue`` when it is no such frame."""
    return _decoded(_ACTIVATOR_DECODER, frame, expected="statistics of an activator")


def decode_relayed_stats(frame: bytes) -> RelayedStats:
    """The statistics in another autoscaler's frame. Raises ``InvalidValue`` when it is no such frame."""
    return _decoded(_RELAYED_DECODER, frame, expected="statistics of an autoscaler")


def _decoded(decoder: "msgspec.msgpack.Decoder[F]", frame: bytes, *, expected: str) -> F:
    try:
        return decoder.decode(frame)
    except msgspec.DecodeError as error:
        # Enough of a frame to recognise it in a log: 16 bytes in hexadecimal.
        raise InvalidValue(text=bytes(frame[:16]).hex(), expected=f"{expected}: {error}") from error
