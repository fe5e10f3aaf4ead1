"""Where a request stands on its way, and how it ended."""

import enum

__all__ = ["ExchangeOutcome", "ExchangePhase"]


class ExchangeOutcome(enum.StrEnum):
    """How an exchange ended."""

    ANSWERED = "answered"
    """The upstream's answer was passed on in whole; or the tunnel ended."""
    REFUSED = "refused"
    """We answered by ourselves."""
    CLIENT_GONE = "client_gone"
    """The client left before the answer was complete."""
    CUT = "cut"
    """The answer had begun and was cut off: the upstream died, time was up, or we are shutting down."""


class ExchangePhase(enum.Enum):
    """Where an exchange stands."""

    WAITING = "waiting"
    CONNECTING = "connecting"
    SENT = "sent"
    ANSWERING = "answering"
    TUNNEL = "tunnel"
    DONE = "done"
