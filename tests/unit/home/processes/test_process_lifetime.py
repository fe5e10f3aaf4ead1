"""Parents of forked processes, in a single-threaded interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.home.processes.process_lifetime import can_fork_sibling, join_cgroups

# A child forks a sibling: the first process is the parent of both and reaps them.
PROGRAM = """
import os, threading, time
from serving.home.processes.process_lifetime import fork_sibling
mine, its = os.pipe()
first = os.getpid()
if os.fork() == 0:
    sibling = fork_sibling()
    if sibling == 0:
        # The C library finds the clock of a thread by its id.
        clock = time.pthread_getcpuclockid(threading.get_ident())
        os.write(its, f"{os.getppid() == first and time.clock_gettime(clock) > 0} ".encode())
    else:
        os.write(its, f"{sibling > 0} ".encode())
    os._exit(7)
os.close(its)
codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]
print(os.read(mine, 100).decode() + str(codes))
"""


@pytest.mark.skipif(not can_fork_sibling(), reason="clone(2) has another number on this machine")
def test_forked_sibling_has_the_same_parent() -> None:
    completed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert completed.stdout == "True True [7, 7]\n"


def test_process_joins_cgroups_by_tasks_file_if_present(tmp_path: Path) -> None:
    first, unified = tmp_path / "first", tmp_path / "unified"
    for folder, names in ((first, ("tasks", "cgroup.procs")), (unified, ("cgroup.procs",))):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    join_cgroups(map(str, (first, unified)))
    assert ((first / "tasks").read_text(), (first / "cgroup.procs").read_text()) == ("0", "")
    assert (unified / "cgroup.procs").read_text() == "0"
    # Another process may have several threads, so all of it joins.
    join_cgroups([str(first)], 7)
    assert ((first / "tasks").read_text(), (first / "cgroup.procs").read_text()) == ("0", "7")
