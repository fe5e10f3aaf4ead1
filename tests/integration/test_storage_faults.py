"""Faults of storage: each is one line, and nothing that was acknowledged is lost.

A library that is loaded before libc's fails ``fsync`` or ``pwrite`` while a file says so.
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
# Creates a ConfigMap for each line of its input; answers with "kept" or the error.
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
    """A process that writes objects, and can be given faults."""

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
        """The answer to one write, during a fault."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._fault.write_text(fault)
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        self._fault.write_text("")
        return answer

    def kill(self) -> None:
        """End it without a chance to write anything more."""
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
def test_a_write_that_does_not_reach_the_disk_is_refused_and_the_next_is_kept(
    tmp_path: Path, shim: Path, fault: str, message: str
) -> None:
    """Takes two seconds: it starts a store in a process of its own."""
    writer = Writer(tmp_path, shim)
    assert writer.create("before") == "kept"
    answer = writer.create("during", fault=fault)
    assert answer.startswith(f"nothing was changed: the journal {tmp_path}/journal.db cannot be written: {message}")
    assert writer.create("after") == "kept"
    writer.kill()
    assert {"before", "after"} <= set(asyncio.run(names(tmp_path / "journal.db")))


async def test_a_torn_record_at_the_end_is_dropped_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    cluster = MemoryCluster(Journal(path))
    for name in ("one", "two"):
        await cluster.create(CONFIG_MAP, {"metadata": {"name": name}})
    # As a machine leaves it that lost its power: the log has both, and the beginning of a third.
    torn = tmp_path / "torn"
    torn.mkdir()
    shutil.copy(path, torn)
    log = (tmp_path / "journal.db-wal").read_bytes()
    (torn / "journal.db-wal").write_bytes(log + log[32:3000])
    await cluster.close()
    assert await names(torn / "journal.db") == ["one", "two"]


async def test_an_older_copy_is_noticed_and_uses_no_version_twice(
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
def test_a_read_only_folder_is_named(tmp_path: Path, option: str, file: str) -> None:
    """Takes a second: it starts the command line."""
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
