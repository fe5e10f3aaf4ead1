"""Daemons forked from a base, as real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# A supervisor that starts two daemons of one module, reaps them, and prints their process ids and exit codes.
SUPERVISOR = """
import json, os, sys
from serving.home.processes.process_lifetime import adopt_orphans
from serving.home.supervisor.daemonbase import DaemonBase, DaemonLaunch
adopt_orphans()
listens, reports = os.pipe()
log = os.open("log", os.O_CREAT | os.O_WRONLY)
with DaemonBase(["daemon"], environment={"OF_THE_BASE": "1"}) as base:
    launches = [DaemonLaunch("daemon", {"NAME": name}, {"api": listens}, log, reports) for name in ("first", "second")]
    pids = [base.start(launch) for launch in launches]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
print(json.dumps([os.getpid(), pids, codes]))
"""
DAEMON = """
import json, os, sys
from pathlib import Path
{more}
imported_by = os.getpid()
def is_open(number):
    try:
        # libffi, which ctypes uses, keeps its own file open where it maps trampolines from it.
        return "/libffi.so" not in os.readlink(f"/proc/self/fd/{{number}}")
    except OSError:
        return False
def main():
    sockets = json.loads(os.environ["SERVING_LISTEN_FDS"])
    print(json.dumps({{
        "forked": imported_by != os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "descriptors": sorted(filter(is_open, map(int, os.listdir("/proc/self/fd")))),
        "expected": sorted([0, 1, 2, *sockets.values(), int(os.environ["SERVING_READY_FD"])]),
        "input": os.readlink("/proc/self/fd/0"),
        "name": os.environ["NAME"],
        "base": "OF_THE_BASE" in os.environ,
        "room": [name for name in os.environ if name.startswith(("SERVING_BASE", "OPENBLAS"))],
        "shown": Path("/proc/self/environ").read_text().rstrip("\\0").split("\\0")
        == [f"{{name}}={{text}}" for name, text in os.environ.items()],
        "command": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0")[1:],
    }}), flush=True)
    return 7
if __name__ == "__main__":
    sys.exit(main())
"""


def supervise(folder: Path, more: str = "") -> tuple[list[Any], list[str]]:
    """Run the supervisor; return its output, and the lines of the daemons' log."""
    (folder / "daemon.py").write_text(DAEMON.format(more=more))
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**{name: text for name, text in os.environ.items() if "BLAS" not in name}, "PYTHONPATH": path}
    command = [sys.executable, "-c", SUPERVISOR]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), (folder / "log").read_text().splitlines()


def test_forked_daemon_has_its_own_process_environment_and_descriptors(tmp_path: Path) -> None:
    (supervisor, pids, codes), lines = supervise(tmp_path)
    assert codes == [7, 7]
    assert len(set(pids)) == len(lines) == 2
    documents = [json.loads(line) for line in lines]
    assert {entry["name"] for entry in documents} == {"first", "second"}
    for container in documents:
        assert container["forked"]
        assert container["parent"] == supervisor
        assert container["session"]
        assert container["descriptors"] == container["expected"]
        assert container["input"] == os.devnull
        assert container["base"]
        assert container["room"] == []
        assert container["shown"]
        assert container["command"] == ["-m", "daemon"]


def test_import_error_is_reported_by_each_daemon(tmp_path: Path) -> None:
    (_, _, codes), lines = supervise(tmp_path, more="import nothing_of_that_name")
    assert codes == [1, 1]
    assert lines.count("ModuleNotFoundError: No module named 'nothing_of_that_name'") == 2


def test_base_with_a_thread_executes_daemons_instead(tmp_path: Path) -> None:
    more = "import threading, time\nthreading.Thread(target=time.sleep, args=[0.5], daemon=True).start()"
    (supervisor, _, codes), lines = supervise(tmp_path, more=more)
    assert codes == [7, 7]
    assert [(entry["forked"], entry["parent"]) for entry in map(json.loads, lines)] == [(False, supervisor)] * 2


def test_new_objects_are_adjacent_after_fill_pools() -> None:
    program = """
from serving.home.supervisor.daemonbase import fill_pools

gaps = [[bytes(30 + size) for _ in range(1000)] for size in (20, 200)]
for objects in gaps:
    del objects[::2]
pools = fill_pools()
for size in (20, 200):
    new = [bytes(30 + size) for _ in range(20)]
    print(max(map(id, new)) - min(map(id, new)) < 2**14)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["True", "True"]
