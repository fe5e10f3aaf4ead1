"""The certificate of the local API, signed by an authority of its own that only signs this one.

Made once for each state folder. The authority's key is thrown away: a new certificate comes with a new authority, and
the kubeconfig has it.
"""

import datetime as dt
import ssl
from pathlib import Path

_VALID = dt.timedelta(days=3650)
# A clock that was wrong when the folder was made.
_EARLIER = dt.timedelta(days=1)
_NAMES = ("localhost", "127.0.0.1", "::1")
_PRIVATE = 0o600
_AUTHORITY = "serving: authority of the local API"


class ApiCertificate:
    """The files of the certificate, its key and its authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = folder / "authority.crt"
        self._certificate, self._key = folder / "api.crt", folder / "api.key"

    def __repr__(self) -> str:
        return f"ApiCertificate({str(self._folder)!r})"

    def make(self) -> str:
        """Make what is missing; the authority in PEM. Raises ``OSError``."""
        if not all(path.exists() for path in (self.authority, self._certificate, self._key)):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write()
        return self.authority.read_text(encoding="ascii")

    def server_context(self) -> ssl.SSLContext:
        """The context of the server. Raises ``OSError``."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # The server speaks no HTTP/2.
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _write(self) -> None:
        # 0.1 s, and only the first start needs it.
        import ipaddress  # noqa: PLC0415 - as said

        from cryptography import x509  # noqa: PLC0415 - as said
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - as said
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as said
        from cryptography.x509.oid import NameOID  # noqa: PLC0415 - as said

        def certificate(
            subject: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, *, is_authority: bool
        ) -> x509.CertificateBuilder:
            now = dt.datetime.now(dt.UTC)
            return (
                x509.CertificateBuilder()
                .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
                .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - _EARLIER)
                .not_valid_after(now + _VALID)
                .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
                .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .add_extension(_usage(is_authority=is_authority), critical=True)
            )

        def _usage(*, is_authority: bool) -> x509.KeyUsage:
            return x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            )

        signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[-1].isdigit() else x509.DNSName(name) for name in _NAMES
        ]
        server = certificate("serving: local API", key, signer, is_authority=False)
        server = server.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self._key.touch(_PRIVATE)
        self._key.write_bytes(private)
        self._certificate.write_bytes(server.sign(signer, hashes.SHA256()).public_bytes(pem))
        # Last: a folder without it is not complete.
        authority = certificate(_AUTHORITY, signer, signer, is_authority=True)
        self.authority.write_bytes(authority.sign(signer, hashes.SHA256()).public_bytes(pem))
