"""HPACK's Huffman code (RFC 7541, section 5.2 and appendix B).

The code is canonical: the lengths of its words define it. The decoder consumes four bits per step in a table of 256
states. A word has at least five bits, so a step completes at most one word. Strings repeat, so short ones are cached.
"""

from serving.net.proxy.http2.frames import ErrorCode, Violation

# Bits in the code word of each byte, 0 to 255, and of the end of a string.
_LENGTHS = (
    *(13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28),
    *(28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15),
    *(6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6),
    *(15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22),
    *(20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23),
    *(23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22),
    *(22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26),
    *(27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27),
    *(26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30),
)
_END = 256
# Longer padding could contain a whole code word.
_PADDING_BITS_MAX = 7
# An entry of the table: the state in the upper bits, the completed byte plus 1 in the lower nine; 0 is none.
_BYTE_BITS = 9
_BYTE_MASK = (1 << _BYTE_BITS) - 1
_INVALID = -1
# Repeated header values are shorter; with the limit below, at most 1024 x 200 bytes.
_REMEMBERED_BYTES_MAX = 64
_REMEMBERED_MAX = 1024
_remembered: dict[bytes, bytes] = {}
# Steps of eight bits, created on demand: text needs about a hundred of 65,536. 200 bytes each.
_BYTE_STEPS_MAX = 8192
_byte_steps: dict[int, tuple[int, bytes]] = {}


def _words() -> list[int]:
    words = [0] * len(_LENGTHS)
    word = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        word <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        words[symbol] = word
        word += 1
    return words


def _tree(words: list[int]) -> list[list[int]]:
    """The code tree. Each node has two branches: another node's number, or -1 minus a symbol."""
    nodes: list[list[int]] = [[0, 0]]
    for symbol, word in enumerate(words):
        at = 0
        for place in range(_LENGTHS[symbol] - 1, 0, -1):
            bit = word >> place & 1
            if not nodes[at][bit]:
                nodes.append([0, 0])
                nodes[at][bit] = len(nodes) - 1
            at = nodes[at][bit]
        nodes[at][word & 1] = -symbol - 1
    return nodes


def _steps(nodes: list[list[int]]) -> list[int]:
    """The transition table: at index ``node << 4 | bits``, the next node and the completed symbol."""
    steps = []
    for start in range(len(nodes)):
        for bits in range(16):
            at, ended = start, 0
            for place in (3, 2, 1, 0):
                at = nodes[at][bits >> place & 1]
                if at < 0:
                    ended, at = -at, 0
            # The end-of-string symbol must not occur in a string.
            steps.append(_INVALID if ended == _END + 1 else at << _BYTE_BITS | ended)
    return steps


def _final_states(nodes: list[list[int]]) -> frozenset[int]:
    """The states in which a string may end: after a symbol, and after up to seven further 1 bits."""
    states, at = {0}, 0
    for _ in range(_PADDING_BITS_MAX):
        at = nodes[at][1]
        states.add(at)
    return frozenset(states)


_WORDS = _words()
_NODES = _tree(_WORDS)
_STEPS = _steps(_NODES)
_FINAL = _final_states(_NODES)


def _byte_step(state: int, byte: int) -> tuple[int, bytes]:
    """Decode eight bits from a state; return the next state and the completed bytes."""
    key, decoded = state << 8 | byte, bytearray()
    for bits in (byte >> 4, byte & 0xF):
        step = _STEPS[state << 4 | bits]
        if step < 0:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "EOS symbol in a Huffman string")
        if step & _BYTE_MASK:
            decoded.append((step & _BYTE_MASK) - 1)
        state = step >> _BYTE_BITS
    after = state, bytes(decoded)
    if len(_byte_steps) < _BYTE_STEPS_MAX:
        _byte_steps[key] = after
    return after


def huffman_decode(data: bytes) -> bytes:
    """Decode a Huffman string.

    Raises:
        Violation: for an EOS symbol within the string, or a wrong padding.
    """
    known = _remembered.get(data)
    if known is not None:
        return known
    pieces: list[bytes] = []
    state, known_steps = 0, _byte_steps
    for byte in data:
        step = known_steps.get(state << 8 | byte) or _byte_step(state, byte)
        state = step[0]
        pieces.append(step[1])
    if state not in _FINAL:
        raise Violation(ErrorCode.COMPRESSION_ERROR, "invalid Huffman padding")
    text = b"".join(pieces)
    if len(data) <= _REMEMBERED_BYTES_MAX:
        if len(_remembered) >= _REMEMBERED_MAX:
            _remembered.clear()
        _remembered[data] = text
    return text


def huffman_encode(text: bytes) -> bytes:
    """Encode a string with the Huffman code."""
    word = bits = 0
    for byte in text:
        word = word << _LENGTHS[byte] | _WORDS[byte]
        bits += _LENGTHS[byte]
    padding = -bits % 8
    return (word << padding | (1 << padding) - 1).to_bytes((bits + padding) // 8)
