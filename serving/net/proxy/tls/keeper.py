"""Keeps the served certificates, and replaces them from files and Secrets.

``update`` gets all pairs of the sources by name, or the reason that a pair could not be read. An unchanged pair stays.
A new pair is checked, and served from the next handshake on. An invalid pair is logged once, and the last valid one
stays. A pair that its source no longer has is dropped. Existing connections are not affected. ``update`` may run in
another thread, because a handshake reads a single reference.
"""

import logging
import os
import ssl
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from serving.core.model.errors import InvalidCertificate
from serving.net.aio.clock import stamp, wall_s
from serving.net.proxy.tls.certificate import Certificate, CertificateChoice, Pair, load_certificate, new_context
from serving.net.proxy.tls.layer import TlsTerms

_log = logging.getLogger("activator")

Found = dict[str, Pair | InvalidCertificate]
"""A source's pairs by certificate name, or why they cannot be read."""

# Largest file in bytes; a chain of four certificates has 8 KiB.
_BYTES_MAX = 1024**2
_SUFFIXES = (".crt", ".pem")
_INSIDE = (("tls.crt", "tls.key"), ("fullchain.pem", "privkey.pem"))

_Stamp = tuple[int, int, int]


class Certificates:
    """All certificates of a TLS listener. ``default`` names the certificate for unknown names; "" for none."""

    def __init__(self, *, default: str = "", handshake_max_s: float) -> None:
        self.failures: Counter[str] = Counter()
        """Failed handshakes by reason."""
        self._default = default
        self._by_name: dict[str, Certificate] = {}
        # Rejected pairs with the reason, so that each is logged once.
        self._refused: dict[str, tuple[Pair | None, str]] = {}
        self._served: tuple[CertificateChoice, dict[str, ssl.SSLContext]] = (CertificateChoice(()), {})
        # Its session tickets outlive all certificates.
        context = new_context()
        context.sni_callback = self._choose
        self.terms = TlsTerms(context=context, handshake_max_s=handshake_max_s, failures=self.failures)

    def add_to(self, context: ssl.SSLContext) -> None:
        """Make ``context`` also serve these certificates, each for its names; its own remains for all other names."""
        context.sni_callback = self._prefer

    @property
    def count(self) -> int:
        """The number of served certificates."""
        return len(self._by_name)

    def expiries(self) -> dict[str, float]:
        """The expiry of each certificate, in unix seconds."""
        return {name: loaded.identity.not_after_s for name, loaded in self._by_name.items()}

    def update(self, pairs: Found) -> None:
        """Load the current certificates."""
        by_name = {name: known for name, known in self._by_name.items() if name in pairs}
        for name in self._by_name.keys() - by_name.keys():
            _log.info("certificate.gone", extra={"certificate": name})
        self._refused = {name: why for name, why in self._refused.items() if name in pairs}
        for name, pair in pairs.items():
            known = by_name.get(name)
            try:
                if isinstance(pair, InvalidCertificate):
                    raise pair
                if known is not None and known.pair == pair:
                    self._refused.pop(name, None)
                    continue
                if name in self._refused and self._refused[name][0] == pair:
                    continue
                by_name[name] = load_certificate(name, pair)
            except InvalidCertificate as error:
                self._refuse(name, pair if isinstance(pair, Pair) else None, error, is_kept=known is not None)
            else:
                self._refused.pop(name, None)
                _log_loaded(by_name[name])
        if by_name != self._by_name:
            self._by_name = by_name
            choice = CertificateChoice((loaded.identity for loaded in by_name.values()), default=self._default)
            self._served = choice, {name: loaded.context for name, loaded in by_name.items()}

    def _refuse(self, name: str, pair: Pair | None, error: InvalidCertificate, *, is_kept: bool) -> None:
        before = self._refused.get(name)
        self._refused[name] = pair, error.reason
        if before is None or before != (pair, error.reason):
            _log.error(
                "certificate.refused",
                extra={"certificate": name, "where": error.where, "reason": error.reason, "last_good_stays": is_kept},
            )

    def _choose(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> int | None:
        """Select a certificate; return a TLS alert if there is none. OpenSSL calls this during a handshake."""
        del context
        choice, contexts = self._served
        name = choice.find(server_name)
        if name is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = contexts[name]
        return None

    def _prefer(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Select a certificate with the server's name, if any; OpenSSL calls this during a handshake."""
        del context
        choice, contexts = self._served
        name = choice.known(server_name)
        if name is not None:
            connection.context = contexts[name]


def _log_loaded(certificate: Certificate) -> None:
    identity = certificate.identity
    is_over = identity.not_after_s < wall_s()
    _log.log(
        logging.WARNING if is_over else logging.INFO,
        "certificate.expired" if is_over else "certificate.loaded",
        extra={
            "certificate": identity.name,
            "where": certificate.pair.where,
            "hosts": identity.hosts,
            "not_after": stamp(identity.not_after_s),
        },
    )


def silence_unreadable_names() -> None:
    """Suppress Python's stack trace for server names that are not ASCII.

    The handshake fails as intended, but the standard library decodes the name where callers cannot catch the error.
    """
    before = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if not (isinstance(raised.exc_value, UnicodeDecodeError) and isinstance(raised.object, bytes)):
            before(raised)

    sys.unraisablehook = hook


class CertificateFiles:
    """Certificates in files. ``pairs`` are paths of certificate and key; the certificate's path is the pair's name."""

    def __init__(self, *, pairs: Iterable[tuple[str, str]] = (), folder: str = "") -> None:
        self._pairs = {certificate: (Path(certificate), Path(key)) for certificate, key in pairs}
        self._folder = Path(folder) if folder else None
        self._known: dict[str, tuple[tuple[_Stamp, _Stamp], Pair]] = {}

    def read(self) -> Found:
        """Read all pairs. If a folder is unreadable, its path is reported, and its last pairs stay valid."""
        pairs: dict[str, Pair | InvalidCertificate] = {}
        paths = dict(self._pairs)
        if self._folder is not None:
            try:
                paths |= dict(_pairs_in(self._folder))
            except OSError as error:
                pairs[str(self._folder)] = _unreadable(self._folder, error)
                pairs |= {name: pair for name, (_, pair) in self._known.items()}
        for name, (certificate, key) in paths.items():
            pairs[name] = self._read_pair(name, certificate, key)
        self._known = {name: known for name, known in self._known.items() if name in pairs}
        return pairs

    def _read_pair(self, name: str, certificate: Path, key: Path) -> Pair | InvalidCertificate:
        path = certificate
        try:
            stamps = [_stamp(path)]
            path = key
            stamps.append(_stamp(path))
            known = self._known.get(name)
            now = (stamps[0], stamps[1])
            if known is not None and known[0] == now:
                return known[1]
            path = certificate
            certificate_pem = _read(path)
            path = key
            pair = Pair(where=f"{certificate} with {key}", certificate_pem=certificate_pem, key_pem=_read(path))
        except OSError as error:
            return _unreadable(path, error)
        self._known[name] = now, pair
        return pair


def _pairs_in(folder: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            for certificate, key in _INSIDE:
                if (path / certificate).exists():
                    yield path.name, (path / certificate, path / key)
                    break
        elif path.suffix in _SUFFIXES:
            yield path.stem, (path, path.with_suffix(".key"))


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> bytes:
    from serving.net.aio.inputfile import open_input  # noqa: PLC0415 - most systems have no certificate in a file

    with open_input(path) as file:
        text = file.read(_BYTES_MAX + 1)
    if len(text) > _BYTES_MAX:
        raise OSError(0, "it is larger than 1 MiB")
    return text


def _unreadable(path: Path, error: OSError) -> InvalidCertificate:
    return InvalidCertificate(where=str(path), reason=error.strerror or os.strerror(error.errno or 0))
