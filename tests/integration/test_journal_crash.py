"""Crashes of a store with a journal: acknowledged writes survive."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP
from tests.tidy.sources import ROOT

Line = tuple[str, str, int]


def killed_after(lines_count: int, path: Path, run: str) -> list[Line]:
    """The output of a writer that is killed with SIGKILL after `lines_count` lines."""
    command = [sys.executable, "-m", "tests.integration.journal_writer", str(path), run]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        readlines = [writer.stdout.readline() for _ in range(lines_count)]
        writer.kill()
        # Lines in the pipe count too; the last one may be incomplete.
        readlines += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    lines = [line.split() for line in readlines]
    return [(word, name, int(version)) for word, name, version in lines]


async def stored_steps(path: Path) -> tuple[dict[str, str], int]:
    """The step of each object by name, and the resourceVersion of the list."""
    cluster = MemoryCluster(Journal(path))
    listing = await cluster.list(CONFIG_MAP)
    await cluster.close()
    return {item["metadata"]["name"]: item["data"]["step"] for item in listing.items}, int(listing.resource_version)


@pytest.mark.parametrize("lines_count", [1, 50, 400])
async def test_acknowledged_writes_survive_a_crash(tmp_path: Path, lines_count: int) -> None:
    path = tmp_path / "journal.db"
    acknowledged = killed_after(lines_count, path, "a")
    deleted = {name for word, name, _ in acknowledged if word == "deleted"}
    stored, _ = await stored_steps(path)
    # An object whose deletion was in progress may be deleted.
    last_of_client = {name.rpartition("-")[0]: name for word, name, _ in acknowledged if word == "kept"}
    possibly_deleted = {name for name in last_of_client.values() if int(name.rpartition("-")[2]) % 2}
    results = {name for word, name, _ in acknowledged if word == "kept"} - deleted
    assert {name for name in results if stored.get(name) != "patched"} <= possibly_deleted
    assert not deleted & set(stored)


async def test_resource_versions_increase_across_crashes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    highest = 0
    for run in ("a", "b", "c"):
        versions = [version for word, _, version in killed_after(20, path, run) if word == "kept"]
        assert min(versions) > highest
        highest = max(versions)
    assert (await stored_steps(path))[1] > highest
