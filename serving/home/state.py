"""The state folder of ``serving up``: its lock, secrets, paths, kubeconfig and the API's certificate.

The folder has mode 0700 and every secret 0600, because the API's token grants the right to run code on this machine.
The module imports only the standard library, because the supervisor uses it; only the first certificate needs another
library.
"""

import base64
import contextlib
import datetime as dt
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from serving.core.model.errors import Problem, SettingsError

if TYPE_CHECKING:
    import ssl

SECRET_FILES = ("key", "token", "dashboard-token", "query-token")
"""Files in a state folder with secrets, besides its certificates."""

BACKUP_PATH = "/backup/journal"
"""The API path that returns a copy of the journal."""

_VALID = dt.timedelta(days=3650)
# The clock may have been wrong when the folder was created.
_EARLIER = dt.timedelta(days=1)
_NAMES = ("localhost", "127.0.0.1", "::1")
_PRIVATE = 0o600
_AUTHORITY = "serving: authority of the local API"

_KEY_BYTES = 32
# RFC 6750. An empty token would match every request.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


class ApiCertificate:
    """The API server's certificate, key and authority, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = folder / "authority.crt"
        self._certificate = folder / "api.crt"
        self._key = folder / "api.key"

    def make(self) -> str:
        """Create missing files; return the authority's certificate in PEM. Raises ``OSError``."""
        if not all(path.exists() for path in (self.authority, self._certificate, self._key)):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write()
        return self.authority.read_text(encoding="ascii")

    def server_context(self) -> "ssl.SSLContext":
        """Create the server's TLS context. Raises ``OSError``."""
        import ssl  # noqa: PLC0415 - the supervisor has no use for OpenSSL

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # The server does not speak HTTP/2.
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _write(self) -> None:
        # Takes 0.1 s, and only the first start needs it.
        import ipaddress  # noqa: PLC0415 - as said

        from cryptography import x509  # noqa: PLC0415 - as said
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - as said
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as said
        from cryptography.x509.oid import NameOID  # noqa: PLC0415 - as said

        from serving.net.wire.authority import key_usage  # noqa: PLC0415 - as said

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
                .add_extension(key_usage(signs_certificates=is_authority), critical=True)
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
        # Last, because a folder without it counts as incomplete.
        authority = certificate(_AUTHORITY, signer, signer, is_authority=True)
        self.authority.write_bytes(authority.sign(signer, hashes.SHA256()).public_bytes(pem))


def kubeconfig(url: str, token: str, *, authority: str = "", namespace: str = "default") -> str:
    """The text of a kubeconfig, in JSON, which is valid YAML.

    ``url`` is the server's, such as "https://127.0.0.1:6080". ``authority`` is the certificate (PEM) that signs the
    server's.
    """
    name = "serving"
    trusted = {"certificate-authority-data": base64.b64encode(authority.encode()).decode()} if authority else {}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url.rstrip("/"), **trusted}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    return json.dumps(content, indent=2) + "\n"


def default_state_path() -> Path:
    """The default state folder: $XDG_STATE_HOME/serving, or ~/.local/state/serving."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "serving"


class StateFolder:
    """The paths in the state folder. ``hold`` locks it until this process ends; ``open`` creates missing files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secrets = tuple(path / name for name in SECRET_FILES)
        """The files of ``SECRET_FILES``; some may not exist."""
        self.key, self.token, self.dashboard_token, self.query_token = self.secrets
        self.kubeconfig = path / "kubeconfig"
        self.certificate = ApiCertificate(path / "certificates")
        self.ports = path / "ports.json"
        self.reload = path / "reload.json"
        self.journal = path / "journal.db"
        self.logs = path / "logs"
        self.pods = path / "pods"
        self.processes = path / "processes"
        self.snapshots = path / "snapshots"
        self.images = path / "images"
        self.acme = path / "acme"
        self.public = path / "public"
        """The domain of public hosts as text, if ``serving up --public`` names one."""
        self.volumes = path / "volumes"
        self.template = path / "template.sock"
        self.hosts = path / "names"
        self._lock_path = path / "lock"
        self._lock_fd: int | None = None

    def lock(self) -> None:
        """Create the folder and lock it.

        Raises:
            SettingsError: when another process, which is named, locks the folder, or when it cannot be created.
        """
        is_held = self._lock_fd is not None
        try:
            for folder in (self.path, self.logs, self.pods, self.processes):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_held:
                self._acquire_lock()
        except OSError as error:
            problem = Problem(
                where=str(error.filename), what=str(error.strerror), expected="a folder that can be written"
            )
            raise SettingsError([problem]) from error
        if not is_held:
            # Records of processes that ended with the folder's previous holder.
            for record in self.processes.iterdir():
                record.unlink()

    @property
    def lock_fd(self) -> int:
        """The descriptor of the folder's lock. The lock lasts until all copies of the descriptor are closed."""
        assert self._lock_fd is not None
        return self._lock_fd

    def holder(self) -> int | None:
        """The process that locks the folder; None if it is unlocked."""
        try:
            descriptor = os.open(self._lock_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode().strip()
            return int(text) if text.isdecimal() else None
        finally:
            os.close(descriptor)
        return None

    def open(self, api_url: str) -> None:
        """Create a missing key, tokens, certificate and kubeconfig in a locked folder. Raises ``SettingsError``."""
        # Clients import this module for its paths; only `serving up` needs secrets.
        import secrets  # noqa: PLC0415 - as above

        self.lock()
        if not self.key.exists():
            write_private(self.key, secrets.token_bytes(_KEY_BYTES))
        for token in (self.token, self.dashboard_token, self.query_token):
            if not token.exists():
                write_private(token, secrets.token_urlsafe(_KEY_BYTES).encode())
            elif not _TOKEN.fullmatch(token.read_bytes()):
                expected = "letters, digits and -._~+/ in one line without its end; without the file a new one is made"
                raise SettingsError([Problem(where=str(token), what="not a bearer token", expected=expected)])
        authority = self.certificate.make()
        write_private(self.kubeconfig, kubeconfig(api_url, self.token.read_text(), authority=authority).encode())

    def read_ports(self) -> dict[str, int]:
        """The ports by name. Raises ``OSError`` or ``ValueError`` if there is no valid file."""
        ports: dict[str, int] = json.loads(self.ports.read_text())
        return ports

    def write_ports(self, ports: Mapping[str, int]) -> None:
        """Write the ports by name, for later ``read_ports``."""
        write_private(self.ports, json.dumps(ports).encode())

    def service_url(self, port: int, *, scheme: str = "http") -> str:
        """The pattern of services' URLs, such as "http://NAME.NAMESPACE.localhost:8080"."""
        domain = self.public.read_text() if self.public.exists() else ""
        where = "" if port == {"http": 80, "https": 443}[scheme] else f":{port}"
        return f"{scheme}://NAME.NAMESPACE.{domain or 'localhost'}{where}"

    def listen_template(self) -> socket.socket:
        """The listening socket for orders to the process template. The folder must be locked."""
        self.template.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with short_path(self.template) as path:
            listener.bind(path)
        listener.listen()
        return listener

    def _acquire_lock(self) -> None:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            what = f"process {holder} holds this state folder"
            problem = Problem(
                where=str(self.path), what=what, expected="one `serving up` at a time, or another --state"
            )
            raise SettingsError([problem]) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock_fd = descriptor


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short equivalent of a path, because the path of a unix socket has at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """A context that adds a path to an ``OSError`` without one, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.rename(path)
