"""The states of an exchange, and all transitions.

``TRANSITIONS`` is the whole state machine: for each event, the phases that allow it, and the next phase. An event in
any other phase is a bug and raises ``IllegalTransition``.
"""

import enum
from collections.abc import Mapping

from serving.core.model.errors import IllegalTransition


class ExchangeOutcome(enum.StrEnum):
    """How an exchange ended.

    answered: the upstream's response was forwarded completely. refused: the proxy responded itself. client_gone: the
    client disconnected first. cut: a response that had begun was cut off.
    """

    ANSWERED = "answered"
    """The upstream's response was forwarded completely, or the tunnel ended."""
    REFUSED = "refused"
    """The proxy responded itself."""
    CLIENT_GONE = "client_gone"
    """The client disconnected before the response was complete."""
    CUT = "cut"
    """The response had begun and was cut off: the upstream ended, a timeout expired, or the proxy shuts down."""


class ExchangePhase(enum.IntEnum):
    """The state of an exchange, from waiting for a decision of the handler to done.

    An integer, because the hash of a string takes ten times as long.
    """

    WAITING = 0
    """The handler has not decided yet, or must decide again."""
    CONNECTING = 1
    """The pool opens a connection."""
    SENT = 2
    """The request, or its received part, was sent upstream."""
    RESPONDING = 3
    """The response has begun."""
    TUNNEL = 4
    """The upstream has agreed to switch protocols."""
    DONE = 5


class ExchangeEvent(enum.StrEnum):
    """An event that changes the phase of an exchange."""

    CONNECT = "connect"
    """A connection to the upstream is needed."""
    SEND = "send"
    """A connection takes the request."""
    GIVE_BACK = "give back"
    """The upstream failed before its response: the handler decides again."""
    RESPOND = "respond"
    """The upstream's response begins."""
    SWITCH = "switch"
    """The upstream responds with 101."""
    END = "end"


class PhaseMap(dict[ExchangePhase, ExchangePhase]):
    """The transitions of one event: allowed phase to next phase."""

    def __init__(self, event: ExchangeEvent, phases: Mapping[ExchangePhase, ExchangePhase]) -> None:
        super().__init__(phases)
        self._event = event

    def __missing__(self, phase: ExchangePhase) -> ExchangePhase:
        raise IllegalTransition(subject="exchange", phase=phase.name.lower(), event=self._event)


_WAITING, _CONNECTING, _SENT = ExchangePhase.WAITING, ExchangePhase.CONNECTING, ExchangePhase.SENT
_RESPONDING, _TUNNEL, _DONE = ExchangePhase.RESPONDING, ExchangePhase.TUNNEL, ExchangePhase.DONE

TRANSITIONS: Mapping[ExchangeEvent, PhaseMap] = {
    event: PhaseMap(event, phases)
    for event, phases in {
        # From SENT: the upstream had closed a pooled connection, so the request is sent once more on a new one.
        ExchangeEvent.CONNECT: {_WAITING: _CONNECTING, _SENT: _CONNECTING},
        ExchangeEvent.SEND: {_WAITING: _SENT, _CONNECTING: _SENT},
        ExchangeEvent.GIVE_BACK: {_CONNECTING: _WAITING, _SENT: _WAITING},
        ExchangeEvent.RESPOND: {_SENT: _RESPONDING},
        ExchangeEvent.SWITCH: {_SENT: _TUNNEL},
        ExchangeEvent.END: dict.fromkeys((_WAITING, _CONNECTING, _SENT, _RESPONDING, _TUNNEL), _DONE),
    }.items()
}
