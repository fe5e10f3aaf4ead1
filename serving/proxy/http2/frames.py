"""Limits on frames, enforced before the library parses them.

The library accepts any frame as often as a peer sends it, keeps parts of a head without a time limit, ends all streams at
the first GOAWAY, and checks too little at the start of a connection. The gate counts what costs a peer nothing (resets, pings, settings, frames that
say nothing), bounds heads that come in many CONTINUATION frames, refuses frames that are too large before their bytes have
come, and takes GOAWAY out: streams that it leaves alone go on (RFC 9113, section 6.8). Bytes in, bytes for the library out;
time is an argument.
"""

from collections import Counter

import msgspec
from h2.errors import ErrorCodes

from serving.settings.http import HttpSettings

__all__ = ["FRAME_BYTES_MAX", "FrameGate", "GoAway", "Violation"]

# What RFC 9113 begins with and what we leave it at: larger frames only delay others on the connection.
FRAME_BYTES_MAX = 16_384
_HEAD_BYTES = 9
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM_ID = 0x7FFF_FFFF
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    range(10)
)
# A head in Huffman code is at most this much longer than its text; more cannot become one that is taken.
_BLOCK_RATIO = 4


class Violation(Exception):
    """What ends a connection: its code as GOAWAY says it, and the reason as its text."""

    def __init__(self, code: ErrorCodes, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class GoAway(msgspec.Struct, frozen=True, kw_only=True):
    """The peer opens and accepts no new streams. It has not processed those above ``last_stream_id``, and will not."""

    last_stream_id: int
    code: int


class FrameGate:
    """One direction of one connection. ``is_server`` says that the peer is a client, and begins with the preface."""

    __slots__ = (
        *("_begun", "_block_bytes", "_block_count", "_block_id", "_counts", "_goaways", "_highest_id", "_is_server"),
        *("_kept", "_kind", "_left", "_preface_left", "_settings", "_since_s"),
    )

    def __init__(self, settings: HttpSettings, *, is_server: bool, now_s: float) -> None:
        self._settings = settings
        self._is_server = is_server
        self._preface_left = len(_PREFACE) if is_server else 0
        self._begun = False
        # A frame's head, or a GOAWAY, that has not come in whole.
        self._kept = b""
        self._kind = 0
        self._left = 0
        # A head that is spread over frames: its stream, 0 for none.
        self._block_id = self._block_count = self._block_bytes = 0
        self._highest_id = 0
        self._goaways: list[GoAway] = []
        self._counts: Counter[str] = Counter()
        self._since_s = now_s

    @property
    def is_amid_head(self) -> bool:
        """Whether something has begun to come that is no body, and must soon be whole."""
        return bool(self._preface_left or self._kept or self._block_id or (self._left and self._kind != _DATA))

    def goaways(self) -> list[GoAway]:
        """The GOAWAY frames since the last call."""
        found, self._goaways = self._goaways, []
        return found

    def earned(self) -> None:
        """The peer was sent a piece of an answer: it may ping again, as clients do that measure the line by it."""
        if self._counts:
            self._counts["pings"] = 0

    def feed(self, data: bytes, now_s: float) -> bytes:  # noqa: C901 - one loop, which every byte passes
        """What of ``data`` the library is to see.

        Raises:
            Violation: the connection is to be ended.
        """
        if self._kept:
            data, self._kept = self._kept + data, b""
        at, size, passed = 0, len(data), []
        if self._preface_left:
            at = min(self._preface_left, size)
            if not _PREFACE.startswith(data[:at], len(_PREFACE) - self._preface_left):
                raise Violation(ErrorCodes.PROTOCOL_ERROR, "not the preface of HTTP/2")
            self._preface_left -= at
        start = 0
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                at += step
                self._left -= step
                continue
            rest = size - at
            if rest < _HEAD_BYTES:
                break
            length, kind = int.from_bytes(data[at : at + 3]), data[at + 3]
            if length > FRAME_BYTES_MAX:
                raise Violation(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            flags, stream_id = data[at + 4], int.from_bytes(data[at + 5 : at + 9]) & _STREAM_ID
            if kind == _GOAWAY:
                if rest < _HEAD_BYTES + length:
                    break
                self._take_goaway(data[at + _HEAD_BYTES : at + _HEAD_BYTES + length], stream_id)
                passed.append(data[start:at])
                start = at = at + _HEAD_BYTES + length
                continue
            self._look(kind, flags, stream_id=stream_id, length=length, now_s=now_s)
            self._kind, self._left = kind, length
            at += _HEAD_BYTES
        if at < size:
            self._kept = data[at:]
        if not start and at == size:
            return data
        return b"".join([*passed, data[start:at]])

    def _look(  # noqa: C901 - one branch for each kind of frame
        self, kind: int, flags: int, *, stream_id: int, length: int, now_s: float
    ) -> None:
        if not self._begun:
            if kind != _SETTINGS or flags & _ACK:
                raise Violation(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._begun = True
        if self._block_id or kind == _CONTINUATION:
            self._continue(kind, flags, stream_id=stream_id, length=length)
        elif kind in (_HEADERS, _PUSH_PROMISE):
            self._highest_id = max(self._highest_id, stream_id)
            if not flags & _END_HEADERS:
                self._block_id, self._block_count, self._block_bytes = stream_id, 0, length
        elif kind == _DATA:
            if not length and not flags & _END_STREAM:
                self._count("idle_frames", self._settings.http2_idle_frames_max, now_s)
        elif kind == _RST_STREAM:
            if self._is_server and stream_id > self._highest_id:
                raise Violation(ErrorCodes.PROTOCOL_ERROR, "RST_STREAM of a stream that was never opened")
            self._count("resets", self._settings.http2_resets_max, now_s)
        elif kind == _PING and not flags & _ACK:
            self._count("pings", self._settings.http2_pings_max, now_s)
        elif kind == _SETTINGS and not flags & _ACK:
            self._count("settings", self._settings.http2_settings_max, now_s)
        elif kind != _WINDOW_UPDATE:
            # Acknowledgements, priorities and unknown frames.
            self._count("idle_frames", self._settings.http2_idle_frames_max, now_s)

    def _continue(self, kind: int, flags: int, *, stream_id: int, length: int) -> None:
        if kind != _CONTINUATION or stream_id != self._block_id:
            raise Violation(ErrorCodes.PROTOCOL_ERROR, "a head that is cut off by another frame, or was never begun")
        self._block_count += 1
        self._block_bytes += length
        settings = self._settings
        if self._block_count > settings.http2_continuations_max:
            raise Violation(ErrorCodes.ENHANCE_YOUR_CALM, "a head in too many frames")
        if self._block_bytes > settings.head_bytes_max * _BLOCK_RATIO:
            raise Violation(ErrorCodes.ENHANCE_YOUR_CALM, "an endless head")
        if flags & _END_HEADERS:
            self._block_id = 0

    def _take_goaway(self, payload: bytes, stream_id: int) -> None:
        if self._block_id or stream_id or not self._begun:
            raise Violation(ErrorCodes.PROTOCOL_ERROR, "GOAWAY where it may not be")
        if len(payload) < 8:
            raise Violation(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY that is too short")
        last_stream_id = int.from_bytes(payload[:4]) & _STREAM_ID
        self._goaways.append(GoAway(last_stream_id=last_stream_id, code=int.from_bytes(payload[4:8])))

    def _count(self, what: str, count_max: int, now_s: float) -> None:
        if now_s - self._since_s > self._settings.http2_count_period_s:
            self._counts.clear()
            self._since_s = now_s
        self._counts[what] += 1
        if self._counts[what] > count_max:
            raise Violation(ErrorCodes.ENHANCE_YOUR_CALM, f"more than {count_max} {what} in a short time")
