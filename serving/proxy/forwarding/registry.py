"""The interface between a server and its clients' connections."""

from typing import Protocol

from serving.settings.http import HttpSettings


class Member(Protocol):
    """A client's connection, as the server sees it."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs and none has begun to arrive."""

    def wind_down(self) -> None:
        """Ask the client to send no more requests here; those that come are served."""

    def close_if_idle(self) -> None:
        """Close if it is idle, otherwise after the response."""

    def cut(self) -> bool:
        """Close now; return whether a request was cut off."""

    def check(self, now_s: float) -> float:
        """Enforce the time limits that have passed; return when the next will."""


class Registry(Protocol):
    """The server, as its clients' connections see it."""

    settings: HttpSettings
    draining: bool
    finishing: bool
    sweep_s: float

    def opened(self, connection: Member, address: str) -> str | None:
        """Add a connection; a text says why it is one too many."""

    def closed(self, connection: Member, address: str) -> None:
        """Remove a connection that has ended."""

    def count_tunnel(self, change: int) -> None:
        """A connection has become a tunnel (1), or its tunnel has ended (-1)."""

    def wake_by(self, due_s: float) -> None:
        """Check all connections at that time."""
