"""The interface between a server and its clients' connections."""

from typing import Protocol

from serving.settings.http import HttpSettings


class Member(Protocol):
    """A client's connection, as used by the server."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs and none has begun to arrive."""

    def wind_down(self) -> None:
        """Ask the client to send no more requests on this connection; late ones are served."""

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

    def opened(self, connection: Member, address: str) -> str | None:
        """Add a connection; returns a reason if it exceeds a limit."""

    def closed(self, connection: Member, address: str) -> None:
        """Remove a closed connection."""

    def count_tunnel(self, change: int) -> None:
        """Count an opened (1) or closed (-1) tunnel."""

    def wake_by(self, due_s: float) -> None:
        """Schedule a check of all connections for that time."""
