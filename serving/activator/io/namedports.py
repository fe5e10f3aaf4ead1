"""Listens on the short-name addresses of services, such as ``http://api:8080/``, for pods of one machine.

Input: changed routes. Effect: an open listener at each port that a route requests, at one address per namespace. Only a
single machine has these listeners. The address identifies the namespace in which the client's resolver or hosts file
has completed the name. Pods with a separate network call addresses behind their gateway. Pods in the machine's network
call loopback addresses.
"""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Collection, Mapping

import msgspec

from serving.activator.routing.hostclaims import ServedRoute
from serving.activator.routing.sites import Listener
from serving.core.model.routehosts import machine_gateway, named_address
from serving.core.model.routepolicy import route_policy
from serving.net.aio.supervise import supervise
from serving.net.proxy.forwarding.exchange import Handler, Wiring
from serving.net.proxy.server.listener import HttpServer

_log = logging.getLogger(__name__)
# Retry, because another program may release the port.
_RETRY_S = 5.0
# Names of the inherited sockets at the pods' gateway.
_INNER_OF_PODS = "inner-pods-"
_LOOPBACK = "127.0.0.1"


class NamedPort(msgspec.Struct, frozen=True, kw_only=True):
    """A service that pods of its Kubernetes namespace reach as ``name``:``port``, without a domain.

    ``is_tcp``: the port accepts TCP connections (``serving.dev/tcp``) rather than HTTP requests.
    """

    name: str
    namespace: str
    port: int
    is_tcp: bool = False


class NamedPorts:
    """Listens for services that pods call by a short name and a port. Listeners of removed services stay open.

    ``make`` creates the protocol of a connection.
    """

    def __init__(
        self, server: HttpServer, handler: Handler, *, make: Callable[[HttpServer, Wiring], asyncio.Protocol]
    ) -> None:
        self._server = server
        self._handler = handler
        self._make = make
        self.claims: dict[str, NamedPort] = {}
        self._open: set[tuple[str, int]] = set()
        self._refused: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()

    def set(self, route: str, facts: ServedRoute | None) -> None:
        """Update a route, or remove it with None."""
        before = self.claims.pop(route, None)
        if facts is None:
            return
        policy = route_policy(facts.metadata.annotations or {})
        port = policy.named_port
        if port:
            self.claims[route] = NamedPort(
                name=facts.metadata.name,
                namespace=facts.metadata.namespace,
                port=port,
                is_tcp=any(tcp.number == port and not tcp.is_tls for tcp in policy.tcp_ports),
            )
            if self.claims[route] != before:
                self._changed.set()

    def with_named(self, other: Callable[[str, ServedRoute | None], None]) -> Callable[[str, ServedRoute | None], None]:
        """A function that updates a route here and in ``other``."""

        def both(route: str, facts: ServedRoute | None) -> None:
            other(route, facts)
            self.set(route, facts)

        return both

    async def run(self, sockets: Mapping[str, socket.socket], stop: asyncio.Event) -> None:
        """Listen on the named ports of all routes until ``stop`` is set.

        ``sockets`` are the sockets of ``serving up``, by name. Below each gateway at which pods reach the inner
        listener, each namespace with named services has an address, which namespaces may share. These addresses serve
        the named ports and the ports of the inner listener.
        """
        gateways: dict[str, set[int]] = {}
        for name, sock in sockets.items():
            if not name.startswith(Listener.INNER):
                continue
            host, port = sock.getsockname()[:2]
            if name.startswith(_INNER_OF_PODS):
                gateways.setdefault(host, set()).add(port)
            elif host == _LOOPBACK:
                gateways[machine_gateway(port)] = {port}
        if gateways:
            await self.serve(gateways, stop)

    async def serve(self, gateways: Mapping[str, Collection[int]], stop: asyncio.Event) -> None:
        """Listen at the addresses of all namespaces until ``stop`` is set.

        ``gateways`` has, by gateway address, the ports that are served in addition to the named ports.
        """
        async with supervise() as group:
            syncing = group.start(self._sync(gateways), name="named ports")
            await stop.wait()
            syncing.cancel()

    async def _sync(self, gateways: Mapping[str, Collection[int]]) -> None:
        has_failed = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if has_failed else None):
                    await self._changed.wait()
            self._changed.clear()
            for gateway, ports in gateways.items():
                for claim in list(self.claims.values()):
                    address = named_address(gateway, claim.namespace)
                    for port in {claim.port, *ports}:
                        if (address, port) not in self._open and not self._server.draining:
                            await self._listen(gateway, address, port)
            has_failed = any(not self._open.issuperset(self._wanted(gateway)) for gateway in gateways)

    def _wanted(self, gateway: str) -> Collection[tuple[str, int]]:
        return {(named_address(gateway, claim.namespace), claim.port) for claim in self.claims.values()}

    async def _listen(self, gateway: str, address: str, port: int) -> None:
        full = functools.partial(self.full_host, gateway, address)

        def make(server: HttpServer, wiring: Wiring) -> asyncio.Protocol:
            named = msgspec.structs.replace(wiring, full_host=full)
            claim = self.tcp_claim(gateway, address, port)
            if claim is None:
                return self._make(server, named)
            from serving.net.proxy.server.tcp import TcpConnection  # noqa: PLC0415 - most systems have no such service

            return TcpConnection(server, named, host=f"{claim.name}.{claim.namespace}".encode(), port=port)

        try:
            await self._server.listen(
                (address, port),
                self._handler,
                listener=Listener.INNER.value,
                make=make,
                shares_port=True,
            )
        except OSError as error:
            # A failed listener is retried.
            if (address, port) not in self._refused:
                _log.warning("named.unavailable", extra={"address": f"{address}:{port}", "error": str(error)})
            self._refused.add((address, port))
        else:
            self._open.add((address, port))

    def tcp_claim(self, gateway: str, address: str, port: int) -> NamedPort | None:
        """The TCP service at the address of a namespace and a port; None if there is none.

        Several namespaces may share an address: the first service by name then gets the connections.
        """
        claims = (
            claim
            for claim in self.claims.values()
            if claim.is_tcp and claim.port == port and named_address(gateway, claim.namespace) == address
        )
        return min(claims, key=lambda claim: claim.name, default=None)

    def full_host(self, gateway: str, address: str, host: str) -> str:
        """The host with the namespace that ``address`` belongs to: "api:8080" gives "api.default".

        ``host`` is unchanged unless exactly one service of this name has the address.
        """
        name = host.partition(":")[0].lower()
        namespaces = [
            claim.namespace
            for claim in self.claims.values()
            if claim.name == name and named_address(gateway, claim.namespace) == address
        ]
        return f"{name}.{namespaces[0]}" if len(namespaces) == 1 else host
