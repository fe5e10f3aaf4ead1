"""Processes that a test starts end with its test process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests import orphans
from tests.eventually import until
from tests.tidy.sources import ROOT

# A test that starts a process in a new session, which starts another process, and then hangs.
_TEST = """
import subprocess, time

def test_it():
    subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! $$ > {file}.part; mv {file}.part {file}; wait"], start_new_session=True)
    time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_processes_of_a_killed_test_run_end(tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "test_it.py").write_text(_TEST.format(file=started))
    environment = {name: value for name, value in os.environ.items() if name != orphans.VARIABLE}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    running = subprocess.Popen(  # noqa: ASYNC220 - it is killed, not waited for
        [*command, "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await until(started.exists)
        pids = [int(pid) for pid in started.read_text().split()]
        assert all(map(is_alive, pids))
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    await until(lambda: not any(map(is_alive, pids)))
