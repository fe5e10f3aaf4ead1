"""Whether a pod's frame is late, without believing its clock.

A frame carries the sender's time and is stamped on receipt. The difference of the two says nothing by itself, since
clocks differ; but it is the same for all frames of one connection, up to the time that each was under way. The least of
them stands for "not under way at all". Input: both times. Output: whether the frame lay somewhere for too long, as in a
buffer while one end stood still. A clock that was set, after which all frames seem late alike, is believed after some.
"""

import msgspec

# Longest time under way, in seconds, from sender to receiver. A report of longer ago is about other requests.
LATE_AFTER_S = 3.0
# Frames in a row that seem late before the clock is taken to have been set.
_LATE_IN_A_ROW_MAX = 5


class LatenessState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one connection. ``offset_s`` is receiver's time less sender's; None before the first frame."""

    offset_s: float | None = None
    late_count: int = 0


def is_late(state: LatenessState, *, sent_s: float, received_s: float) -> tuple[LatenessState, bool]:
    """Whether a frame came too late to count.

    Frames sent at 100 and 101 and received at 7.0 and 12.1: offsets -93 and -88.9, so the second was under way for 4.1 s
    longer, and is late.
    """
    offset_s = received_s - sent_s
    if state.offset_s is None or offset_s <= state.offset_s:
        return LatenessState(offset_s=offset_s), False
    if offset_s - state.offset_s <= LATE_AFTER_S:
        return LatenessState(offset_s=state.offset_s) if state.late_count else state, False
    if state.late_count + 1 >= _LATE_IN_A_ROW_MAX:
        return LatenessState(offset_s=offset_s), False
    return LatenessState(offset_s=state.offset_s, late_count=state.late_count + 1), True
