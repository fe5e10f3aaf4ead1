import itertools

import pytest

from serving.core.model.errors import IllegalTransition
from serving.net.proxy.forwarding.phase import TRANSITIONS, ExchangeEvent, ExchangePhase

WAITING, CONNECTING, SENT = ExchangePhase.WAITING, ExchangePhase.CONNECTING, ExchangePhase.SENT
RESPONDING, TUNNEL, DONE = ExchangePhase.RESPONDING, ExchangePhase.TUNNEL, ExchangePhase.DONE
ALLOWED = {
    (ExchangeEvent.CONNECT, WAITING): CONNECTING,
    (ExchangeEvent.CONNECT, SENT): CONNECTING,
    (ExchangeEvent.SEND, WAITING): SENT,
    (ExchangeEvent.SEND, CONNECTING): SENT,
    (ExchangeEvent.GIVE_BACK, CONNECTING): WAITING,
    (ExchangeEvent.GIVE_BACK, SENT): WAITING,
    (ExchangeEvent.RESPOND, SENT): RESPONDING,
    (ExchangeEvent.SWITCH, SENT): TUNNEL,
    (ExchangeEvent.END, WAITING): DONE,
    (ExchangeEvent.END, CONNECTING): DONE,
    (ExchangeEvent.END, SENT): DONE,
    (ExchangeEvent.END, RESPONDING): DONE,
    (ExchangeEvent.END, TUNNEL): DONE,
}


@pytest.mark.parametrize(("event", "phase"), list(itertools.product(ExchangeEvent, ExchangePhase)))
def test_every_exchange_transition_is_defined_or_illegal(event: ExchangeEvent, phase: ExchangePhase) -> None:
    after = ALLOWED.get((event, phase))
    if after is not None:
        assert TRANSITIONS[event][phase] is after
    else:
        with pytest.raises(IllegalTransition, match=rf"exchange: {event} in phase {phase.name.lower()}"):
            TRANSITIONS[event][phase]
