"""The mutable state of an exchange: the progress of its request and of its response."""

import msgspec

from serving.net.proxy.forwarding.client import Tunnel


class RequestBody:
    """The body of one request: its encoded pieces until they are sent, and its progress."""

    __slots__ = (
        "_pieces",
        "_sent",
        "buffered_bytes",
        "can_replay",
        "is_awaited",
        "is_complete",
        "is_continued",
        "trailers",
    )

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._sent = b""
        self.buffered_bytes = 0
        self.can_replay = True
        """Whether all sent pieces are still buffered."""
        self.is_complete = False
        """Whether the whole request has been read."""
        self.is_awaited = False
        """Whether the request waits for its body before it uses a slot."""
        self.is_continued = False
        """Whether the proxy has sent 100 Continue."""
        self.trailers = b""
        """The trailer lines after the body."""

    def buffer(self, piece: bytes) -> None:
        """Buffer a piece until an upstream is connected."""
        self._pieces.append(piece)
        self.buffered_bytes += len(piece)

    def peek(self) -> bytes:
        """Return all buffered pieces without removing them."""
        return b"".join(self._pieces)

    def send(self) -> bytes:
        """Return all buffered pieces for an upstream, and keep them for a replay."""
        if not self._pieces:
            return b""
        self._sent = b"".join(self._pieces)
        self.can_replay = True
        self._pieces = []
        self.buffered_bytes = 0
        return self._sent

    def rewind(self) -> None:
        """Buffer the sent pieces again, for the next upstream."""
        assert self.can_replay
        if self._sent:
            self._pieces = [self._sent]
            self.buffered_bytes = len(self._sent)
            self._sent = b""

    def restore(self, body: bytes) -> None:
        """Buffer an unprocessed body again, for the next upstream."""
        self._pieces = [body]
        self._sent = b""
        self.can_replay = True
        self.buffered_bytes = len(body)

    def drop(self) -> None:
        """Discard all pieces: the body is now streamed, or no longer needed."""
        self._pieces = []
        self._sent = b""
        self.buffered_bytes = 0
        self.can_replay = False


class _NoBody(RequestBody):
    """The body shared by all requests without a body. It is complete, and can always be sent again."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.is_complete = True

    def drop(self) -> None:
        """Do nothing: the empty buffer is shared."""


NO_BODY = _NoBody()


class ResponseState(msgspec.Struct, eq=False):
    """The progress of one response.

    ``written_s`` is when its last piece was written; initially the time of the request's head. ``status`` is 0 before
    it begins. ``wire`` are the upstream's header lines, ``marks`` those that only this system's proxies add.
    ``body_bytes`` counts the body so far, without the bytes of a tunnel. ``sent_s`` is when the request was last sent
    upstream, if it is timed; 0 before. ``is_unread``: bytes wait for the client to read. ``is_held``: the rest waits in
    the upstream for the client. ``is_cancelled``: the app cancelled a response that had begun. ``error_id`` is the id
    in an error response of this proxy or of the queue-proxy behind it, "" without one. ``tunnel`` is that of a 101
    response.
    """

    # A struct, because an ``__init__`` takes four times as long.
    written_s: float
    status: int = 0
    wire: bytes = b""
    marks: bytes = b""
    body_bytes: int = 0
    sent_s: float = 0.0
    is_unread: bool = False
    is_held: bool = False
    is_cancelled: bool = False
    error_id: str = ""
    tunnel: Tunnel | None = None
