"""Inner TLS of an activator: outgoing connections to pods and autoscalers, and the inner listener."""

import asyncio
import ssl
from collections.abc import Callable, Mapping

import msgspec

from serving.activator.queueing.slices import PodEndpoints
from serving.activator.routing.sites import Listener
from serving.core.model.identities import ACTIVATOR, AUTOSCALER
from serving.core.settings.innertls import InnerTlsSettings
from serving.net.aio.mutualtls import PeerTls
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.http1.pool import Connector, PlainConnector, UpstreamProtocol
from serving.net.proxy.http1.upstream import Address
from serving.net.proxy.server.connection import Connection
from serving.net.proxy.server.listener import HttpServer
from serving.net.proxy.tls.connector import RefusalLog, TlsConnector, open_client
from serving.net.proxy.tls.front import TlsFront
from serving.net.proxy.tls.keeper import Certificates
from serving.net.proxy.tls.layer import TlsLayer, TlsTerms
from serving.net.wire.issuing import DaemonTls


class InnerWays:
    """Opens TLS connections to pods and autoscalers, and accepts both TLS and plain HTTP on the inner listener.

    Autoscalers present a certificate to that listener; pods may present one. Connections are plain if the settings
    disable inner TLS. ``local`` are the certificates of cluster-local hosts; with them the listener also accepts TLS if
    inner TLS is disabled. ``environment`` supplies the mode of inner TLS if the settings have none. A handshake may
    take ``handshake_max_s`` seconds.
    """

    def __init__(
        self,
        key: bytes,
        settings: InnerTlsSettings,
        endpoints: PodEndpoints,
        *,
        handshake_max_s: float,
        environment: Mapping[str, str],
        local: Certificates | None,
    ) -> None:
        resolved = settings.resolved(environment)
        self.secured = DaemonTls(key, ACTIVATOR, resolved) if resolved.is_on else None
        self._endpoints = endpoints
        self._terms = None if local is None else msgspec.structs.replace(local.terms, takes_plain=True)
        if self.secured is not None:
            self.secured.tls.make_certificates_optional()
            if local is not None:
                local.add_to(self.secured.tls.server)
            self._refusals = RefusalLog(self.secured.tls)
            self._terms = TlsTerms(
                context=self.secured.tls.server,
                handshake_max_s=handshake_max_s,
                failures=self.secured.tls.failures,
                takes_plain=True,
                is_mutual=True,
                on_failure=self._refusals.log,
            )

    @property
    def to_autoscaler(self) -> PeerTls | None:
        """TLS parameters of connections to an autoscaler; None without TLS."""
        return None if self.secured is None else self.secured.to(AUTOSCALER)

    def to_pod(self, address: tuple[str, int]) -> PeerTls | None:
        """TLS parameters of a probe of the pod at an address; None without TLS."""
        return None if self.secured is None else self.secured.to(self._endpoints.identity_at(address))

    def connector(self) -> Connector:
        """The connector for pods: TLS with a verified identity, or plain; apps use the scheme of their Service."""
        if self.secured is None:
            return PodConnector(self._endpoints, PlainConnector())
        secured = TlsConnector(
            self.secured.tls,
            expected=self._endpoints.identity_at,
            takes_plain=not self.secured.settings.is_strict,
            refusals=self._refusals,
        )
        return PodConnector(self._endpoints, secured)

    def front_of(self, listener: Listener) -> Callable[[HttpServer, Wiring], asyncio.Protocol]:
        """The protocol factory for a listener's connections."""
        terms = self._terms
        if terms is None or listener is not Listener.INNER:
            return Connection
        return lambda server, wiring: TlsLayer(server, wiring, terms)

    @property
    def front_of_pages(self) -> Callable[[Callable[[], asyncio.Protocol]], asyncio.Protocol] | None:
        """A wrapper that makes the metrics page accept both TLS and plain HTTP; None without TLS."""
        if self.secured is None:
            return None
        context, refusals = self.secured.tls.server, self._refusals
        return lambda make: TlsFront(context, make, refusals=refusals)

    async def renew(self) -> None:
        """Renew the certificate until cancelled."""
        if self.secured is not None:
            await self.secured.renew()


class PodConnector:
    """Connects to queue-proxies with ``inner``, and to apps with the scheme of their Service's port.

    An app's certificate is not verified, because it is issued for names and not for a pod's address.
    """

    def __init__(self, endpoints: PodEndpoints, inner: Connector) -> None:
        self.attempts_max = inner.attempts_max
        self._endpoints = endpoints
        self._inner = inner
        self._plain = PlainConnector()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    @property
    def turn(self) -> int:
        """A counter that each new inner TLS certificate increments."""
        return self._inner.turn

    async def connect(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        """Implements ``serving.net.proxy.http1.pool.Connector``."""
        scheme = self._endpoints.scheme_at(address)
        if scheme == "https":
            return await open_client(self._context, make, address)
        return await (self._plain if scheme else self._inner).connect(make, address)
