"""A log file as the standard output of the processes that rotate it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.net.aio.ownlog import BYTES_VARIABLE, FILES_VARIABLE, OwnLog
from serving.net.aio.startup import LOG_FILE_VARIABLE

# Threads write continuously while the log is checked as fast as possible.
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


def test_rotation_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert started(path, "a", bytes_max=4000, files_max=100).wait() == 0
    lines = lines_of(path)
    assert (set(lines), len(lines)) == (numbered("a"), LINES)
    assert path.with_name("a.log.1").exists()


def test_rotation_by_two_processes_loses_no_line(tmp_path: Path) -> None:
    # As during the replacement of an activator.
    path = tmp_path / "a.log"
    both = [started(path, name, bytes_max=4000, files_max=200) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    lines = lines_of(path)
    assert (set(lines), len(lines)) == (numbered("a", "b"), 2 * LINES)


def test_number_of_log_files_is_bounded(tmp_path: Path) -> None:
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


def test_removed_log_file_is_recreated(tmp_path: Path) -> None:
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


def test_missing_log_folder_does_not_stop_output(tmp_path: Path) -> None:
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
def test_output_other_than_the_log_file_is_not_rotated(environment: dict[str, str]) -> None:
    # As of a daemon in a cluster, or of a daemon that was started manually.
    log = OwnLog.of(dict(environment))
    before = os.fstat(1)
    log.check()
    assert not log.is_ours
    assert os.fstat(1).st_ino == before.st_ino
