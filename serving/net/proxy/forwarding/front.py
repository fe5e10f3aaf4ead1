"""A handler in front of another one, which responds to some requests itself."""

import abc

from serving.net.proxy.forwarding.exchange import Exchange, Handler

# The context of an exchange that the wrapped handler has not seen.
_OURS = object()


class Front(abc.ABC):
    """Wraps ``handler``. Requests that ``respond`` answers are never forwarded or queued."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    @abc.abstractmethod
    def respond(self, exchange: Exchange) -> bool:
        """Respond to a request that the wrapped handler must not see; return whether there was a response."""

    def begin(self, exchange: Exchange) -> None:
        """Respond to the request, or pass it to the wrapped handler."""
        context, exchange.context = exchange.context, _OURS
        if not self.respond(exchange):
            exchange.context = context
            self._handler.begin(exchange)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Call the wrapped handler."""
        self._handler.unreachable(exchange, error)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Call the wrapped handler, and return its result."""
        return self._handler.lost(exchange, reason)

    def overdue(self, exchange: Exchange) -> None:
        """Call the wrapped handler."""
        self._handler.overdue(exchange)

    def body_ready(self, exchange: Exchange) -> None:
        """Call the wrapped handler."""
        self._handler.body_ready(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        """Call the wrapped handler, unless ``respond`` answered the request."""
        if exchange.context is not _OURS:
            self._handler.body_complete(exchange)

    def reading_changed(self, exchange: Exchange) -> None:
        """Call the wrapped handler, unless ``respond`` answered the request."""
        if exchange.context is not _OURS:
            self._handler.reading_changed(exchange)

    def finish(self, exchange: Exchange) -> None:
        """Call the wrapped handler, unless ``respond`` answered the request."""
        if exchange.context is not _OURS:
            self._handler.finish(exchange)
