"""A store killed in the middle of its writes keeps every acknowledged one."""

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
    """Output of a writer killed with -9 after so many lines."""
    command = [sys.executable, "-m", "tests.integration.journal_writer", str(path), run]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        readlines = [writer.stdout.readline() for _ in range(lines_count)]
        writer.kill()
        # What it wrote into the pipe before the end counts too; only the last line may be cut short.
        readlines += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    lines = [line.split() for line in readlines]
    return [(word, name, int(version)) for word, name, version in lines]


async def steps_there(path: Path) -> tuple[dict[str, str], int]:
    """Name and step of each object, and the version of the whole."""
    cluster = MemoryCluster(Journal(path))
    listing = await cluster.list(CONFIG_MAP)
    await cluster.close()
    return {item["metadata"]["name"]: item["data"]["step"] for item in listing.items}, int(listing.resource_version)


@pytest.mark.parametrize("lines_count", [1, 50, 400])
async def test_every_acknowledged_write_is_there(tmp_path: Path, lines_count: int) -> None:
    path = tmp_path / "journal.db"
    killeds = killed_after(lines_count, path, "a")
    deleted = {name for word, name, _ in killeds if word == "deleted"}
    there, _ = await steps_there(path)
    # One whose deletion was under way may be gone: its client had asked for that.
    last_of_client = {name.rpartition("-")[0]: name for word, name, _ in killeds if word == "kept"}
    asked_to_go = {name for name in last_of_client.values() if int(name.rpartition("-")[2]) % 2}
    results = {name for word, name, _ in killeds if word == "kept"} - deleted
    assert {name for name in results if there.get(name) != "patched"} <= asked_to_go
    assert not deleted & set(there)


async def test_versions_never_go_back_over_several_crashes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    highest = 0
    for run in ("a", "b", "c"):
        versions = [version for word, _, version in killed_after(20, path, run) if word == "kept"]
        assert min(versions) > highest
        highest = max(versions)
    assert (await steps_there(path))[1] > highest
