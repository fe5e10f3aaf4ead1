"""Archives of a state folder: writes and restores everything needed to serve the same services.

An archive is a gzipped tar with ``backup.json``, the journal as one SQLite file, secrets and certificates, snapshots of
apps, the decision log, and on request the images. ``backup.json`` has the format's number. A reader ignores unknown
fields, and refuses a newer format. The module needs only the standard library and msgspec.
"""

import contextlib
import copy
import errno
import gzip
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, JournalDamaged, ServingError
from serving.home.boundedentry import BoundedEntry
from serving.home.state import SECRET_FILES, StateFolder, naming
from serving.home.store.former import metadata_path
from serving.home.store.migrations import SQLITE_DAMAGE, check_reader, copy_of
from serving.home.trees import is_virtualenv, remove_tree
from serving.net.aio.inputfile import open_input

FORMAT = 2
"""The archive format. Increase it when older programs would restore an archive wrongly."""

_MANIFEST = "backup.json"
_JOURNAL = "journal.db"
# Secrets first: without the key, tokens of earlier clients are invalid.
_KEPT = (*SECRET_FILES, "certificates", "snapshots", "policies", "decisions.jsonl", metadata_path(Path(_JOURNAL)).name)
_IMAGES, _VOLUMES = "images", "volumes"
# Permission bits without setuid and setgid.
_MODE = 0o1777
_FOLDER_MODE, _FILE_MODE, _EXECUTABLE, _READABLE = 0o755, 0o644, 0o100, 0o600
_UNFILTERED: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
_MANIFEST_BYTES_MAX = 64 * 2**10
# Far above real snapshots and images, and far below limits of paths and recursion.
_DEPTH_MAX, _ENTRIES_MAX = 200, 5_000_000
_VERSION = re.compile(r"[0-9A-Za-z.+_-]{1,64}")
# The year 9999, after which no date can be displayed.
_CREATED_MAX_S = 253_402_300_799.0
_PRIVATE_FOLDER, _SHOWN_MAX = 0o700, 80
# Errors while reading an archive: tarfile passes through some errors of damaged streams and headers.
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError)


class BadBackup(ServingError):
    """The file is not a restorable archive, or its target is not empty."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The file ``backup.json`` of an archive.

    ``format`` is the version of the archive's format, ``version`` that of the program that wrote it. ``created_s`` is
    its time, in seconds since the epoch.
    """

    format: int
    version: str
    """The version of the program that wrote the archive."""

    created_s: float
    has_images: bool = False
    has_volumes: bool = False


def journal_copy(path: Path) -> bytes:
    """The content of a journal as one SQLite file. No process may have the journal open. Raises ``BadBackup``."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return copy_of(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise BadBackup(f"the journal {path} cannot be read: {error}") from error


def write_backup(file: Path, state: StateFolder, *, journal: bytes, manifest: BackupManifest) -> int:
    """Write an archive; return its size in bytes. After a failure, no file remains. Raises ``OSError``."""
    if file.exists() and not file.is_file():
        # The rename would replace a device such as /dev/stdout.
        raise FileExistsError(errno.EEXIST, "not a file; expected a new or an existing file", str(file))
    names = [*_KEPT, *((_IMAGES,) if manifest.has_images else ()), *((_VOLUMES,) if manifest.has_volumes else ())]
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.absolute().parent)
    except OSError as error:
        # The caller has only the file name.
        raise type(error)(error.errno, error.strerror, str(file)) from error
    try:
        with naming(file), os.fdopen(descriptor, "wb") as out:
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
                _add(archive, _MANIFEST, msgspec.json.encode(manifest))
                _add(archive, _JOURNAL, journal)
                for name in names:
                    if (state.path / name).exists():
                        _add_tree(archive, state.path / name, name)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).rename(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return file.stat().st_size


def _add_tree(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file or folder. The targets of a snapshot's absolute links, such as ``node_modules``, replace the links."""
    if path.is_symlink() and name.startswith("snapshots/") and is_virtualenv(path):
        # It belongs to one machine.
        return
    if path.is_symlink() and name.startswith("snapshots/") and path.readlink().is_absolute():
        path = path.resolve()
    if not path.is_symlink() and path.is_dir():
        archive.add(path, arcname=name, recursive=False)
        for child in sorted(path.iterdir()):
            _add_tree(archive, child, f"{name}/{child.name}")
    elif path.is_symlink() or path.is_file():
        archive.add(path, arcname=name)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))


def read_manifest(file: Path) -> BackupManifest:
    """Read the manifest of an archive. Raises ``BadBackup``."""
    try:
        with open_input(file) as source, tarfile.open(fileobj=source, mode="r:gz", tarinfo=BoundedEntry) as archive:
            first = archive.next()
            content = archive.extractfile(first) if first is not None and first.name == _MANIFEST else None
            if content is None:
                raise BadBackup(f"{file} is no backup of serving: its first member is not {_MANIFEST}")
            manifest = msgspec.json.decode(content.read(_MANIFEST_BYTES_MAX), type=BackupManifest)
            _check_manifest(manifest)
    except FileNotFoundError as error:
        raise BadBackup(f"{file}: there is no such file; expected one of `serving backup`") from error
    except (*_BROKEN, *UNREADABLE) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        # A cluster's backup is text.
        hint = "; `serving apply -f` applies manifests" if isinstance(error.__cause__, gzip.BadGzipFile) else ""
        raise BadBackup(f"{file} is no backup of serving: {reason}{hint}") from error
    if manifest.format > FORMAT:
        raise BadBackup(
            f"{file} has format {manifest.format}, written by serving {manifest.version}; this program knows up to {FORMAT}: "
            f"restore it with that version"
        )
    return manifest


def restore_backup(file: Path, state: StateFolder) -> BackupManifest:
    """Restore an archive into a state folder without a journal. A failure leaves no files. Raises ``BadBackup``."""
    manifest = read_manifest(file)
    if state.holder() is not None:
        raise BadBackup(
            f"{state.path} is in use by process {state.holder()}; end it with `serving down`, or take another --state"
        )
    if state.journal.exists():
        raise BadBackup(f"{state.path} has services already; move the folder away, or take another --state")
    state.path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(prefix=".restore-", dir=state.path))
    try:
        with tarfile.open(file, "r:gz", tarinfo=BoundedEntry) as archive:
            members = (_filtered(member, unpacked) for member in _members(archive, file, unpacked))
            archive.extractall(unpacked, members=members, numeric_owner=True, **_UNFILTERED)  # noqa: S202 - each is checked
        _check_journal(unpacked / _JOURNAL, file)
        # The journal comes last: without it the folder counts as empty, so a retry is not refused.
        for path in sorted(unpacked.iterdir(), key=lambda entry: entry.name == _JOURNAL):
            if path.name != _MANIFEST:
                target = state.path / path.name
                if target.is_dir():
                    remove_tree(target)
                path.rename(target)
    except _BROKEN as error:
        raise BadBackup(f"{file} cannot be restored: {error}; {state.path} is as it was but for secrets") from error
    finally:
        with contextlib.suppress(OSError):
            remove_tree(unpacked)
    return manifest


def _check_manifest(manifest: BackupManifest) -> None:
    """Check the values of a manifest before use. Raises ``ValueError``."""
    if not _VERSION.fullmatch(manifest.version):
        raise ValueError(f"its version {manifest.version[:80]!r} is none of a program")
    if not 0 <= manifest.created_s <= _CREATED_MAX_S:
        raise ValueError(f"its time {manifest.created_s!r} is none in seconds since the epoch")


def _filtered(member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo:
    """Return an archive member in its safe form. Raises ``tarfile.ReadError`` for a member outside ``folder``.

    Files of images and volumes keep their modes except setuid and setgid, and their absolute links are allowed: only
    pods see these files, because other users of the machine cannot enter the state folder. All other files become
    private. Python's own filters are not used, because they need Python 3.11.4.
    """
    if not (member.isreg() or member.isdir() or member.islnk() or member.issym()):
        raise tarfile.ReadError(f"{member.name[:_SHOWN_MAX]!r} is no file, folder or link")
    if member.name.count("/") > _DEPTH_MAX:
        raise tarfile.ReadError(f"{member.name[:_SHOWN_MAX]!r} is more than {_DEPTH_MAX} levels deep")
    top = folder.resolve()
    place = _within(top, top / member.name, member)
    if member.islnk():
        _within(top, top / member.linkname, member)
    copied = copy.copy(member)
    if member.name.startswith((f"{_IMAGES}/", f"{_VOLUMES}/")):
        copied.mode &= _MODE
        return copied
    if member.issym():
        _within(top, place.parent / member.linkname, member)
    mode = _FOLDER_MODE if member.mode & _EXECUTABLE else _FILE_MODE
    copied.mode = _FOLDER_MODE if member.isdir() else member.mode & mode | _READABLE
    copied.uid, copied.gid = os.geteuid(), os.getegid()
    return copied


def _within(top: Path, path: Path, member: tarfile.TarInfo) -> Path:
    """The real path, following earlier links. Raises ``ReadError`` if it is outside of ``top``."""
    place = path.resolve()
    if not place.is_relative_to(top):
        raise tarfile.ReadError(f"{member.name!r} leads to a place outside the destination, {place}")
    return place


def _members(archive: tarfile.TarFile, file: Path, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members that belong in a state folder. Raises ``BadBackup`` for any other."""
    known = {_MANIFEST, _JOURNAL, _IMAGES, _VOLUMES, *_KEPT}
    free_bytes = shutil.disk_usage(folder).free
    for count, member in enumerate(archive):
        # Each size is declared before its content, which is not read if it is too large.
        free_bytes -= member.size
        if free_bytes < 0 or count > _ENTRIES_MAX:
            raise BadBackup(f"{file} has more than fits: the free bytes at {folder.parent}, and {_ENTRIES_MAX} entries")
        if member.name.partition("/")[0] not in known:
            raise BadBackup(f"{file} has the member {member.name!r}, which is no part of a backup")
        yield member


def _check_journal(path: Path, file: Path) -> None:
    path.chmod(0o600)
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        check_reader(connection, path)
        verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except JournalDamaged as error:
        raise BadBackup(f"{file}: its journal cannot be used: {error.detail}") from error
    except (sqlite3.Error, *SQLITE_DAMAGE) as error:
        raise BadBackup(f"{file}: its journal is damaged: {error}") from error
    finally:
        connection.close()
    if verdict != "ok":
        raise BadBackup(f"{file}: its journal is damaged: {verdict}")
