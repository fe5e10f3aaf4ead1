"""Prepares the writable copy of an application for each pod.

The snapshot of a folder is shared by all pods of its revisions. As root a pod gets an overlay (Linux 5.19, on a file
system with id-mapped mounts): the lower layer are the snapshot's files, owned by the pod's user, and the upper layer
are the pod's writes. Without an overlay the snapshot is copied, by reference if the file system supports it. In both
cases the copy is in the pod's folder and is removed with it.

Runs after a fork, in the mounts of the machine: one overlay serves all processes of a pod, also those of a later
restart.
"""

import fcntl
import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from serving.home.processes.confine import exchanged_ids, mount_mapped, open_users
from serving.home.processes.mounts import OverlayMount, mount_overlay, unmount
from serving.home.trees import discard_tree

_ENTERED_MODE = 0o711
_PIECE_BYTES = 2**30


class AppCopy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A copy of the snapshot ``source`` below the folder ``place``. ``user`` owns it; 0 is this process's user."""

    source: str
    place: str
    user: int = 0

    @property
    def root(self) -> str:
        """The folder of the copy."""
        return f"{self.place}/root"


def prepare_copy(copy: AppCopy) -> None:
    """Create a copy, unless another process of the pod has created it. Raises ``OSError``."""
    with ExitStack() as stack:
        with suppress(FileExistsError):
            Path(copy.place).mkdir(mode=_ENTERED_MODE)
        lock = os.open(copy.place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = Path(copy.root)
        with suppress(OSError):
            # Left by a process that was killed before its mount: a copy in use is mounted, or has files.
            root.rmdir()
        if root.exists():
            return
        Path(copy.place).chmod(_ENTERED_MODE)
        try:
            _mount(copy)
        except OSError:
            discard_tree(root)
            new = root.with_name("new")
            discard_tree(new)
            copy_files(copy, str(new))
            # The name appears only when the copy is complete.
            new.rename(root)


def remove_copy(place: Path) -> None:
    """Unmount the overlay of the copy at ``place``. The caller removes its files together with the pod's folder."""
    for folder in (place / "root", place / "lower"):
        if folder.is_mount():
            with suppress(OSError):
                unmount(str(folder))


def _mount(copy: AppCopy) -> None:
    """Mount an overlay: the pod's own writes over the files of the snapshot. Needs root. Raises ``OSError``."""
    if os.geteuid() != 0:
        raise PermissionError(1, "overlays need root", copy.root)
    lower, upper, work = (f"{copy.place}/{name}" for name in ("lower", "upper", "work"))
    for folder in (lower, upper, work, copy.root):
        with suppress(FileExistsError):
            Path(folder).mkdir()
    owner = os.stat(copy.source)  # noqa: PTH116 - a path in text
    is_mapped = copy.user not in {0, owner.st_uid}
    os.chmod(upper, owner.st_mode & 0o7777)  # noqa: PTH101 - a path in text
    os.chown(upper, copy.user or owner.st_uid, copy.user or owner.st_gid)
    if not is_mapped:
        mount_overlay(OverlayMount(lower=copy.source, upper=upper, work=work, target=copy.root))
        return
    users = open_users(exchanged_ids(owner.st_uid, copy.user), exchanged_ids(owner.st_gid, copy.user))
    try:
        mount_mapped(copy.source, lower, users)
    finally:
        os.close(users)
    try:
        mount_overlay(OverlayMount(lower=lower, upper=upper, work=work, target=copy.root))
    finally:
        # The overlay has a separate mount.
        unmount(lower)


def copy_files(copy: AppCopy, new: str) -> None:
    """Copy the snapshot to a new path. Raises ``OSError``."""
    shutil.copytree(copy.source, new, symlinks=True, copy_function=_copy_file)
    if not copy.user:
        return
    os.chown(new, copy.user, copy.user)
    for above, folders, files in os.walk(new):
        for name in (*folders, *files):
            os.chown(f"{above}/{name}", copy.user, copy.user, follow_symlinks=False)


def _copy_file(source: str, target: str) -> str:
    with open(source, "rb") as reader, open(target, "wb") as writer:  # noqa: PTH123 - paths in text
        try:
            # By reference if the file system supports it (copy_file_range(2)).
            while os.copy_file_range(reader.fileno(), writer.fileno(), _PIECE_BYTES):
                pass
        except OSError:
            reader.seek(0)
            writer.seek(0)
            shutil.copyfileobj(reader, writer)
    shutil.copystat(source, target)
    return target
