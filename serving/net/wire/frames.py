"""Frames between pods, activators and autoscalers: MessagePack, one frame per binary message.

Pods and activators send statistics once a second; an autoscaler sends activators the pods that announce themselves.

The connection identifies the sender, because its token is bound to one pod or activator; only relayed frames name the
sender. Frames are maps keyed by field name. Unknown keys are ignored, so that an older autoscaler can read a newer
pod's frames. A frame of a newer version is refused (``serving.core.model.versions``). Decoding checks types and bounds
(0 to 10^12, no NaN, no infinity). The autoscaler stamps frames on receipt, and decides which are plausible.
"""

from typing import Annotated, TypeVar

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.stat import Amount, Stat
from serving.core.model.versions import STAT, FormatVersion, refuse_newer, refuse_newer_text

F = TypeVar("F", "PodStat", "ActivatorStats", "RelayedStats", "AnnouncedPod")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]

_UPGRADE = "upgrade the autoscaler before pods and activators (docs/version-skew.md)"
_ENCODER = msgspec.msgpack.Encoder()


class PodStat(Stat, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's frame: the ``Stat`` of one period.

    ``at_s`` is the time on the pod's monotonic clock, by which the autoscaler detects late frames. On receipt the
    autoscaler overwrites ``pod`` and ``at_s``.
    """

    at_s: float
    concurrency: Amount
    version: FormatVersion = STAT


class RevisionStat(Stat, frozen=True, kw_only=True, omit_defaults=True):
    """The requests of one revision in one activator, waiting and in flight."""

    namespace: Name
    revision: Name
    concurrency: Amount


class ActivatorStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An activator's frame: all revisions with requests, or one revision in a poke between two such frames."""

    stats: list[RevisionStat]
    version: FormatVersion = STAT


class RelayedStat(RevisionStat, frozen=True, kw_only=True, omit_defaults=True):
    """A report that an autoscaler received without owning the revision. ``pod`` is the pod or activator."""

    pod: Name = msgspec.field(name="sender")
    is_activator: bool = False


class AnnouncedPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An autoscaler's frame to activators: a ready pod's address, before an EndpointSlice lists it.

    ``scheme`` is "http" for a pod of a ScaledWorkload; "" for a pod that announced itself.
    """

    namespace: Name
    revision: Name
    pod: Name
    address: Name
    scheme: str = ""
    version: FormatVersion = STAT


class RelayedStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame of stats that one autoscaler relays to another, in order of arrival. The receiver does not relay them."""

    stats: list[RelayedStat]
    announced: list[AnnouncedPod] = []
    version: FormatVersion = STAT


_POD_DECODER = msgspec.msgpack.Decoder(PodStat)
_ACTIVATOR_DECODER = msgspec.msgpack.Decoder(ActivatorStats)
_RELAYED_DECODER = msgspec.msgpack.Decoder(RelayedStats)
_ANNOUNCED_DECODER = msgspec.msgpack.Decoder(AnnouncedPod)


def encode_frame(message: PodStat | ActivatorStats | RelayedStats | AnnouncedPod) -> bytes:
    """Encode a message as a frame."""
    return _ENCODER.encode(message)


def decode_pod_stat(frame: bytes) -> PodStat:
    """Decode a pod's frame. Raises ``InvalidValue`` for any other frame."""
    return _decoded(_POD_DECODER, frame, expected="a statistic of a pod")


def decode_activator_stats(frame: bytes) -> ActivatorStats:
    """Decode an activator's frame. Raises ``InvalidValue`` for any other frame."""
    return _decoded(_ACTIVATOR_DECODER, frame, expected="statistics of an activator")


def decode_relayed_stats(frame: bytes) -> RelayedStats:
    """Decode another autoscaler's frame. Raises ``InvalidValue`` for any other frame."""
    return _decoded(_RELAYED_DECODER, frame, expected="statistics of an autoscaler")


def decode_announced_pod(frame: bytes) -> AnnouncedPod:
    """Decode an announcement. Raises ``InvalidValue`` for any other frame."""
    return _decoded(_ANNOUNCED_DECODER, frame, expected="an announced pod")


def _decoded(decoder: "msgspec.msgpack.Decoder[F]", frame: bytes, *, expected: str) -> F:
    try:
        decoded = decoder.decode(frame)
    except UNREADABLE as error:
        refuse_newer_text(expected, frame, known=STAT, action=_UPGRADE)
        # Part of a frame for logs: 16 bytes in hexadecimal.
        raise InvalidValue(text=bytes(frame[:16]).hex(), expected=f"{expected}: {error}") from error
    refuse_newer(expected, decoded.version, known=STAT, action=_UPGRADE)
    return decoded
