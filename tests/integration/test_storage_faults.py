"""Storage faults: each is reported in one line, and no acknowledged write is lost.

A preloaded library makes ``fsync`` or ``pwrite`` fail while a file contains the fault.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.home.store.journal import VERSION_BLOCK, Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP
from tests.tidy.sources import ROOT

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static char fault(void) {
  char which = 0;
  int file = open(getenv("FAULT"), O_RDONLY);
  if (file >= 0) { if (read(file, &which, 1) != 1) which = 0; close(file); }
  return which;
}
#define SYNC(name) int name(int fd) { \\
  if (fault() == 's') { errno = EIO; return -1; } \\
  return ((int (*)(int))dlsym(RTLD_NEXT, #name))(fd); }
SYNC(fsync)
SYNC(fdatasync)
#define WRITE(name, offset) ssize_t name(int fd, const void *data, size_t size, offset at) { \\
  if (fault() == 'w') { errno = EROFS; return -1; } \\
  return ((ssize_t (*)(int, const void *, size_t, offset))dlsym(RTLD_NEXT, #name))(fd, data, size, at); }
WRITE(pwrite, off_t)
WRITE(pwrite64, off64_t)
"""
# Creates a ConfigMap for each line of its input; prints "kept" or the error.
WRITER = """
import asyncio, sys
from serving.net.cluster.kinds import CONFIG_MAP
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.core.model.errors import Unavailable

async def write():
    cluster = MemoryCluster(Journal(sys.argv[1]))
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            await cluster.create(CONFIG_MAP, {"metadata": {"name": name}})
            print("kept", flush=True)
        except Unavailable as error:
            print(error, flush=True)

asyncio.run(write())
"""


class Writer:
    """A process that writes objects; a test can inject faults."""

    def __init__(self, folder: Path, shim: Path) -> None:
        self._fault = folder / "fault"
        self._fault.write_text("")
        environment = {**os.environ, "LD_PRELOAD": str(shim), "FAULT": str(self._fault)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder / "journal.db")],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def create(self, name: str, *, fault: str = "") -> str:
        """The output for one write, during a fault if there is one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._fault.write_text(fault)
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        self._fault.write_text("")
        return answer

    def kill(self) -> None:
        """Kill the process, so that it writes nothing more."""
        self._process.kill()
        self._process.communicate()


async def names(path: Path) -> list[str]:
    cluster = MemoryCluster(Journal(path))
    results = [config_map["metadata"]["name"] for config_map in (await cluster.list(CONFIG_MAP, "default")).items]
    await cluster.close()
    return results


async def write(path: Path, more: Sequence[str]) -> int:
    """Create objects; return the highest version."""
    cluster = MemoryCluster(Journal(path))
    results = [await cluster.create(CONFIG_MAP, {"metadata": {"name": name}}) for name in more]
    await cluster.close()
    return max(int(resource["metadata"]["resourceVersion"]) for resource in results)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(folder / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    return folder / "shim.so"


@pytest.mark.parametrize(
    ("fault", "message"), [("s", "disk I/O error"), ("w", "disk I/O error")], ids=["fsync", "read-only"]
)
def test_failed_journal_write_is_rejected_and_next_write_succeeds(
    tmp_path: Path, shim: Path, fault: str, message: str
) -> None:
    """Takes two seconds, because it starts a store in a separate process."""
    writer = Writer(tmp_path, shim)
    assert writer.create("before") == "kept"
    answer = writer.create("during", fault=fault)
    assert answer.startswith(f"nothing was changed: the journal {tmp_path}/journal.db cannot be written: {message}")
    assert writer.create("after") == "kept"
    writer.kill()
    assert {"before", "after"} <= set(asyncio.run(names(tmp_path / "journal.db")))


async def test_torn_last_journal_record_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    cluster = MemoryCluster(Journal(path))
    for name in ("one", "two"):
        await cluster.create(CONFIG_MAP, {"metadata": {"name": name}})
    # As after a power failure: the log has two records and the beginning of a third.
    torn = tmp_path / "torn"
    torn.mkdir()
    shutil.copy(path, torn)
    log = (tmp_path / "journal.db-wal").read_bytes()
    (torn / "journal.db-wal").write_bytes(log + log[32:3000])
    await cluster.close()
    assert await names(torn / "journal.db") == ["one", "two"]


async def test_restored_older_journal_is_logged_and_reuses_no_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, copy = tmp_path / "journal.db", tmp_path / "copy"
    await write(path, ["one"])
    shutil.copy(path, copy)
    last = await write(path, ["two"])
    await write(path, ["three"])
    shutil.copy(copy, path)
    with caplog.at_level(logging.WARNING):
        assert await write(path, ["four"]) > last + VERSION_BLOCK
    assert [record.message for record in caplog.records if record.name == "store"] == ["journal.older_copy"]
    caplog.clear()
    assert await names(path) == ["four", "one"]
    assert [record.message for record in caplog.records if record.name == "store"] == []


@pytest.mark.parametrize(("option", "file"), [("", "lock"), ("-d", "logs/up.log")])
def test_read_only_state_folder_is_reported(tmp_path: Path, option: str, file: str) -> None:
    """Takes a second, because it starts the command line."""
    state = tmp_path / "state"
    for name in ("logs", "pods", "processes"):
        (state / name).mkdir(parents=True)
    mounts = f"mount --bind {state} {state} && mount -o remount,bind,ro {state} {state}"
    if subprocess.run(["unshare", "--mount", "sh", "-c", mounts], check=False).returncode:
        pytest.skip("no mounts can be made here")
    command = f"{mounts} && exec {sys.executable} -m serving up {option} --state {state}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"{state}/{file}: Read-only file system; expected a folder that can be written"]
