"""Sizes of volumes: project quotas if the file system has them (ext4, xfs), else measured trees.

A folder and all its files belong to one project, whose number is the folder's inode. The kernel refuses writes beyond
the project's limit (EDQUOT). Sources: quotactl_fd(2), ioctl_xfs_fsgetxattr(2), linux/dqblk_xfs.h.
"""

import contextlib
import ctypes
import fcntl
import math
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_QUOTACTL_FD = 443
_PROJECT = 2
_GET_STATE, _SET_LIMITS = 0x5808, 0x800008
_STATE_VERSION, _STATE_BYTES, _PROJECT_ENFORCED = 1, 256, 1 << 5
# struct if_dqblk: limits in KiB; the last field says which others are set.
_LIMITS, _LIMITS_SET, _KIB = struct.Struct("=8QI4x"), 1, 1024
# struct fsxattr: flags, two fields, the project, 12 more bytes.
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES, _INHERIT = struct.Struct("=4I12s"), 0x200
# Lower project numbers are those that people choose.
_PROJECT_MIN = 1 << 30
_ENTRY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = _ENTRY | os.O_DIRECTORY

_BLOCK_BYTES = 512
# A walk of this many files takes seconds, and then returns its partial sum.
_ENTRIES_MAX = 500_000


def quota_gap(folder: Path) -> str:
    """Why this machine cannot limit the size of a folder; "" if it can."""
    if os.geteuid() != 0:
        return "only root may set project quotas"
    try:
        with _opened(folder) as there:
            state = ctypes.create_string_buffer(bytes([_STATE_VERSION]), _STATE_BYTES)
            _quotactl(there, _GET_STATE, state)
    except OSError:
        return "its file system has no project quotas"
    if not int.from_bytes(state.raw[2:4], "little") & _PROJECT_ENFORCED:
        return "its file system counts projects and is not mounted with prjquota"
    return ""


def limit_folder(folder: Path, byte_count: int) -> None:
    """Limit the bytes of a folder by a project quota; 0 removes the limit. Raises ``OSError``.

    The first call blocks while all files of the folder are added to the quota's project.
    """
    with _opened(folder) as there:
        project = _PROJECT_MIN + os.fstat(there).st_ino % _PROJECT_MIN
        if _project_of(there) != project:
            # The folder comes last, so that an interrupted call is repeated.
            _join_below(there, project)
            _join(there, project)
        limit = math.ceil(byte_count / _KIB)
        wanted = _LIMITS.pack(limit, limit, 0, 0, 0, 0, 0, 0, _LIMITS_SET)
        _quotactl(there, _SET_LIMITS, ctypes.create_string_buffer(wanted, _LIMITS.size), project=project)


def tree_bytes(folder: Path) -> int:
    """The bytes that a folder's content uses on its file system. Blocks."""
    return sum(size for _, size in tree_files(folder))


def tree_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and the bytes on disk of each file and folder below a folder, on the same file system.

    A file with several names is yielded once. The walk ends after 500,000 entries.
    """
    waiting, seen, count = [str(folder)], set[int](), 0
    with contextlib.suppress(OSError):
        device = folder.stat().st_dev
        while waiting and count < _ENTRIES_MAX:
            # A folder that a pod removes meanwhile.
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev != device or status.st_ino in seen:
                        continue
                    if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        seen.add(status.st_ino)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry.path, status.st_blocks * _BLOCK_BYTES


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    there = os.open(folder, _FOLDER)
    try:
        yield there
    finally:
        os.close(there)


def _project_of(there: int) -> int:
    attributes = fcntl.ioctl(there, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
    return int(_ATTRIBUTES.unpack(attributes)[3])


def _join(there: int, project: int) -> None:
    flags, *sizes, _, rest = _ATTRIBUTES.unpack(fcntl.ioctl(there, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size)))
    if stat.S_ISDIR(os.fstat(there).st_mode):
        flags |= _INHERIT
    fcntl.ioctl(there, _SET_ATTRIBUTES, _ATTRIBUTES.pack(flags, *sizes, project, rest))


def _join_below(top: int, project: int) -> None:
    """Add all files and folders below a folder to a quota project, except links and pipes, which use no space."""
    for _, folders, files, above in os.fwalk(".", dir_fd=top):
        for name in (*folders, *files):
            # A file that a pod removes meanwhile, or a link.
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    continue
                there = os.open(name, _ENTRY, dir_fd=above)
                try:
                    _join(there, project)
                finally:
                    os.close(there)


def _quotactl(there: int, command: int, value: ctypes.Array[ctypes.c_char], *, project: int = 0) -> None:
    if _LIBC.syscall(_QUOTACTL_FD, there, command << 8 | _PROJECT, project, value) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "quotactl")
