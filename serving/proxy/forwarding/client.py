"""The interface between an exchange and its client's connection."""

import enum
from typing import Protocol

from serving.proxy.http1.answerhead import AnswerHead


class Pause(enum.IntFlag):
    """Why a client's connection is not read for a while."""

    HELD = 1
    UPSTREAM_FULL = 2
    AHEAD = 4


class AnswerSink(Protocol):
    """Takes an upstream's answer as it was parsed, for a client whose protocol has frames of its own."""

    def begin_answer(self, head: AnswerHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """The head, with further lines, and what there is of the body."""

    def send_piece(self, payload: bytes) -> None:
        """A piece of the body; more follows."""

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """The last piece of the body, which may be empty, with the lines that follow it."""


class Client(Protocol):
    """What an exchange needs of its client's connection."""

    @property
    def sink(self) -> AnswerSink | None:
        """What takes answers of upstreams; None if they are to be written as HTTP/1.1."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close the sending direction."""

    def pause(self, why: Pause) -> None:
        """Read no more, for one more reason."""

    def resume(self, why: Pause) -> None:
        """One reason not to read is gone."""

    def open_tunnel(self) -> bytes:
        """Pass everything through from now on; returns what was read ahead."""

    def exchange_done(self, *, keep: bool) -> None:
        """The exchange is over; ``keep`` says that the connection may serve the next."""

    def truncate(self) -> None:
        """End the connection after what was written, in the middle of an answer."""

    def abort(self) -> None:
        """Reset the connection, so that the end of an answer is not mistaken for its completion."""
