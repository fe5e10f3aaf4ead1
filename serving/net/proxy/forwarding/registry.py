"""The interface between a server and its clients' connections."""

import logging
from typing import Protocol

from serving.core.settings.http import HttpSettings
from serving.net.aio.turns import FairTurns

BODY_TOO_LARGE = "the request's body is too large"
BODY_TOO_SLOW = "the request's body came too slowly"
_log = logging.getLogger(__name__)


class Refusals:
    """Counts, by code, the requests and connections that were refused before a handler saw them.

    They are in no access log and in no metric of requests. Codes are those of ``RefusalCode``, and ``h2_`` with the name of
    an error code of RFC 9113, section 7.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def record(self, code: str, reason: str, address: str) -> None:
        """Count a refusal, and log it with the client's address."""
        self.counts[code] = self.counts.get(code, 0) + 1
        _log.debug("refused %s from %s: %s", code, address, reason)


class Member(Protocol):
    """A client's connection, as used by the server."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs and none has begun to arrive."""

    def wind_down(self) -> None:
        """Ask the client to send no more requests on this connection; late ones are still served."""

    def close_if_idle(self) -> None:
        """Close now if idle, otherwise after the response."""

    def cut(self) -> bool:
        """Close now; return whether a request was interrupted."""

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next one expires."""


class Registry(Protocol):
    """The server, as used by its client connections."""

    settings: HttpSettings
    draining: bool
    finishing: bool
    sweep_s: float
    refusals: Refusals

    @property
    def turns(self) -> FairTurns:
        """Shared by all connections of the loop that cause much work with few bytes."""

    def opened(self, connection: Member, address: str) -> str | None:
        """Add a connection; return the reason if it exceeds a limit."""

    def closed(self, connection: Member, address: str) -> None:
        """Remove a closed connection."""

    def count_tunnel(self, change: int) -> None:
        """Count an opened (1) or closed (-1) tunnel."""

    def wake_by(self, due_s: float) -> None:
        """Schedule a check of all connections for that time."""
