"""Listens at the TCP ports that services declare.

Input: changed routes. A plain port belongs to the oldest route with a public host that declares it. Several routes may
declare one TLS port; the server name of a connection selects the route. Effect: an open listener for each declared
port. Open connections continue after their listener is closed. Binding a port is retried after a failure. The log and
Events about the Service report the open ports, and why others are not open.
"""

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING

import msgspec

from serving.activator.io.ingress import Ingress
from serving.activator.routing.hostclaims import RouteOwner, ServedRoute
from serving.activator.routing.sites import Listener
from serving.core.model.routepolicy import route_policy
from serving.net.aio.clock import stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.net.cluster.port import Cluster
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.server.listener import HttpServer

if TYPE_CHECKING:
    from serving.net.cluster.events import EventRecorder

_log = logging.getLogger(__name__)
# Retry, because another program may release the port.
_RETRY_S = 5.0
# Events expire; in most clusters after an hour.
_REPEAT_S = 600.0
_PRIVILEGED_END = 1024


class TcpClaim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A route's claim on a TCP port, made at the time ``since``. The oldest claim wins the port.

    ``host`` is the route's public host. ``is_tls``: the activator terminates TLS at the port; claims with TLS share it.
    """

    since: str
    route: str
    port: int
    host: str
    is_tls: bool = False


def tcp_claims_of(facts: ServedRoute) -> tuple[TcpClaim, ...]:
    """The port claims of a route; none if it declares no port or has no public host."""
    policy = route_policy(facts.metadata.annotations or {})
    host = next((host for host in facts.hosts if host.is_public and not host.tag), None)
    if host is None:
        return ()
    return tuple(
        TcpClaim(since=host.since, route=facts.key, port=port.number, host=host.host, is_tls=port.is_tls)
        for port in policy.tcp_ports
    )


class TcpListeners:
    """The TCP listeners of an activator. ``ingress`` receives connections as exchanges; ``name`` is the activator's."""

    def __init__(self, server: HttpServer, ingress: Ingress, cluster: Cluster, *, name: str) -> None:
        self._server = server
        self._ingress = ingress
        self._cluster = cluster
        self._events: EventRecorder | None = None
        self._name = name
        self._claims: dict[str, tuple[TcpClaim, ...]] = {}
        self._services: dict[str, RouteOwner] = {}
        # The winning claim by port; None if several TLS claims share it.
        self._open: dict[int, TcpClaim | None] = {}
        self._sharing: dict[int, set[str]] = {}
        self._reported: dict[TcpClaim, tuple[str, float]] = {}
        self._changed = asyncio.Event()

    def set(self, route: str, facts: ServedRoute | None) -> None:
        """Update a route, or remove it with None."""
        claims = () if facts is None else tcp_claims_of(facts)
        before = self._claims.pop(route, ())
        self._services.pop(route, None)
        if facts is not None and claims:
            self._claims[route], self._services[route] = claims, facts.service
        if claims != before:
            self._changed.set()

    async def run(self, address: str, stop: asyncio.Event) -> None:
        """Open and close listeners at ``address`` as routes claim ports, until ``stop`` is set."""
        async with supervise() as tasks:
            stopped = tasks.start_background(stop.wait(), name="tcp stop")
            while not stop.is_set():
                outcome = await self._settle(address)
                for claim, problem in self._due_reports(outcome, now_s=asyncio.get_running_loop().time()):
                    await self._report(claim, problem)
                changed = tasks.start_background(self._changed.wait(), name="tcp change")
                timeout_s = _RETRY_S if any(outcome.values()) else None
                await asyncio.wait([stopped, changed], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()

    async def _settle(self, address: str) -> dict[TcpClaim, str]:
        """Open and close listeners; return the problem of each claim, "" if it has its port."""
        self._changed.clear()
        problems: dict[TcpClaim, str] = {}
        if self._server.draining:
            # Another process listens now, or none will soon.
            return problems
        owners: dict[int, TcpClaim] = {}
        sharing: dict[int, set[str]] = {}
        # More claims may arrive while a listener is opened.
        claims = sorted(claim for claims in self._claims.values() for claim in claims)
        for claim in claims:
            owner = owners.setdefault(claim.port, claim)
            if owner.is_tls and claim.is_tls:
                sharing.setdefault(claim.port, set()).add(claim.route)
            elif owner is not claim:
                problems[claim] = _taken_by(owner)
        self._sharing = sharing
        wanted = {port: None if owner.is_tls else owner for port, owner in owners.items()}
        for port in list(self._open):
            if port not in wanted or wanted[port] != self._open[port]:
                self._server.close_listeners((address, port))
                del self._open[port]
        for port in wanted.keys() - self._open.keys():
            try:
                await self._listen(address, owners[port])
            except OSError as error:
                why = _problem(error, address, port)
                problems |= {claim: why for claim in claims if claim.port == port and claim not in problems}
            else:
                self._open[port] = wanted[port]
        return {claim: problems.get(claim, "") for claim in claims}

    async def _listen(self, address: str, claim: TcpClaim) -> None:
        from serving.net.proxy.server.tcp import SharedConnection, TcpConnection  # noqa: PLC0415 - most systems have no such service

        port = claim.port

        def make(server: HttpServer, wiring: Wiring) -> asyncio.Protocol:
            if claim.is_tls:
                return SharedConnection(server, wiring, port=port, is_served=lambda host: self._is_served(port, host))
            return TcpConnection(server, wiring, host=claim.host.encode(), port=port)

        await self._server.listen(
            (address, port), self._ingress, listener=Listener.PUBLIC.value, make=make, shares_port=True
        )

    def _is_served(self, port: int, host: str) -> bool:
        site = self._ingress.routes.find(Listener.PUBLIC, host)
        return site is not None and site.route in self._sharing.get(port, ())

    def _due_reports(self, outcome: dict[TcpClaim, str], *, now_s: float) -> list[tuple[TcpClaim, str]]:
        """Claims to report: claims whose problem has changed ("" is none), and claims last reported long ago."""
        before, self._reported = self._reported, {}
        due: list[tuple[TcpClaim, str]] = []
        for claim, problem in outcome.items():
            known, since_s = before.get(claim, (None, now_s))
            is_due = known != problem or bool(problem and now_s - since_s >= _REPEAT_S)
            self._reported[claim] = (problem, now_s if is_due else since_s)
            if is_due:
                due.append((claim, problem))
        return due

    async def _report(self, claim: TcpClaim, problem: str) -> None:
        from serving.core.model.event import About  # noqa: PLC0415 - as above
        from serving.core.model.tcpevents import tcp_event  # noqa: PLC0415 - as above
        from serving.net.cluster.events import EventRecorder  # noqa: PLC0415 - most systems have no such service

        fields = {"service": claim.route, "port": claim.port}
        if problem:
            _log.warning("tcp.unavailable", extra={**fields, "error": problem})
        else:
            _log.info("tcp.listening", extra=fields)
        service = self._services.get(claim.route)
        if service is None:
            return
        if self._events is None:
            self._events = EventRecorder(self._cluster)
        about = About(
            api_version=SERVING_SERVICE.api_version,
            kind=service.kind,
            namespace=claim.route.partition("/")[0],
            name=service.name,
            uid=service.uid,
        )
        await self._events.record(tcp_event(about, claim.port, problem=problem, now=stamp(), instance=self._name))


def _taken_by(owner: TcpClaim) -> str:
    share = f", or share it as {owner.port}/tls" if owner.is_tls else ""
    return f"port {owner.port} belongs to {owner.route}, which asked for it first; choose another{share}"


def _problem(error: OSError, address: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program listens at port {port} of {address}; stop it, or choose another port"
    if error.errno in (errno.EACCES, errno.EPERM) and port < _PRIVILEGED_END:
        return f"the activator may not listen at port {port}; choose one from {_PRIVILEGED_END}, or grant it NET_BIND_SERVICE"
    return f"cannot listen at port {port} of {address}: {os.strerror(error.errno) if error.errno else error}"
