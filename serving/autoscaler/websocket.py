"""Where a websocket frame ends (RFC 6455, section 5.2), so that whole ones can be cut out of a stream.

Input: bytes of a client's frames and where to look. Output: a ``Cut`` that says where the frame's mask, payload and end
are, and whether it is a whole binary message, which is all that a statistic is; None while its head is not there yet.
Nothing is judged here: what is not plain goes to the protocol of ``websockets``, which knows what is wrong with it.
"""

import msgspec

HEAD_END = b"\r\n\r\n"
"""The end of the request that comes before all frames."""

MASK_BYTES = 4
# Final, no extension, binary.
_PLAIN = 0x82
_MASKED = 0x80
# Lengths from here on stand in the 2 or 8 bytes that follow.
_LONG = 126
_LONGER = 127


class Cut(msgspec.Struct, frozen=True):
    """Places in the stream. The mask is right before ``begin``, if there is one. ``end`` may lie beyond what is there."""

    begin: int
    end: int
    is_plain: bool


def cut(data: bytes, position: int) -> Cut | None:
    """The frame that begins at ``position``; None if that cannot be said yet.

    82 83 and a mask of 4 bytes at 0: the payload is at 6, the end at 9.
    """
    rest = len(data) - position
    if rest < 2:
        return None
    length = data[position + 1] & ~_MASKED
    begin = position + 2
    if length >= _LONG:
        begin += 2 if length == _LONG else 8
        if rest < begin - position:
            return None
        length = int.from_bytes(data[position + 2 : begin])
    is_masked = data[position + 1] >= _MASKED
    if is_masked:
        begin += MASK_BYTES
    return Cut(begin, begin + length, is_masked and data[position] == _PLAIN)
