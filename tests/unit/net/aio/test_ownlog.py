"""A log that its own process rotates, in processes whose standard output it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.net.aio.ownlog import BYTES_VARIABLE, FILES_VARIABLE, OwnLog
from serving.net.aio.startup import LOG_FILE_VARIABLE

# Threads that write all the time, while the log is checked as fast as possible.
WRITER = """
import os, sys, threading
from pathlib import Path
from serving.net.aio.ownlog import OwnLog
log = OwnLog.of(os.environ)
def write(name, count):
    for number in range(count):
        os.write(1 + number % 2, f"{name} {number}\\n".encode())
threads = [threading.Thread(target=write, args=(f"{sys.argv[1]}.{index}", 2000)) for index in range(2)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    log.check()
log.check()
"""
LINES = 4000


def started(path: Path, name: str, *, bytes_max: int, files_max: int, program: str = WRITER) -> subprocess.Popen[bytes]:
    limits = {BYTES_VARIABLE: str(bytes_max), FILES_VARIABLE: str(files_max)}
    with path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", program, name],
            env=os.environ | {LOG_FILE_VARIABLE: str(path)} | limits,
            stdout=log,
            stderr=log,
        )


def lines_of(path: Path) -> list[str]:
    return [line for log_file in path.parent.iterdir() for line in log_file.read_text().splitlines()]


def numbered(*names: str) -> set[str]:
    return {f"{name}.{index} {number}" for name in names for index in range(2) for number in range(LINES // 2)}


def test_no_line_is_lost_while_it_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert started(path, "a", bytes_max=4000, files_max=100).wait() == 0
    lines = lines_of(path)
    assert (set(lines), len(lines)) == (numbered("a"), LINES)
    assert path.with_name("a.log.1").exists()


def test_of_two_processes_at_one_file_none_loses_a_line(tmp_path: Path) -> None:
    # As while an activator replaces another.
    path = tmp_path / "a.log"
    both = [started(path, name, bytes_max=4000, files_max=200) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    lines = lines_of(path)
    assert (set(lines), len(lines)) == (numbered("a", "b"), 2 * LINES)


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    program = """
import os
from serving.net.aio.ownlog import OwnLog
log = OwnLog.of(os.environ)
for number in range(9):
    os.write(1, b"x" * 1000)
    log.check()
"""
    path = tmp_path / "a.log"
    assert started(path, "a", bytes_max=2000, files_max=3, program=program).wait() == 0
    sizes = {log_file.name: log_file.stat().st_size for log_file in tmp_path.iterdir()}
    assert sizes == {"a.log": 1000, "a.log.1": 2000, "a.log.2": 2000}


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    program = """
import os
from pathlib import Path
from serving.net.aio.ownlog import LOG_FILE_VARIABLE, OwnLog
path = Path(os.environ[LOG_FILE_VARIABLE])
log = OwnLog.of(os.environ)
assert LOG_FILE_VARIABLE not in os.environ
path.unlink()
log.check()
print("after", flush=True)
"""
    path = tmp_path / "a.log"
    assert started(path, "a", bytes_max=2000, files_max=3, program=program).wait() == 0
    assert path.read_text() == "after\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    program = """
import os, shutil
from pathlib import Path
from serving.net.aio.ownlog import LOG_FILE_VARIABLE, OwnLog
folder = Path(os.environ[LOG_FILE_VARIABLE]).parent
log = OwnLog.of(os.environ)
folder.rename(folder.with_name("moved"))
log.check()
print("after", flush=True)
"""
    path = tmp_path / "logs" / "a.log"
    path.parent.mkdir()
    assert started(path, "a", bytes_max=1, files_max=3, program=program).wait() == 0
    assert (tmp_path / "moved" / "a.log").read_text() == "after\n"


@pytest.mark.parametrize("environment", [{}, {LOG_FILE_VARIABLE: "/nowhere/a.log"}])
def test_an_output_that_is_not_the_file_stays(environment: dict[str, str]) -> None:
    # As of a daemon on a cluster, or of one that was started by hand.
    log = OwnLog.of(dict(environment))
    before = os.fstat(1)
    log.check()
    assert not log.is_ours
    assert os.fstat(1).st_ino == before.st_ino
