"""Mounts the files of a container with its own user namespace, as root (user_namespaces(7)).

The users of such a container are a range of this machine's users, and may not enter the state folder. So its files are
mounted at a folder that all users may enter, only in the runtime's mount namespace. Id-mapped mounts show the files of
images and volumes with their owners on disk. Files written to the container's root and to an emptyDir belong to the
range.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.home.processes.confine import NO_EXEC, mount_mapped, open_users
from serving.home.processes.mounts import (
    MountPoint,
    OverlayMount,
    bind,
    hide,
    make_place,
    mount_overlay,
    mount_system,
    opened,
)

IDS_PER_POD = 65_536
"""Users and groups per pod, as in Kubernetes."""

_PORTS = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_NEEDS = "needs id-mapped mounts of this file system (Linux 6.3, and ext4, xfs, btrfs or tmpfs)"


class OwnUsers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user namespace of a container.

    Its user 0 is user ``first`` of this machine, user 1 is the next one, and so on. Groups have the same numbers. The
    container's files are mounted below the folder ``place``.
    """

    first: int
    place: str

    @property
    def root(self) -> str:
        """The path at which the container's root file system is mounted."""
        return f"{self.place}/root"

    @property
    def system(self) -> str:
        """The path at which a /sys of the container's network is mounted."""
        return f"{self.place}/sys"

    @property
    def map(self) -> str:
        """The mapping of users and groups, as a line for ``uid_map`` and ``gid_map``."""
        return f"0 {self.first} {IDS_PER_POD}\n"


def mount_files(users: OwnUsers, overlay: OverlayMount, mounts: Sequence[MountPoint], *, has_network: bool) -> None:
    """Mount the root and the volumes of a container before its runtime starts. Raises ``OSError``.

    The folders ``upper`` and ``work`` of ``overlay`` are empty. The targets of ``mounts`` are below ``users.place``.
    ``has_network``: this process is in the container's network.
    """
    hide_place(users)
    lower, top = f"{users.place}/lower", os.stat(overlay.lower)  # noqa: PTH116 - of a path in text
    # The writable layer's top folder exists before the container.
    os.chown(overlay.upper, users.first + top.st_uid % IDS_PER_POD, users.first + top.st_gid % IDS_PER_POD)
    with open(open_users(users.map, users.map)) as namespace:  # noqa: PTH123 - a descriptor
        for mount in (MountPoint(source=overlay.lower, target=lower), *mounts):
            _show(mount, users, namespace.fileno())
    mount_overlay(msgspec.structs.replace(overlay, lower=lower, target=users.root))
    Path(users.system).mkdir()
    mount_system(users.system)
    if has_network:
        # The machine's root owns it: otherwise ports below 1024 would be closed to the container.
        _PORTS.write_text("0")


def _show(mount: MountPoint, users: OwnUsers, namespace: int) -> None:
    with opened(mount) as source:
        if mount.is_own:
            bind(source, Path(mount.target))
            if os.stat(source).st_uid == 0:  # noqa: PTH116 - of a descriptor
                os.chown(source, users.first, users.first)
            return
        make_place(source, Path(mount.target))
        try:
            # runc cannot change mount flags that the user namespace has locked. A Secret does not need the flag.
            mount_mapped(source, mount.target, namespace, cleared=NO_EXEC)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: hostUsers: false {_NEEDS}", mount.source) from error


def hide_place(users: OwnUsers) -> None:
    """Cover ``users.place`` by an empty file system in this process's mount namespace, which the runtime inherits.

    Only the runtime sees the container's files, which are mounted there. runc needs the folder while the container
    runs.
    """
    hide(users.place)
    Path(users.root).mkdir()


def own_streams(users: OwnUsers, streams: Sequence[int]) -> None:
    """Make the container's root the owner of its streams, so that it can open /dev/stdout. Raises ``OSError``."""
    for stream in streams:
        if not os.isatty(stream):
            os.fchown(stream, users.first, users.first)
