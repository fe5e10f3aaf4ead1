"""Inner TLS of an activator: connections to pods and autoscalers, and those to its inner listener."""

import asyncio
from collections.abc import Callable, Mapping

from serving.activator.io.prober import PodProber
from serving.activator.queueing.slices import PodEndpoints
from serving.activator.routing.sites import Listener
from serving.core.model.identities import ACTIVATOR, AUTOSCALER
from serving.core.settings.innertls import InnerTlsSettings
from serving.net.aio.mutualtls import PeerTls
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.server.connection import Connection
from serving.net.proxy.server.listener import HttpServer
from serving.net.proxy.tls.connector import RefusalLog, TlsConnector
from serving.net.proxy.tls.front import TlsFront
from serving.net.proxy.tls.layer import TlsLayer, TlsTerms
from serving.net.wire.issuing import DaemonTls


class InnerWays:
    """Connects to pods and autoscalers over TLS, and accepts both TLS and plain HTTP on the inner listener.

    Clients of that listener may present a certificate: autoscalers do, pods may. All connections are plain if the settings
    disable TLS. ``environment`` supplies the mode if the settings have none.
    """

    def __init__(
        self, key: bytes, settings: InnerTlsSettings, server: HttpServer, *, environment: Mapping[str, str]
    ) -> None:
        resolved = settings.resolved(environment)
        self.secured = DaemonTls(key, ACTIVATOR, resolved) if resolved.is_on else None
        self._server = server
        if self.secured is not None:
            self.secured.tls.make_certificates_optional()
            self._refusals = RefusalLog(self.secured.tls)
            self._terms = TlsTerms(
                context=self.secured.tls.server,
                handshake_max_s=server.settings.head_wait_max_s,
                failures=self.secured.tls.failures,
                takes_plain=True,
                is_mutual=True,
                on_failure=self._refusals.log,
            )

    @property
    def to_autoscaler(self) -> PeerTls | None:
        """The TLS parameters of connections to an autoscaler; None without TLS."""
        return None if self.secured is None else self.secured.to(AUTOSCALER)

    def reach(self, endpoints: PodEndpoints, prober: PodProber) -> None:
        """Send requests and probes to these pods over TLS, and verify the identity expected at each address."""
        secured = self.secured
        if secured is not None:
            takes_plain = not secured.settings.is_strict
            expected, refusals = endpoints.identity_at, self._refusals
            # Before the first request: HTTP/2 connections use the same connector.
            self._server.pool.connector = TlsConnector(
                secured.tls, expected=expected, takes_plain=takes_plain, refusals=refusals
            )
            prober.secured_to = lambda address: secured.to(endpoints.identity_at(address))

    def front_of(self, listener: Listener) -> Callable[[HttpServer, Wiring], asyncio.Protocol]:
        """The protocol factory for connections to a listener."""
        if self.secured is None or listener is not Listener.INNER:
            return Connection
        return lambda server, wiring: TlsLayer(server, wiring, self._terms)

    @property
    def front_of_pages(self) -> Callable[[Callable[[], asyncio.Protocol]], asyncio.Protocol] | None:
        """A wrapper that accepts both TLS and plain HTTP for the metrics page; None without TLS."""
        if self.secured is None:
            return None
        context, refusals = self.secured.tls.server, self._refusals
        return lambda make: TlsFront(context, make, refusals=refusals)

    async def keep_valid(self) -> None:
        """Renew the certificate until cancelled."""
        if self.secured is not None:
            await self.secured.keep_valid()
