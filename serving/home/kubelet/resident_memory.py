"""How much memory the sessions of pods hold, from /proc: what stands in for a cgroup where there is none.

Pages that processes of one session share count once for each, so that an app of several processes reads too high, never
too low.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from serving.home.kubelet.pod import PodRun
from serving.home.kubelet.podwarnings import memory_limit_bytes
from serving.home.pods.podplan import all_containers, container_name_of

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the name, see proc(5): session is its 6th of all, rss its 24th.
_SESSION, _RSS_PAGES = 3, 21


def resident_bytes_by_session() -> Counter[int]:
    """Resident bytes of all sessions, by the process id of the leader."""
    found: Counter[int] = Counter()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(fields[_SESSION])] += int(fields[_RSS_PAGES]) * _PAGE_BYTES
    return found


def memory_limits(pod: PodRun) -> dict[str, int]:
    """The limits in bytes of the containers that have started; nothing where a cgroup kills by itself."""
    box = pod.box
    is_watched = box is None or not box.has_containers or "memory" in box.refused_limits
    if not is_watched or not pod.keepers:
        return {}
    limits = {container_name_of(one): memory_limit_bytes(one) for one in all_containers(pod.manifest)}
    return {name: limit for name, limit in limits.items() if limit and name in pod.keepers}


def kill_above_limits(pod: PodRun, resident_bytes: Mapping[int, int]) -> None:
    """Kill each container that holds more than its limit. ``resident_bytes`` is by session."""
    for name, limit in memory_limits(pod).items():
        process = pod.keepers[name].process
        if process is not None and resident_bytes.get(process.pid, 0) > limit:
            pod.keepers[name].kill("OOMKilled")
