"""The interface between the engine and the daemon that decides about requests.

A daemon gives the engine a ``Handler``. For each request the engine calls ``begin`` once, and ``finish`` once afterwards,
whatever happens in between. ``begin`` decides at once, or keeps the exchange and decides later; it does so by calling, once:

- ``exchange.forward((host, port), ...)``: the request goes there, and the answer comes back, with bodies streamed; or
- ``exchange.answer(status, body, headers)``: an answer of our own.

While an exchange waits, the engine watches its client and its time: a client that leaves ends it, and ``finish`` says so
(``exchange.outcome`` is CLIENT_GONE); at ``exchange.wait_until_s`` the engine calls ``overdue``. If no connection can be
made, ``unreachable`` is called, nothing of the request having been sent, and must forward elsewhere or answer. If the
upstream dies before any byte of its answer, and the request may be sent again and is still there in whole, ``lost`` is
called, and the handler may forward elsewhere, now or later. Everything is called in the loop's thread and nothing awaits,
so that a slot taken in ``begin`` and given back in ``finish`` is never lost. In ``finish`` the upstream's connection is
already back in the pool: whoever is let in next may use it.

Calls of ``forward`` and ``answer`` on an exchange that has ended do nothing, so that a queue may be emptied lazily.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from serving.proxy.pool import Pool
from serving.proxy.rendering import ClientPeer
from serving.proxy.trust import member_of

if TYPE_CHECKING:
    from serving.proxy.exchange import Exchange

__all__ = ["Handler", "Wiring"]


class Handler(Protocol):
    """Decides about requests. All methods are called in the loop's thread and must not raise."""

    def begin(self, exchange: "Exchange") -> None:
        """A request has come: answer it, forward it, or keep it and do so later."""

    def unreachable(self, exchange: "Exchange", error: OSError) -> None:
        """No connection could be made for a forwarded request: forward it elsewhere, or answer."""

    def lost(self, exchange: "Exchange", reason: str) -> bool:
        """The upstream died before it answered, and the request may be sent again.

        True: the handler has forwarded it, or will. False: the engine answers 502 with the reason.
        """

    def overdue(self, exchange: "Exchange") -> None:
        """An exchange has waited until its ``wait_until_s``: answer it."""

    def finish(self, exchange: "Exchange") -> None:
        """A request has ended, one way or another: see ``outcome`` and ``status``."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """What all exchanges of one listener share."""

    handler: Handler
    pool: Pool
    clock: Callable[[], float]
    listener: str
    held_bytes_max: int
    tunnel_limits: tuple[float, float]
    trusts: Callable[[str], bool] = member_of("")
    """Whether the peer at an address is believed about the way of its requests."""

    on_end: "Callable[[Exchange], None] | None" = None

    def tunnel_due_s(self, started_s: float, used_s: float) -> float:
        """When a tunnel of ``started_s`` that was last used at ``used_s`` exceeds the limits of all tunnels."""
        idle_s, age_s = self.tunnel_limits
        return min(started_s + age_s, used_s + idle_s)

    def peer_at(self, address: str, *, is_tls: bool) -> ClientPeer:
        """The peer at the other end of a connection."""
        return ClientPeer(address, b"https" if is_tls else b"http", is_trusted=self.trusts(address))
