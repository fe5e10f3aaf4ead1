"""Unpacks the layers of an image over one another into one folder.

A layer is untrusted input. No entry is written outside of the folder: each name, and each link in the folder, is
resolved as if the folder were the root of the machine. Device nodes are skipped. Bytes, entries and headers are
bounded. Extended attributes are kept as in containerd: ``user.*``, and file capabilities if this process is root, but
not ``trusted.*``, which control overlays. A layer removes entries of lower layers by whiteouts: ``.wh.NAME`` for one
entry, ``.wh..wh..opq`` for all of a folder (OCI image specification, layer.md).
"""

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec

from serving.core.model.errors import InvalidValue
from serving.home.boundedentry import BoundedEntry
from serving.home.trees import remove_tree

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
# The kernel's limit of links in one path.
_LINKS_MAX = 40
_PIECE_BYTES = 2**20
# Overhead of a tar entry, including its padding and extended attributes.
_HEADER_BYTES = 2048
_FOLDER_MODE = 0o755
_MODE_BITS = 0o7777
_XATTR = "SCHILY.xattr."
_CAPABILITY = "security.capability"
_OF_USERS = "user."
# With ``userxattr``, an overlay interprets these attributes like trusted.overlay.*.
_OF_OVERLAYS = "user.overlay."
# Longer values have no use in images; the kernel's limit is 64 KiB.
_XATTR_BYTES_MAX = 64 * 2**10


class LayerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an unpacked image.

    ``bytes_max`` and ``entries_max`` are totals of all layers. ``depth_max`` is the depth of the deepest path.
    """

    bytes_max: int = 32 * 2**30
    entries_max: int = 2_000_000
    depth_max: int = 256


class Unpacker:
    """Unpacks layers into ``root``, an empty folder. Owners are kept if this process is root."""

    def __init__(self, root: Path, limits: LayerLimits | None = None) -> None:
        self._root = root
        self._limits = limits or LayerLimits()
        self._is_root = os.geteuid() == 0
        # Set at the end of a layer, because writing into a folder changes its time.
        self._folder_times: dict[Path, float] = {}
        self.bytes_written = 0
        self.entry_count = 0
        self.left_out: list[str] = []

    def unpack(self, layer: IO[bytes], *, diff_id: str = "") -> None:
        """Unpack a layer, a tar file that may be compressed by gzip, bzip2 or xz.

        ``diff_id`` is the digest of the uncompressed file, "" to check nothing.

        Raises:
            InvalidValue: when it is no tar file, has another digest, has a path outside of the folder, or exceeds a limit.
            OSError: when it cannot be written.
        """
        own: set[Path] = set()
        try:
            plain = _Digest(_uncompressed(layer), self._limits.bytes_max + _HEADER_BYTES * self._limits.entries_max)
            with tarfile.open(fileobj=cast("IO[bytes]", plain), mode="r|", tarinfo=BoundedEntry) as tar:
                for entry in tar:
                    self._count(entry)
                    self._apply(tar, entry, own)
            plain.finish(diff_id)
        except InvalidValue:
            raise
        except (
            tarfile.TarError,
            EOFError,
            ValueError,
            zlib.error,
            gzip.BadGzipFile,
            lzma.LZMAError,
        ) as error:
            raise InvalidValue(text=str(error), expected="a layer: a tar file, plain or compressed by gzip") from error
        for folder, time_s in self._folder_times.items():
            with contextlib.suppress(OSError):
                os.utime(folder, (time_s, time_s), follow_symlinks=False)
        self._folder_times.clear()

    def _count(self, entry: tarfile.TarInfo) -> None:
        self.entry_count += 1
        if entry.isreg():
            self.bytes_written += entry.size
        if self.entry_count > self._limits.entries_max or self.bytes_written > self._limits.bytes_max:
            size = f"{self.bytes_written} bytes in {self.entry_count} entries"
            expected = f"at most {self._limits.bytes_max} bytes in {self._limits.entries_max} entries"
            raise InvalidValue(text=size, expected=expected)

    def _apply(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, own: set[Path]) -> None:
        parts = _parts(entry.name)
        if not parts:
            if entry.isdir():
                self._root.chmod(entry.mode & _MODE_BITS)
            return
        folder, name = self._folder(parts[:-1]), parts[-1]
        self._check_depth(folder / name)
        if name == _OPAQUE:
            for child in list(folder.iterdir()):
                if child not in own:
                    _remove(child)
        elif name.startswith(_WHITEOUT):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise InvalidValue(text=entry.name, expected="a whiteout with the name of an entry")
            _remove(folder / hidden)
        else:
            self._make(tar, entry, folder / name)
            own.update(_lineage(folder / name, self._root))

    def _make(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
        if entry.ischr() or entry.isblk():
            self.left_out.append(entry.name)
            return
        if entry.isdir():
            if path.is_symlink() or not path.is_dir():
                _remove(path)
                path.mkdir()
            self._folder_times[path] = entry.mtime
        else:
            _remove(path)
            self._make_file(tar, entry, path)
        if not entry.islnk():
            self._adorn(entry, path)

    def _make_file(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
        if entry.issym():
            # Unchanged: a container resolves it within its own root.
            path.symlink_to(entry.linkname)
        elif entry.islnk():
            *parents, name = _parts(entry.linkname) or ["."]
            os.link(self._folder(parents, make=False) / name, path, follow_symlinks=False)
        elif entry.isfifo():
            os.mkfifo(path)
        elif entry.isreg():
            source = tar.extractfile(entry)
            assert source is not None, "a regular file has content"
            with path.open("xb") as target:
                shutil.copyfileobj(source, target, _PIECE_BYTES)
        else:
            raise InvalidValue(text=f"{entry.name}, type {entry.type!r}", expected="a file, folder or link")

    def _adorn(self, entry: tarfile.TarInfo, path: Path) -> None:
        """Set owner, then mode (which a change of owner would reduce), then attributes and time."""
        if self._is_root:
            os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
        if entry.issym():
            return
        path.chmod(entry.mode & _MODE_BITS)
        for name, value in _attributes(entry).items():
            # A file system without attributes, or a process that must not set capabilities.
            with contextlib.suppress(OSError):
                os.setxattr(path, name, value)
        if not entry.isdir():
            os.utime(path, (entry.mtime, entry.mtime))

    def _folder(self, parts: list[str], *, make: bool = True) -> Path:
        """The folder at a path within the root. Links are followed, but never lead out of the root.

        A missing folder is created; with ``make`` false, it raises ``InvalidValue``.
        """
        here, waiting, links = self._root, list(reversed(parts)), 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                here = here.parent if here != self._root else here
                continue
            below = here / part
            if below.is_symlink():
                links += 1
                if links > _LINKS_MAX:
                    raise InvalidValue(text="/".join(parts), expected=f"a path of at most {_LINKS_MAX} links")
                target = str(below.readlink())
                if target.startswith("/"):
                    here = self._root
                waiting.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
                continue
            if not below.is_dir():
                self._check_depth(below)
                if not make:
                    raise InvalidValue(text="/".join(parts), expected="a hard link to a file of the image")
                _remove(below)
                below.mkdir(mode=_FOLDER_MODE)
            here = below
        return here

    def _check_depth(self, path: Path) -> None:
        depth, depth_max = len(path.parts) - len(self._root.parts), self._limits.depth_max
        if depth > depth_max:
            first = "/".join(path.parts[len(self._root.parts) :][:3])
            raise InvalidValue(
                text=f"{first}/..., {depth} levels deep", expected=f"at most {depth_max} levels of folders"
            )


def _attributes(entry: tarfile.TarInfo) -> dict[str, bytes]:
    """The extended attributes to set on an entry. Raises ``InvalidValue`` for an attribute that is too long."""
    attributes = {}
    for key, text in entry.pax_headers.items():
        name = key.removeprefix(_XATTR)
        if name == key or not (name == _CAPABILITY or name.startswith(_OF_USERS)) or name.startswith(_OF_OVERLAYS):
            continue
        attributes[name] = text.encode("utf-8", "surrogateescape")
        if len(attributes[name]) > _XATTR_BYTES_MAX:
            size = f"{entry.name}: {name} of {len(attributes[name])} bytes"
            raise InvalidValue(text=size, expected=f"an attribute of at most {_XATTR_BYTES_MAX} bytes")
    return attributes


class _Digest:
    """Reads a file up to a limit, and computes its digest."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self._file = file
        self._bytes_left = bytes_max
        self._bytes_max = bytes_max
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Read further. Raises ``InvalidValue`` beyond the limit."""
        piece = self._file.read(size)
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise InvalidValue(text="a larger layer", expected=f"a layer of at most {self._bytes_max} bytes")
        self._digest.update(piece)
        return piece

    def finish(self, wanted: str) -> None:
        """Read to the end and compare the digest. Raises ``InvalidValue``."""
        while self.read(_PIECE_BYTES):
            pass
        digest = f"sha256:{self._digest.hexdigest()}"
        if wanted and digest != wanted:
            raise InvalidValue(text=f"a layer with the content {digest}", expected=wanted)


def _uncompressed(layer: IO[bytes]) -> IO[bytes]:
    magic = layer.read(6)
    layer.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=layer))
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(layer)
    if magic == b"\xfd7zXZ\0":
        return lzma.LZMAFile(layer)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise InvalidValue(text="a layer compressed by zstd", expected="a layer that is plain or compressed by gzip")
    return layer


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise InvalidValue(text=name, expected="a path without '..'")
    return parts


def _lineage(path: Path, root: Path) -> Iterator[Path]:
    while path != root and path.is_relative_to(root):
        yield path
        path = path.parent


def _remove(path: Path) -> None:
    with contextlib.suppress(NotADirectoryError):
        remove_tree(path)
