"""Listens at the TCP ports that services ask for.

Input: routes as they change. A port belongs to the oldest route with a public host that asks for it. Effect: an open
listener for each port; connections that are open stay when a port goes. A port that cannot be bound is reported and tried again.
"""

import asyncio
import logging

import msgspec

from serving.activator.routing.hostclaims import ServedRoute
from serving.activator.routing.sites import Listener
from serving.model.routepolicy import route_policy
from serving.proxy.forwarding.exchange import Handler
from serving.proxy.server.listener import HttpServer

_log = logging.getLogger(__name__)
# Another program may give the port up.
_RETRY_S = 5.0


class TcpClaim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A route's claim on a port. The smallest claim has it."""

    since: str
    route: str
    port: int
    host: str


def tcp_claim_of(facts: ServedRoute) -> TcpClaim | None:
    """The claim of a route; None if it asks for no port or has no public host."""
    policy = route_policy(facts.metadata.annotations or {})
    host = next((one for one in facts.hosts if one.is_public and not one.tag), None)
    if not policy.tcp_port or host is None:
        return None
    return TcpClaim(since=host.since, route=facts.key, port=policy.tcp_port, host=host.host)


class TcpListeners:
    """The listeners of an activator. ``handler`` takes connections as exchanges."""

    def __init__(self, server: HttpServer, handler: Handler) -> None:
        self._server = server
        self._handler = handler
        self._claims: dict[str, TcpClaim] = {}
        self._open: dict[int, TcpClaim] = {}
        self._reported: set[tuple[TcpClaim, str]] = set()
        self._changed = asyncio.Event()

    def set(self, route: str, facts: ServedRoute | None) -> None:
        """Update a route, or remove it with None."""
        claim = None if facts is None else tcp_claim_of(facts)
        before = self._claims.pop(route, None)
        if claim is not None:
            self._claims[route] = claim
        if claim != before:
            self._changed.set()

    async def run(self, address: str, stop: asyncio.Event) -> None:
        """Follow the claims until ``stop`` is set; listen at ``address``."""
        stopped = asyncio.create_task(stop.wait())
        while not stop.is_set():
            timeout_s = None if await self._settle(address) else _RETRY_S
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait([stopped, changed], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        stopped.cancel()

    async def _settle(self, address: str) -> bool:
        """Open and close listeners; return whether all ports that are asked for are open."""
        self._changed.clear()
        if self._server.draining:
            # Another process listens by now, or none will soon.
            return True
        wanted: dict[int, TcpClaim] = {}
        for claim in sorted(self._claims.values()):
            owner = wanted.setdefault(claim.port, claim)
            if owner is not claim:
                self._report(claim, f"service {owner.route} has it")
        for port, claim in list(self._open.items()):
            if wanted.get(port) != claim:
                self._server.close_listeners(port)
                del self._open[port]
        for port, claim in wanted.items():
            if port not in self._open:
                try:
                    await self._listen(address, claim)
                except OSError as error:
                    self._report(claim, str(error))
                else:
                    self._open[port] = claim
                    _log.info("tcp.listening", extra={"service": claim.route, "port": port})
        return len(self._open) == len(wanted)

    async def _listen(self, address: str, claim: TcpClaim) -> None:
        from serving.proxy.server.tcp import TcpConnection  # noqa: PLC0415 - most systems have no such service

        await self._server.listen(
            (address, claim.port),
            self._handler,
            listener=Listener.PUBLIC.value,
            make=lambda server, wiring: TcpConnection(server, wiring, claim.host.encode()),
            shares_port=True,
        )

    def _report(self, claim: TcpClaim, why: str) -> None:
        if (claim, why) not in self._reported:
            self._reported.add((claim, why))
            _log.warning("tcp.unavailable", extra={"service": claim.route, "port": claim.port, "error": why})
