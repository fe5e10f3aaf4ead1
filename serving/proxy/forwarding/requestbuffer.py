"""The part of a request's body that has been read and is still needed: to be sent, or to be sent again.

While a request waits for an upstream, pieces of its body are held. ``send`` hands them over and keeps them for a replay on
another upstream. A piece that is streamed past the buffer ends that: the upstream then has more than the buffer.
"""


class RequestBuffer:
    """Pieces of one request's body, as they go on the wire."""

    __slots__ = ("_held", "_sent", "can_replay", "held_bytes")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._sent = b""
        self.held_bytes = 0
        self.can_replay = True
        """Whether all that was sent is still here."""

    def __repr__(self) -> str:
        return f"RequestBuffer({self.held_bytes} bytes held, {'' if self.can_replay else 'no '}replay)"

    def hold(self, piece: bytes) -> None:
        """Keep a piece until an upstream is there."""
        self._held.append(piece)
        self.held_bytes += len(piece)

    def send(self) -> bytes:
        """All pieces that are held, for an upstream; they are kept for a replay."""
        if not self._held:
            return b""
        self._sent, self.can_replay = b"".join(self._held), True
        self._held, self.held_bytes = [], 0
        return self._sent

    def rewind(self) -> None:
        """Hold again what was sent, for the next upstream."""
        assert self.can_replay
        if self._sent:
            self._held, self.held_bytes = [self._sent], len(self._sent)
            self._sent = b""

    def restore(self, body: bytes) -> None:
        """Hold all that an upstream was given, which it has not looked at, for the next one."""
        self._held, self._sent, self.can_replay = [body], b"", True
        self.held_bytes = len(body)

    def drop(self) -> None:
        """Forget all pieces: from now on the body is streamed, or is not needed."""
        self._held, self._sent, self.held_bytes, self.can_replay = [], b"", 0, False


class _NoBody(RequestBuffer):
    """The buffer of all requests without a body, which can always be sent again."""

    __slots__ = ()

    def drop(self) -> None:
        """Do nothing: there is nothing to forget, and all such requests share this buffer."""


NO_BODY = _NoBody()
