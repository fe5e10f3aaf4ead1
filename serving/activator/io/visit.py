"""The activator's state of a request, and the functions by which the queue reads it."""

from serving.activator.io.knownhead import KnownHead
from serving.activator.queueing.failures import RequestFacts
from serving.core.model.knative import RevisionKey
from serving.core.traffic.clients import ClientLoad
from serving.net.metrics.activator import RevisionRows
from serving.net.metrics.spans import RequestTrace
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.sharing import view_of


class Visit:
    """The activator's state of one request."""

    __slots__ = (
        "client",
        "cold_turn",
        "facts",
        "is_cold",
        "is_grpc",
        "key",
        "losses",
        "rows",
        "session",
        "site",
        "trace",
        "traceparent",
        "tries",
    )

    def __init__(
        self, key: RevisionKey, rows: RevisionRows, known: KnownHead, *, client: ClientLoad, session: int | None
    ) -> None:
        self.key = key
        self.site = known.site
        self.session = session
        self.client = client
        self.rows = rows
        self.traceparent = known.traceparent
        self.is_grpc = known.is_grpc
        self.trace: RequestTrace | None = None
        self.cold_turn = 0
        self.tries = 1
        self.losses = 0
        self.is_cold = False
        self.facts: RequestFacts | None = None

    def noted(self) -> RequestFacts:
        """The request's facts, created on first use, because only waiting or failed requests need them."""
        if self.facts is None:
            self.facts = RequestFacts()
        return self.facts


def _sender_of(exchange: Exchange) -> ClientLoad | None:
    visit = exchange.context
    return visit.client if isinstance(visit, Visit) else None


VIEW = view_of(_sender_of)
"""The queue's functions of a request."""
