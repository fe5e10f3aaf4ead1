"""Copies application folders for revisions, named by a digest of their content.

``take`` copies a folder into the state folder once for each content; a changed file changes the digest, and so the
revision. ``.gitignore`` and ``.servingignore`` in any folder exclude content, in git's syntax. Paths of
``.servingignore`` are omitted. Paths of ``.gitignore`` are built or private to a machine (``node_modules``, ``.env``),
but the app may need them: the copy links to them, and to virtual environments and the targets of links that leave the
folder. ``.git`` and bytecode are omitted.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
from pathspec import GitIgnoreSpec

from serving.core.model.errors import InvalidValue
from serving.home.state import naming
from serving.home.trees import discard_tree, is_virtualenv

_DIGEST = re.compile(r"[0-9a-f]{32}\Z")
_GIT_FILE, _OWN_FILE = ".gitignore", ".servingignore"
_LEFT_OUT_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_PIECE_BYTES = 2**20
_EXECUTABLE = 0o100
_READABLE, _ENTERABLE = 0o444, 0o111
# Larger folders are probably a mistake; the message explains how to exclude files.
_BYTES_MAX = 2 * 2**30
_ENTRIES_MAX = 100_000
# A deploy writes the snapshot before the service that names it.
_UNUSED_KEPT_S = 600.0

_Rules = tuple[tuple[str, GitIgnoreSpec | None, GitIgnoreSpec | None], ...]


class FolderEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a folder to copy. ``path`` is relative to the folder.

    ``is_linked``: git ignores the entry, or it is a virtual environment, so the snapshot has a link to the original.
    """

    path: str
    is_linked: bool = False


def entries_of(folder: Path) -> Iterator[FolderEntry]:
    """The entries of a folder to copy, in a fixed order, without those in ``.servingignore``. Raises ``OSError``."""
    yield from _walk(folder, "", ())


def _walk(folder: Path, prefix: str, rules: _Rules) -> Iterator[FolderEntry]:
    here = folder / prefix
    specs = (_spec(here / _GIT_FILE), _spec(here / _OWN_FILE))
    if any(specs):
        rules = (*rules, (prefix, *specs))
    with os.scandir(here) as listing:
        children = sorted(listing, key=lambda entry: entry.name)
    for child in children:
        path = prefix + child.name
        is_folder = child.is_dir(follow_symlinks=False)
        if is_virtualenv(Path(child.path)):
            # It contains absolute paths, and may be large; the command may name it.
            yield FolderEntry(path=path, is_linked=True)
            continue
        if (is_folder and child.name in _LEFT_OUT_FOLDERS) or _is_ignored(path, rules, own=True, is_folder=is_folder):
            continue
        if _is_ignored(path, rules, own=False, is_folder=is_folder):
            yield FolderEntry(path=path, is_linked=True)
        elif is_folder:
            yield from _walk(folder, f"{path}/", rules)
        elif child.is_symlink() or child.is_file():
            yield FolderEntry(path=path)


def _spec(path: Path) -> GitIgnoreSpec | None:
    try:
        return GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except FileNotFoundError:
        return None


def _is_ignored(path: str, rules: _Rules, *, own: bool, is_folder: bool) -> bool:
    """Whether ignore files exclude a path: the .servingignore files if ``own``, otherwise the .gitignore files.

    The innermost file with a matching pattern decides.
    """
    for prefix, git, serving in reversed(rules):
        spec = serving if own else git
        if spec is not None:
            verdict = spec.check_file(path.removeprefix(prefix) + ("/" if is_folder else "")).include
            if verdict is not None:
                return verdict
    return False


def fingerprint(folder: Path) -> str:
    """A digest of paths, sizes, times and modes below a folder, which takes less time than one of contents."""
    digest = hashlib.sha256()
    for entry in entries_of(folder):
        with contextlib.suppress(OSError):
            status = (folder / entry.path).lstat()
            digest.update(f"{entry.path}\0{status.st_mtime_ns}\0{status.st_size}\0{status.st_mode}\n".encode())
    return digest.hexdigest()


def is_application(folder: Path, state: Path) -> bool:
    """Whether a folder can be copied: not the root, no parent of the state folder, and not inside the state folder."""
    folder, state = folder.resolve(), state.resolve()
    return folder != Path(folder.root) and not state.is_relative_to(folder) and not folder.is_relative_to(state)


def take_snapshot(folder: Path, snapshots: Path) -> str:
    """Copy a folder unless its content is already stored; return the digest. Raises ``InvalidValue``, ``OSError``."""
    entries = list(itertools.islice(entries_of(folder), _ENTRIES_MAX + 1))
    _check_size(folder, entries)
    scratch = snapshots / f".new-{os.getpid()}-{time.monotonic_ns()}"
    scratch.mkdir(mode=0o700, parents=True)
    scratch.chmod(_READABLE | _ENTERABLE | stat.S_IWUSR)
    try:
        # Digest and copy use the same bytes, because a file may change between two reads.
        with naming(snapshots):
            name = _copy(folder, entries, scratch)
        snapshot = snapshots / name
        if snapshot.exists():
            # A deploy that uses it again protects it from being collected.
            os.utime(snapshot)
        else:
            with contextlib.suppress(FileExistsError):
                scratch.rename(snapshot)
    finally:
        discard_tree(scratch)
    return name


def _check_size(folder: Path, entries: list[FolderEntry]) -> None:
    count = len(entries)
    size = sum((folder / entry.path).lstat().st_size for entry in entries if not entry.is_linked)
    if count > _ENTRIES_MAX or size > _BYTES_MAX:
        what = f"{'more than ' * (count > _ENTRIES_MAX)}{min(count, _ENTRIES_MAX)} files with {size // 2**20} MiB"
        expected = f"fewer; list files that the app does not need in {folder / _OWN_FILE}, or use --no-snapshot"
        raise InvalidValue(text=what, expected=expected)


def _copy(folder: Path, entries: list[FolderEntry], scratch: Path) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        source, target = folder / entry.path, scratch / entry.path
        _make_folders(target.parent, scratch)
        if entry.is_linked:
            # Not part of the digest: a changing cache or database must not create a revision.
            target.symlink_to(os.path.realpath(source))
            continue
        if source.is_symlink():
            link = os.readlink(source)  # noqa: PTH115 - the text as it is
            # Relative to the copy, it would point elsewhere.
            outside = os.path.realpath(source)
            target.symlink_to(link if Path(outside).is_relative_to(folder.resolve()) else outside)
            digest.update(f"link\0{entry.path}\0{link}\0".encode())
            continue
        mode = source.stat().st_mode
        kind = "x" if mode & _EXECUTABLE else "f"
        digest.update(f"{kind}\0{entry.path}\0".encode(errors="surrogateescape"))
        content = hashlib.sha256()
        with source.open("rb") as reader, target.open("wb") as writer:
            while piece := reader.read(_PIECE_BYTES):
                content.update(piece)
                writer.write(piece)
        digest.update(content.digest())
        # The folder around all snapshots is closed, but a pod that sees a snapshot may have its own user.
        target.chmod(stat.S_IMODE(mode) | stat.S_IWUSR | _READABLE | (_ENTERABLE if mode & _EXECUTABLE else 0))
    return digest.hexdigest()[:32]


def _make_folders(folder: Path, top: Path) -> None:
    """Create a folder below ``top`` that all users may enter, whatever the umask."""
    if folder != top and not folder.exists():
        _make_folders(folder.parent, top)
        folder.mkdir()
        folder.chmod(_READABLE | _ENTERABLE | stat.S_IWUSR)


@functools.lru_cache(maxsize=1024)
def linked_paths(path: Path) -> tuple[str, ...]:
    """The targets of a snapshot's absolute links. The result is cached, because a snapshot never changes."""
    links = (entry.readlink() for entry in path.rglob("*") if entry.is_symlink())
    return tuple(sorted({str(target) for target in links if target.is_absolute()}))


def path_of_snapshot(snapshots: Path, name: str) -> Path:
    """The folder of a snapshot. Raises ``InvalidValue`` for an invalid digest or a missing folder."""
    if not _DIGEST.match(name):
        raise InvalidValue(text=name, expected="the digest of a snapshot, 32 hexadecimal digits")
    path = snapshots / name
    if not path.is_dir():
        raise InvalidValue(text=name, expected=f"a snapshot in {snapshots}; it is gone, deploy again")
    return path


def collect(snapshots: Path, used: Collection[str], *, now_s: float) -> list[str]:
    """Remove old, unused snapshots; return their names."""
    removed = []
    with contextlib.suppress(FileNotFoundError):
        for path in snapshots.iterdir():
            with contextlib.suppress(OSError):
                if path.name not in used and now_s - path.stat().st_mtime > _UNUSED_KEPT_S:
                    discard_tree(path)
                    removed.append(path.name)
    return removed
