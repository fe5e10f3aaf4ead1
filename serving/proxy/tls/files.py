"""Certificates in files: pairs that are named one by one, and a folder in which each pair is found by its names.

In a folder a pair is NAME.crt (or NAME.pem) with NAME.key, or a folder NAME with tls.crt and tls.key (as Secrets are
mounted) or fullchain.pem and privkey.pem (as certbot leaves them). Names that begin with a dot are passed over. A file is
read again when its time, size or inode have changed.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from serving.model.errors import InvalidCertificate
from serving.proxy.tls.certificate import Pair
from serving.proxy.tls.keeper import Found

# A chain of four certificates has 8 KiB.
_BYTES_MAX = 1024**2
_SUFFIXES = (".crt", ".pem")
_INSIDE = (("tls.crt", "tls.key"), ("fullchain.pem", "privkey.pem"))

_Stamp = tuple[int, int, int]


class CertificateFiles:
    """All pairs in files. ``pairs`` are paths of certificate and key; their name is the certificate's path as given."""

    def __init__(self, *, pairs: Iterable[tuple[str, str]] = (), folder: str = "") -> None:
        self._pairs = {certificate: (Path(certificate), Path(key)) for certificate, key in pairs}
        self._folder = Path(folder) if folder else None
        self._known: dict[str, tuple[tuple[_Stamp, _Stamp], Pair]] = {}

    def __repr__(self) -> str:
        return f"CertificateFiles({sorted(self._known)})"

    def read(self) -> Found:
        """The present pairs. A folder that cannot be read is reported under its own path, and keeps its pairs."""
        found: dict[str, Pair | InvalidCertificate] = {}
        paths = dict(self._pairs)
        if self._folder is not None:
            try:
                paths |= dict(_pairs_in(self._folder))
            except OSError as error:
                found[str(self._folder)] = _unreadable(self._folder, error)
                found |= {name: pair for name, (_, pair) in self._known.items()}
        for name, (certificate, key) in paths.items():
            found[name] = self._read_pair(name, certificate, key)
        self._known = {name: known for name, known in self._known.items() if name in found}
        return found

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
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(_BYTES_MAX + 1)
    if len(text) > _BYTES_MAX:
        raise OSError(0, "it is larger than 1 MiB")
    return text


def _unreadable(path: Path, error: OSError) -> InvalidCertificate:
    return InvalidCertificate(where=str(path), reason=error.strerror or os.strerror(error.errno or 0))
