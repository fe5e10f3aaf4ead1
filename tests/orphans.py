"""End what a test process has left behind: ``python orphans.py PID MARK``.

``tests/conftest.py`` starts this beside each process that runs tests. When that process has ended, in whatever way,
this ends the processes whose environment has the mark, and all below them: a worker that is killed has no chance to.
Nothing else here can do that: a signal at the parent's death does not reach grandchildren, and a reaper would keep
zombies that tests look for.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

VARIABLE = "SERVING_TEST_PROCESS"
_GRACE_S, _PAUSE_S = 5.0, 0.1


def marked(mark: str) -> set[int]:
    """Processes whose environment has the mark, and all below them."""
    wanted = f"{VARIABLE}={mark}".encode()
    parents: dict[int, int] = {}
    results: set[int] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # After the name, which may hold anything: the state, then the parent.
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    results.add(int(folder.name))
    before = 0
    while len(results) != before:
        before = len(results)
        results |= {pid for pid, parent in parents.items() if parent in results}
    return results - {os.getpid()}


def end(mark: str) -> None:
    """Ask them to end, and kill those that are left after ``_GRACE_S``."""
    until_s = time.monotonic() + _GRACE_S
    requests: set[int] = set()
    while remaining := marked(mark):
        is_late = time.monotonic() >= until_s
        for pid in remaining if is_late else remaining - requests:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        requests |= remaining
        if time.monotonic() >= until_s + _GRACE_S:
            return
        time.sleep(_PAUSE_S)


def main() -> None:
    """Wait for the process, then end what has its mark."""
    pid, mark = int(sys.argv[1]), sys.argv[2]
    # What ends the run from a terminal must not end this first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end(mark)


if __name__ == "__main__":
    main()
