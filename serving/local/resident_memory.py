"""How much memory the sessions of pods hold, from /proc: what stands in for a cgroup where there is none.

Pages that processes of one session share count once for each, so that an app of several processes reads too high, never
too low.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

__all__ = ["resident_bytes_by_session"]

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
