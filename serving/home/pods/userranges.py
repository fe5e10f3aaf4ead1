"""Ranges of user and group ids for pods with ``hostUsers: false``: 65,536 ids each.

As with Kubernetes' kubelet, an administrator may set the ids for pods in /etc/subuid and /etc/subgid (subuid(5)), by a
line for the user ``serving`` in both. Without such lines the ids are from the range that systemd leaves to container
managers. A range that any process of the machine uses is skipped.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from serving.home.processes.ownusers import IDS_PER_POD

# The user name in /etc/subuid and /etc/subgid.
_OWNER = "serving"

_FILES = (Path("/etc/subuid"), Path("/etc/subgid"))
# All user and group ids, as in a process without a user namespace.
_ALL = 2**32 - 1


class IdRange(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` user ids of this machine from ``first``."""

    first: int
    count: int

    @property
    def pod_count(self) -> int:
        """The number of pods that fit into the range."""
        return self.count // IDS_PER_POD


# UIDs and GIDs of systemd: containers have 524288 to 1879048191. These are far from those that useradd assigns.
DEFAULT_RANGE = IdRange(first=0x4000_0000, count=0x2000_0000)


def subordinate_range(files: Collection[Path] = _FILES) -> IdRange:
    """The id range for pods from /etc/subuid and /etc/subgid; the default without a usable line."""
    ranges: list[set[tuple[int, int]]] = []
    for file in files:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
        rows = (line.strip().split(":") for line in lines)
        ranges.append({(int(row[1]), int(row[2])) for row in rows if _is_ours(row)})
    usable = sorted(set.intersection(*ranges))
    return IdRange(first=usable[0][0], count=usable[0][1]) if usable else DEFAULT_RANGE


def _is_ours(row: list[str]) -> bool:
    if len(row) != 3 or row[0] != _OWNER or not (row[1].isdecimal() and row[2].isdecimal()):
        return False
    # The machine's own users are below.
    first, count = int(row[1]), int(row[2])
    return first >= IDS_PER_POD and count >= IDS_PER_POD and first + count < _ALL


def used_ranges(proc: Path = Path("/proc")) -> set[tuple[int, int]]:
    """The ranges of this machine's user ids that processes in user namespaces use, as (first, count).

    Reads one file per process.
    """
    lines: set[bytes] = set()
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of entries, while a pod waits
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"{proc}/{name}/uid_map", "rb") as file:  # noqa: PTH123 - the same
                lines |= set(file.read().splitlines())
    rows = (tuple(map(int, line.split())) for line in lines)
    return {(first, count) for _, first, count in rows if count != _ALL}


def free_firsts(whole: IdRange, used: Collection[tuple[int, int]], *, start: int) -> Iterator[int]:
    """Yield the first user id of each unused pod range, beginning with range number ``start`` and wrapping around."""
    for number in range(whole.pod_count):
        first = whole.first + (start + number) % whole.pod_count * IDS_PER_POD
        if not any(first < other + count and other < first + IDS_PER_POD for other, count in used):
            yield first
