"""Reads numbers from /proc, and the version 2 cgroups that limit this process's memory."""

import math
from collections.abc import Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

NO_BOUND = math.inf
"""The value "max" of a cgroup without a limit."""


def amounts_of(path: Path) -> dict[str, int]:
    """Parse lines of a name and a whole number, as in /proc/meminfo and in a cgroup's files."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1}


def cgroup_folders(proc: Path, cgroups: Path) -> Sequence[Path]:
    """The folders of this process's cgroup and its ancestors, which may all have limits. Empty for cgroup v1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    ours = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if ours is None or not (cgroups / "cgroup.controllers").exists():
        return []
    folder = cgroups / ours
    # In a container the path may exist on the host only; then the root is the own cgroup.
    return [
        candidate for candidate in (folder, *folder.parents) if candidate.is_relative_to(cgroups) and candidate.is_dir()
    ]


def memory_bound(folder: Path) -> float:
    """The memory limit of a cgroup, in bytes; infinite if it has none."""
    try:
        text = (folder / "memory.max").read_text().strip()
    except OSError:
        return NO_BOUND
    return NO_BOUND if text == "max" else int(text)


def held_bytes(folder: Path) -> int:
    """The memory used by a cgroup, in bytes.

    Inactive file pages count as free, as in a kubelet, because they are reclaimable.
    """
    cached = amounts_of(folder / "memory.stat").get("inactive_file", 0)
    return max(0, int((folder / "memory.current").read_text()) - cached)
