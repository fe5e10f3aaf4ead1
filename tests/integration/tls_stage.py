"""An authority with certificates for tests, and a TLS client with control over records and shutdown."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import trustme

from serving.core.settings.http import HttpSettings
from serving.net.proxy.tls.certificate import Pair
from serving.net.proxy.tls.keeper import Certificates
from serving.net.proxy.tls.layer import TlsLayer
from tests.integration.proxy.peers import STEP_S, Link, Proxy, Script, ok, proxied

AUTHORITY = trustme.CA()


def issued(*hosts: str, where: str = "here", **terms: Any) -> Pair:  # noqa: ANN401 - trustme's own
    """A new pair for these hosts."""
    leaf = AUTHORITY.issue_cert(*hosts, **terms)
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    return Pair(where=where, certificate_pem=chain, key_pem=leaf.private_key_pem.bytes())


def write_pair(certificate: Path, key: Path, *hosts: str) -> Pair:
    """Write a new pair into two files."""
    pair = issued(*hosts)
    certificate.write_bytes(pair.certificate_pem)
    key.write_bytes(pair.key_pem)
    return pair


def client_context(*protocols: str) -> ssl.SSLContext:
    """A client that trusts the authority, and offers these protocols."""
    context = ssl.create_default_context()
    # Python 3.11.2 sets this option, with which an end without close_notify looks like a regular one.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    AUTHORITY.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


class RawTls:
    """A TLS connection whose bytes the test controls. ``ssl`` has the negotiated values."""

    def __init__(self, link: Link, context: ssl.SSLContext, host: str | None) -> None:
        if host is None:
            context.check_hostname = False
        self.link = link
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @classmethod
    async def to(
        cls, address: tuple[str, int], host: str | None = "h", context: ssl.SSLContext | None = None
    ) -> "RawTls":
        """A connection with a completed handshake."""
        raw_tls = cls(await Link.to(address), context or client_context(), host)
        try:
            await raw_tls.shake()
        except BaseException:
            await raw_tls.link.closed()
            raise
        return raw_tls

    def hello(self) -> bytes:
        """The first bytes of a handshake."""
        # The handshake continues with the server's response.
        with contextlib.suppress(ssl.SSLWantReadError):
            self.ssl.do_handshake()
        return self._outgoing.read()

    async def shake(self) -> None:
        """Do the handshake."""
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                await self._more()
            except ssl.SSLError:
                self.flush()
                raise
            else:
                self.flush()
                return

    async def _more(self) -> None:
        async with asyncio.timeout(STEP_S):
            data = await self.link.reader.read(65_536)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def encrypted(self, data: bytes) -> bytes:
        """The encrypted form of these bytes."""
        self.ssl.write(data)
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        """Send bytes, encrypted."""
        self.link.send(self.encrypted(data))

    def flush(self) -> None:
        """Send the pending bytes of the library."""
        if self._outgoing.pending:
            self.link.send(self._outgoing.read())

    def send_close_notify(self) -> None:
        """Send close_notify."""
        # The library waits for the server's close_notify.
        with contextlib.suppress(ssl.SSLWantReadError):
            self.ssl.unwrap()
        self.flush()

    async def read(self) -> bytes:
        """Some bytes; empty after close_notify. Raises ``ssl.SSLError`` if the connection ends without close_notify."""
        while True:
            try:
                return self.ssl.read(65_536)
            except ssl.SSLWantReadError:
                await self._more()
            except ssl.SSLZeroReturnError:
                # Also raised after this side has sent close_notify.
                return b""

    async def until(self, end: bytes) -> bytes:
        """All bytes up to and including the first occurrence of these."""
        data = b""
        while not data.endswith(end):
            piece = await self.read()
            assert piece, data
            data += piece
        return data

    async def rest(self) -> bytes:
        """All bytes until close_notify."""
        data = b""
        while piece := await self.read():
            data += piece
        return data

    async def closed(self) -> None:
        """Close the connection."""
        await self.link.closed()


async def handshake(address: tuple[str, int], host: str | None, context: ssl.SSLContext | None = None) -> Sequence[str]:
    """The hosts of the certificate for this server name. Raises ``ssl.SSLError``."""
    raw_tls = await RawTls.to(address, host, context)
    try:
        certificate: dict[str, Any] = dict(raw_tls.ssl.getpeercert() or {})
        return [str(name[1]) for name in certificate["subjectAltName"]]
    finally:
        await raw_tls.closed()


@contextlib.asynccontextmanager
async def tls_proxied(
    script: Script = ok, settings: HttpSettings | None = None, *, handshake_max_s: float = 10.0
) -> AsyncIterator[tuple[Proxy, Certificates]]:
    """A proxy with a certificate for host "h" and an upstream; checks that no request state remains after the block."""
    certificates = Certificates(handshake_max_s=handshake_max_s)
    certificates.update({"h": issued("h")})
    terms = certificates.terms
    async with proxied(script, settings, make=lambda server, wiring: TlsLayer(server, wiring, terms)) as proxy:
        yield proxy, certificates
