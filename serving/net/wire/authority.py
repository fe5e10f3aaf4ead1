"""Issues certificates of daemons and pods, by an authority whose key is derived from the cluster key.

Input: the cluster key, a SPIFFE id and the time; output: PEM. The authority is a function of the cluster key: every
holder of that key derives the same authority, which is therefore neither stored nor exchanged. Its certificate always
has the same bytes, because Ed25519 signs without randomness. Leaf keys are random and on P-256, whose signature is the
cheapest in a handshake.

Only issuers import this module: cryptography takes 60 ms of a start and is not in the queue-proxy's image.
"""

import datetime as dt
import hashlib
import hmac

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serving.core.model.identities import DAEMONS, TRUST_DOMAIN, host_of

SKEW_MAX_S = 300.0
"""Tolerated lag of a peer's clock behind the issuer's, in seconds. Certificates are valid from this long before now."""

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "serving inner authority")])
_PURPOSE = b"authority"
# The authority is valid as long as the cluster key: RFC 5280, section 4.1.2.5, has this date for "no expiration".
_FROM = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_UNTIL = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with its key as PEM, the authority's certificate, and the expiry in unix seconds."""

    certificate: str
    key: str
    authority: str
    not_after_s: float


class Authority:
    """A certificate authority whose key is derived from the cluster key, so that all daemons have the same one."""

    def __init__(self, key: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(hmac.new(key, _PURPOSE, hashlib.sha256).digest())
        public = self._key.public_key()
        self._key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
        built = (
            x509.CertificateBuilder()
            .subject_name(_NAME)
            .issuer_name(_NAME)
            .public_key(public)
            .serial_number(1)
            .not_valid_before(_FROM)
            .not_valid_after(_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.NameConstraints([x509.UniformResourceIdentifier(TRUST_DOMAIN)], None),
                critical=True,
            )
        )
        self.certificate = built.sign(self._key, None).public_bytes(Encoding.PEM).decode()
        """The authority's certificate as PEM, which is public."""

    def issue(self, identity: str, *, now_s: float, life_s: float) -> IssuedCertificate:
        """Issue a certificate with a new key for a SPIFFE id, valid for ``life_s`` seconds.

        A daemon's certificate also names its host.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName(host_of(identity))] if identity in DAEMONS else []
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity), *hosts])
        until_s = int(now_s + life_s)
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(_NAME)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(dt.datetime.fromtimestamp(now_s - SKEW_MAX_S, dt.UTC))
            .not_valid_after(dt.datetime.fromtimestamp(until_s, dt.UTC))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(self._key_id, critical=False)
            # Without a subject the alternative name is critical: RFC 5280, section 4.2.1.6.
            .add_extension(names, critical=True)
        )
        return IssuedCertificate(
            certificate=built.sign(self._key, None).public_bytes(Encoding.PEM).decode(),
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            authority=self.certificate,
            not_after_s=float(until_s),
        )


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """The key usage of an authority's certificate, or of an identity's."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
