"""Loads certificates with their keys from PEM, and selects one by server name.

The names are read in a handshake in memory, which also proves that the certificate matches its key. An expired
certificate is served and reported, because it shows clients the cause better than a missing one. Keys with a password
are rejected. Raises ``InvalidCertificate`` with the reason.
"""

import ssl
import typing
from collections.abc import Iterable

import msgspec

from serving.core.model.errors import InvalidCertificate
from serving.net.aio.mutualtls import load_chain

# Names in order of preference.
_ALPN = ("h2", "http/1.1")
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the standard library does not name.
_NO_CHECK_TIME = 0x200000
# A handshake in memory takes two steps of each side.
_TURNS = 4
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key is not this certificate's",
    "KEY_TYPE_MISMATCH": "the key is not this certificate's",
    "EE_KEY_TOO_SMALL": "the key is too small",
    "CA_MD_TOO_WEAK": "its signature is too weak",
}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a certificate. ``name`` identifies it here; ``not_after_s`` is its expiry in unix seconds."""

    name: str
    hosts: tuple[str, ...]
    not_after_s: float


class CertificateChoice:
    """Selects a certificate by server name. ``default`` is used if the client sends no known name."""

    __slots__ = ("_default", "_exact", "_wildcards")

    def __init__(self, identities: Iterable[Identity], *, default: str = "") -> None:
        self._exact: dict[str, str] = {}
        self._wildcards: dict[str, str] = {}
        self._default: str | None = None
        # The last one written wins: the one valid longest, and among equals the first by name.
        known = sorted(identities, key=lambda identity: identity.name, reverse=True)
        for identity in sorted(known, key=lambda identity: identity.not_after_s):
            if identity.name == default:
                self._default = default
            for host in identity.hosts:
                plain = _plain(host)
                if plain.startswith("*."):
                    self._wildcards[plain[2:]] = identity.name
                else:
                    self._exact[plain] = identity.name

    def find(self, server_name: str | None) -> str | None:
        """The certificate for a server name; None makes the handshake fail.

        Example: certificate 1 has "a.example" and certificate 2 has "*.example". "A.example." selects 1, "b.example"
        selects 2, and "c.b.example" selects neither.
        """
        return self.known(server_name) or self._default

    def known(self, server_name: str | None) -> str | None:
        """The certificate that has a server name; None if there is none."""
        plain = _plain(server_name or "")
        _, _, parent = plain.partition(".")
        return self._exact.get(plain) or self._wildcards.get(parent)


def _plain(host: str) -> str:
    return host.removesuffix(".").lower()


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with its chain, and its key, both in PEM. ``where`` is its origin, for messages.

    ``hosts`` are the hosts for which the certificate is served; None uses the certificate's names.
    """

    where: str
    certificate_pem: bytes
    key_pem: bytes
    hosts: tuple[str, ...] | None = None


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded certificate."""

    identity: Identity
    context: ssl.SSLContext
    pair: Pair


def new_context() -> ssl.SSLContext:
    """Create a server context: TLS 1.2 or newer, HTTP/2 preferred, no renegotiation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(_ALPN)
    return context


def load_certificate(name: str, pair: Pair) -> Certificate:
    """Load and check a certificate.

    Raises:
        InvalidCertificate: with the certificate's origin and the problem.
    """
    if _CERTIFICATE not in pair.certificate_pem:
        raise InvalidCertificate(where=pair.where, reason="there is no certificate as PEM in the certificate's file")
    if _KEY not in pair.key_pem:
        raise InvalidCertificate(where=pair.where, reason="there is no key as PEM in the key's file")
    context = new_context()
    _load_chain(context, pair)
    facts = _facts_of(context, pair)
    names = facts.get("subjectAltName", ())
    if not names and pair.hosts is None:
        raise InvalidCertificate(where=pair.where, reason="it names no host (subjectAltName)")
    # A client that connects to an address sends no server name: such a certificate can only be the default.
    named = tuple(text for kind, text in names if kind == "DNS")
    hosts = named if pair.hosts is None else pair.hosts
    identity = Identity(name=name, hosts=hosts, not_after_s=float(ssl.cert_time_to_seconds(facts["notAfter"])))
    return Certificate(identity=identity, context=context, pair=pair)


def _load_chain(context: ssl.SSLContext, pair: Pair) -> None:
    try:
        load_chain(context, pair.certificate_pem, pair.key_pem)
    except ssl.SSLError as error:
        is_encrypted = b"ENCRYPTED" in pair.key_pem
        reason = "the key has a password" if is_encrypted else _REASONS.get(error.reason or "", "")
        text = reason or f"the certificate or the key cannot be read ({error.reason or 'damaged PEM'})"
        raise InvalidCertificate(where=pair.where, reason=text) from error


def _facts_of(context: ssl.SSLContext, pair: Pair) -> dict[str, typing.Any]:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # It is its own authority here, with any issuer and at any time.
    client.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    client.load_verify_locations(cadata=pair.certificate_pem.decode("ascii", "replace"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True))
    try:
        for turn in range(_TURNS):
            try:
                ends[turn % 2].do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or _REASONS.get(error.reason or "") or str(error.reason)
        raise InvalidCertificate(where=pair.where, reason=reason) from error
    return ends[0].getpeercert() or {}
