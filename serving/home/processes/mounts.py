"""Mounts a container's volumes at their own paths and sets its pod's host name, by namespaces (namespaces(7)).

A container that mounts a volume at ``/etc/config`` reads it there, as in a container image. The module runs between
fork and exec, as root or in a user namespace. It creates a new root on tmpfs with the content of the old root and the
volumes. All other files are those of the machine. Only files created in the parent folders of a mount disappear with
the process. If the kernel refuses, ``OSError`` is raised, and the volumes are only below ``$HOME``.
"""

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from serving.home.processes.confine import LIBC, checked, mount_at

HOSTS_PATH = "/etc/hosts"
RESOLVER_PATH = "/etc/resolv.conf"

# <linux/sched.h>, <linux/mount.h>
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
_MS_UNBINDABLE, _MS_PRIVATE = 1 << 17, 1 << 18
_MNT_DETACH = 2
# Flags that a remount in a user namespace must keep: nosuid, nodev, noexec.
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_KEPT_FLAGS = _NOSUID | _NODEV | _NOEXEC
_SUB_PATH_MODE = 0o777


class MountPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or folder ``source`` that a container sees at ``target``, an absolute path.

    ``below`` is a subPath in ``source``; the pod may write there, so no link in it is followed. ``home`` is the pod's
    folder if it contains ``source``, else ""; no link between the two is followed. ``is_own``: the source was created
    for the pod, and is removed with it.
    """

    source: str
    target: str
    read_only: bool = False
    home: str = ""
    below: str = ""
    is_own: bool = False


class OverlayMount(msgspec.Struct, frozen=True, kw_only=True):
    """An overlay at ``target`` (mount(8)): it shows the files of ``lower``, and writes go to ``upper``.

    ``work`` is the kernel's work folder.
    """

    lower: str
    upper: str
    work: str
    target: str


def own_mounts() -> None:
    """Give this process its own mount namespace, without propagation of mounts in or out. Raises ``OSError``."""
    _unshare()
    mount_at("none", "/", flags=_MS_REC | _MS_PRIVATE)


def own_user_and_mounts() -> None:
    """Enter a new user namespace, with this process's user as its root, and new mounts. Raises ``OSError``."""
    _new_user_namespace(user=0, group=0)
    mount_at("none", "/", flags=_MS_REC | _MS_PRIVATE)


def join_user(pid: int) -> None:
    """Join a user namespace from ``own_user_and_mounts`` as its root, with new mounts. Raises ``OSError``."""
    with open(f"/proc/{pid}/ns/user") as namespace:  # noqa: PTH123 - needed as a descriptor
        checked(LIBC.setns(namespace.fileno(), _CLONE_NEWUSER), "setns")
    checked(LIBC.unshare(_CLONE_NEWNS), "unshare")


def hide(folder: str) -> None:
    """Cover a folder by an empty one. Raises ``OSError``."""
    mount_at("tmpfs", folder, kind="tmpfs")


def mount_memory(folder: str, *, bytes_max: int) -> None:
    """Mount a file system in memory that only its owner can read. Needs root. Raises ``OSError``."""
    mount_at("tmpfs", folder, kind="tmpfs", flags=_NOSUID | _NODEV | _NOEXEC, data=f"mode=700,size={bytes_max}")


def mount_overlay(overlay: OverlayMount) -> None:
    """Mount an overlay for this process and its children. Raises ``OSError``."""
    # The kernel separates folders by colons and options by commas.
    folders = [
        folder.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        for folder in (overlay.lower, overlay.upper, overlay.work)
    ]
    mount_at("overlay", overlay.target, kind="overlay", data="lowerdir={},upperdir={},workdir={}".format(*folders))


def show_at(folder: str, mounts: Sequence[MountPoint]) -> None:
    """Cover ``folder`` by an empty file system, and mount files and folders at their targets in it. Raises ``OSError``.

    This process and its children see the mounts.
    """
    hide(folder)
    for mount in mounts:
        with opened(mount) as source:
            bind(source, Path(mount.target))


@contextlib.contextmanager
def opened(mount: MountPoint) -> Iterator[str]:
    """Open the source of a mount, and yield a path for mount(2) that is valid while the context is open.

    Missing folders of the path are created.

    Raises:
        OSError: when the source is missing, or a part of the path within ``home`` or of ``below`` is a link.
    """
    descriptor = os.open(mount.home or mount.source, os.O_PATH | os.O_CLOEXEC)
    inside = mount.source.removeprefix(mount.home) if mount.home else ""
    try:
        for part in [part for part in f"{inside}/{mount.below}".split("/") if part]:
            above, descriptor = descriptor, _entered(descriptor, part, mount)
            os.close(above)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _entered(folder: int, name: str, mount: MountPoint) -> int:
    umask = os.umask(0)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _SUB_PATH_MODE, dir_fd=folder)
    os.umask(umask)
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        where = f"subPath {mount.below}" if mount.below else "volume"
        raise OSError(errno.ELOOP, f"{where}: {name} is a link", mount.target)
    return descriptor


def mount_system(folder: str) -> None:
    """Mount a /sys that shows the network of this process. Needs root. Raises ``OSError``."""
    mount_at("sysfs", folder, kind="sysfs", flags=_NOSUID | _NODEV | _NOEXEC)


def bind(source: str, target: Path) -> None:
    """Show a file or folder at a path that does not exist. Raises ``OSError``."""
    make_place(source, target)
    mount_at(source, str(target), flags=_MS_BIND | _MS_REC)


def make_place(source: str, target: Path) -> None:
    """Create an empty file or folder at which ``source`` can be mounted. Raises ``OSError``."""
    if Path(source).is_dir():
        target.mkdir()
    else:
        target.touch()


def unmount(target: str) -> None:
    """Unmount a path as soon as nothing uses it. Raises ``OSError``."""
    checked(LIBC.umount2(target.encode(), _MNT_DETACH), target)


def set_hostname(name: str) -> None:
    """As root, give this process a separate hostname, ``name``. Without root, do nothing.

    It distinguishes the apps of one machine that report their hostname.
    """
    if os.geteuid() == 0 and LIBC.unshare(_CLONE_NEWUTS) == 0:
        LIBC.sethostname(name.encode(), len(name.encode()))


@functools.cache
def can_mount() -> bool:
    """Whether this user may create mount namespaces. Tried once, in a child process; must not run in a thread."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            show_over((MountPoint(source=HOSTS_PATH, target=HOSTS_PATH),))
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def show_over(mounts: Sequence[MountPoint]) -> None:
    """Mount files over existing files, for only this process, as root or in a user namespace. Raises ``OSError``."""
    _unshare()
    mount_at("none", "/", flags=_MS_REC | _MS_PRIVATE)
    for mount in mounts:
        mount_at(mount.source, mount.target, flags=_MS_BIND)


class _Folder:
    """A folder of the new root that contains mounts: its ``folders`` and ``mounts``, by name."""

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.mounts: dict[str, MountPoint] = {}


def show_at_own_paths(mounts: Sequence[MountPoint], *, new_root: str, folder: str) -> frozenset[str]:
    """Give this process a new root in which each mount is at its target, and change to ``folder``. Raises ``OSError``.

    The root is built at the empty folder ``new_root``. Return the mounted targets: a mount below another one is left
    out.
    """
    own_mounts()
    tree = _tree(mounts)
    mount_at("tmpfs", new_root, kind="tmpfs")
    # Otherwise each folder around it would be bound with its content at that time.
    mount_at("none", new_root, flags=_MS_UNBINDABLE)
    _fill(Path("/"), tree, Path(new_root), passed=new_root)
    os.chdir(new_root)
    checked(LIBC.pivot_root(b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir(folder)
    return frozenset(mount.target for mount in _placed(tree))


def _placed(folder: _Folder) -> Iterator[MountPoint]:
    yield from folder.mounts.values()
    for below in folder.folders.values():
        yield from _placed(below)


def _tree(mounts: Sequence[MountPoint]) -> _Folder:
    """The folders that contain the mounts, as a tree. A mount below another one is left out."""
    root = _Folder()
    for mount in sorted(mounts, key=lambda mount: len(mount.target)):
        *parents, name = [part for part in mount.target.split("/") if part]
        here = root
        for part in parents:
            if part in here.mounts:
                break
            here = here.folders.setdefault(part, _Folder())
        else:
            if name not in here.folders:
                here.mounts[name] = mount
    return root


def _fill(source: Path, wanted: _Folder, target: Path, *, passed: str) -> None:
    for entry in os.scandir(source) if source.is_dir() else ():
        if entry.name not in wanted.folders and entry.name not in wanted.mounts and entry.path != passed:
            _copy(entry, target / entry.name)
    for name, below in wanted.folders.items():
        (target / name).mkdir()
        # Through links: /var/run may be /run.
        _fill(source / name, below, target / name, passed=passed)
    for name, mount in wanted.mounts.items():
        with opened(mount) as open_path:
            bind(open_path, target / name)
        if mount.read_only:
            flags = os.statvfs(target / name).f_flag & _KEPT_FLAGS
            mount_at("none", str(target / name), flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY | flags)


def _copy(entry: "os.DirEntry[str]", target: Path) -> None:
    if entry.is_symlink():
        target.symlink_to(Path(entry.path).readlink())
    else:
        bind(entry.path, target)


def _unshare() -> None:
    if os.geteuid() == 0 and LIBC.unshare(_CLONE_NEWNS) == 0:
        return
    _new_user_namespace(user=os.geteuid(), group=os.getegid())


def _new_user_namespace(*, user: int, group: int) -> None:
    """Enter a user namespace in which this process's user is ``user``, and a new mount namespace."""
    maps = (("setgroups", "deny"), ("uid_map", f"{user} {os.geteuid()} 1"), ("gid_map", f"{group} {os.getegid()} 1"))
    checked(LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    for name, text in maps:
        Path(f"/proc/self/{name}").write_text(text)
