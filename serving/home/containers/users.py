"""The user that a container runs as, as numbers: from the security context, else from the image.

An image names users by number or by name. Names are resolved by the image's /etc/passwd and /etc/group, without
following links out of the image. As in Kubernetes, ``runAsUser`` overrides the image, and ``runAsNonRoot`` refuses
root.
"""

import os
import stat
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object

_BYTES_MAX = 2**20


class ContainerUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user with its primary group, further groups, and its home folder."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def user_of(security: Object, image_user: str, root: Path) -> ContainerUser:
    """The user of a container whose files are at ``root``. Raises ``InvalidValue``."""
    name, _, group = image_user.partition(":")
    if security.get("runAsUser") is not None:
        name, group = str(security["runAsUser"]), ""
    if security.get("runAsGroup") is not None:
        group = str(security["runAsGroup"])
    users, groups = _lines(root, "passwd"), _lines(root, "group")
    entry = next((user for user in users if name in (user[0], user[2])), None)
    if not name.isdecimal() and name and entry is None:
        raise InvalidValue(text=name, expected="a user in the image's /etc/passwd, or a number")
    uid = int(entry[2]) if entry else int(name or 0)
    if entry is None and not name:
        entry = next((user for user in users if user[2] == "0"), None)
    gid = _group(group, groups) if group else int(entry[3]) if entry else 0
    if security.get("runAsNonRoot") and uid == 0:
        raise InvalidValue(text="root", expected="a user other than root, as runAsNonRoot asks for")
    member = entry[0] if entry else ""
    further = {
        int(group_entry[2])
        for group_entry in groups
        if member and len(group_entry) > 3 and member in group_entry[3].split(",")
    }
    further |= {int(supplemental_group) for supplemental_group in security.get("supplementalGroups") or ()}
    if security.get("fsGroup") is not None:
        further.add(int(security["fsGroup"]))
    home = entry[5] if entry and len(entry) > 5 and entry[5] else "/"
    return ContainerUser(uid=uid, gid=gid, groups=tuple(sorted(further - {gid})), home=home)


def _group(text: str, groups: list[list[str]]) -> int:
    if text.isdecimal():
        return int(text)
    entry = next((group for group in groups if group[0] == text), None)
    if entry is None:
        raise InvalidValue(text=text, expected="a group in the image's /etc/group, or a number")
    return int(entry[2])


def _lines(root: Path, name: str) -> list[list[str]]:
    """The entries of an image's /etc/passwd or /etc/group; none if it is missing or a link."""
    try:
        if not stat.S_ISDIR((root / "etc").lstat().st_mode):
            return []
        descriptor = os.open(root / "etc" / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(_BYTES_MAX).decode(errors="replace")
    except OSError:
        return []
    entries = [line.split(":") for line in text.splitlines()]
    return [
        entry
        for entry in entries
        if len(entry) > 2 and entry[2].isdecimal() and (name == "group" or (entry[3:4] and entry[3].isdecimal()))
    ]
