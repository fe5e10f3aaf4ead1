"""TLS between daemons and pods, where both ends present a certificate of our authority.

``MutualTls`` has the contexts of one process. The certificate can be replaced at any time: new handshakes present the
new one, and existing connections continue. ``identity_of`` identifies the peer by the SPIFFE id of its certificate. The
authority's signature alone does not identify a peer, because every pod has a signed certificate.
"""

import asyncio
import os
import ssl
from collections import Counter
from typing import Any

import msgspec

from serving.core.model.identities import host_of
from serving.net.aio.netns import connected_socket, open_connection

NO_TLS = "no TLS"
"""Failure reason: the peer does not speak TLS."""

WRONG_IDENTITY = "wrong identity"
"""Failure reason: the peer's certificate is from our authority, but has an unexpected identity."""

# No server name is sent, because none is checked.
_NO_NAME = ""
# X509_V_ERR_* codes that the standard library does not name.
_NOT_YET_VALID, _EXPIRED = 9, 10
# 7: the signature is not by the named authority.
_OTHER_AUTHORITY = {2, 7, 18, 19, 20, 21}
# Failure reasons detected at this end, and those that the peer reports by an alert.
_REASONS = {
    "UNSUPPORTED_PROTOCOL": "older than TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "older than TLS 1.3",
    "NO_PROTOCOLS_AVAILABLE": "older than TLS 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "peer wants a certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "peer says expired",
    "TLSV1_ALERT_UNKNOWN_CA": "peer reports another authority",
    "SSLV3_ALERT_BAD_CERTIFICATE": "peer reports a bad certificate",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "HTTPS_PROXY_REQUEST": NO_TLS,
    "NO_SHARED_CIPHER": "no own certificate yet",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "no own certificate yet",
}


class MutualTls:
    """The TLS contexts of one process. It has no certificate until ``replace`` is called.

    ``failures`` counts refused handshakes by reason. ``turn`` is incremented with each new certificate.
    """

    def __init__(self, authority: str) -> None:
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, authority)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, authority)
        # Connections are long-lived, so sessions are never resumed; a ticket would outlive the certificate.
        self.server.num_tickets = 0
        self.failures: Counter[str] = Counter()
        self.turn = 0
        self.not_after_s = 0.0
        """Expiry of the certificate in unix seconds; 0 without one."""

    def replace(self, certificate: str, key: str, *, not_after_s: float) -> None:
        """Use another certificate from the next handshake on. Raises ``ssl.SSLError`` if it is invalid."""
        for context in (self.client, self.server):
            load_chain(context, certificate.encode(), key.encode())
        self.not_after_s = not_after_s
        self.turn += 1

    def make_certificates_optional(self) -> None:
        """Accept clients without a certificate; the protocol decides what they may request."""
        self.server.verify_mode = ssl.CERT_OPTIONAL


class DaemonQueries(msgspec.Struct, frozen=True, kw_only=True):
    """How a client without a certificate queries daemons: by plain HTTP, or by TLS that verifies the daemon's name."""

    context: ssl.SSLContext | None = None

    @classmethod
    def over_tls(cls, authority: str) -> "DaemonQueries":
        """Queries over TLS to daemons with a certificate of this authority (PEM). Raises ``ssl.SSLError``."""
        context = _context(ssl.PROTOCOL_TLS_CLIENT, authority)
        context.check_hostname = True
        return cls(context=context)

    @property
    def scheme(self) -> str:
        """The URL scheme."""
        return "http" if self.context is None else "https"

    def options(self, daemon: str) -> dict[str, Any]:
        """The aiohttp options for a request to the daemon with this SPIFFE id."""
        return {} if self.context is None else {"ssl": self.context, "server_hostname": host_of(daemon)}


def _context(protocol: int, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Certificates contain a SPIFFE id and no host, so ``identity_of`` replaces this check.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    return context


def load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate with its chain and key, both as PEM. Raises ``ssl.SSLError``.

    OpenSSL reads files only, so the certificate is passed as a file in memory.
    """
    descriptor = os.memfd_create("certificate")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(certificate + b"\n" + key)
        # Without a password, OpenSSL would ask the terminal for one.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=b"")
    finally:
        os.close(descriptor)


def identity_of(connection: Any) -> str:  # noqa: ANN401 - an SSLObject, or the one of a transport; None without TLS
    """The SPIFFE id in the peer's verified certificate; "" without a certificate, or if it has several ids."""
    certificate = connection.getpeercert() if connection is not None else None
    ids = [name for kind, name in (certificate or {}).get("subjectAltName", ()) if kind == "URI"]
    return ids[0] if len(ids) == 1 else ""


class PeerTls(msgspec.Struct, frozen=True, kw_only=True):
    """The local TLS contexts, and the SPIFFE id required of the peer (a prefix if it ends in a slash).

    ``takes_plain`` allows a peer without TLS.
    """

    tls: MutualTls
    expected: str
    takes_plain: bool = False


async def open_tls(
    host: str, port: int, secured: PeerTls, *, network: str = "", limit: int = 65_536
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open TLS streams from the network namespace at a path ("" is the current namespace).

    Raises:
        OSError: when the peer cannot be reached, the handshake fails, or the peer has another identity.
    """
    context = secured.tls.client
    try:
        if network:
            sock = await connected_socket(host, port, network=network)
            streams = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=_NO_NAME, limit=limit)
        else:
            streams = await asyncio.open_connection(host, port, ssl=context, server_hostname=_NO_NAME, limit=limit)
    except ssl.SSLError as error:
        reason = reason_of(error)
        if reason == NO_TLS and secured.takes_plain:
            return await open_connection(host, port, network=network)
        secured.tls.failures[reason] += 1
        raise ConnectionError(f"no TLS handshake with {host}:{port}: {reason}") from error
    try:
        check_peer(streams[1].get_extra_info("ssl_object"), secured)
    except OSError:
        streams[1].transport.abort()
        raise
    return streams


def check_peer(connection: Any, secured: PeerTls) -> None:  # noqa: ANN401 - as identity_of
    """Raise ``ConnectionError`` unless the peer has the expected identity."""
    identity = identity_of(connection)
    if not is_expected(identity, secured.expected):
        secured.tls.failures[WRONG_IDENTITY] += 1
        raise ConnectionError(f"the peer is {identity or 'without an identity'}, expected {secured.expected}")


def is_expected(identity: str, expected: str) -> bool:
    """Whether a SPIFFE id matches ``expected``, which is a prefix if it ends in a slash. An empty id never matches."""
    if not identity or not expected:
        return False
    return identity.startswith(expected) if expected.endswith("/") else identity == expected


def reason_of(error: ssl.SSLError) -> str:
    """The reason of a failed handshake, as a metric label."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == _EXPIRED:
            return "expired"
        if code == _NOT_YET_VALID:
            return "not yet valid"
        return "other authority" if code in _OTHER_AUTHORITY else "bad certificate"
    return _REASONS.get(error.reason or "", (error.reason or type(error).__name__).lower().replace("_", " "))
