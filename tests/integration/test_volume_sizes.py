"""The sizes of volumes: enforced by project quotas of a real file system, or measured without quotas.

Quotas need root, loop devices, mkfs.ext4, and a kernel with ext4's quotas (CONFIG_QFMT_V2).
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from serving.core.model.objects import Object, is_true
from serving.home.controllers.claimkeeper import ClaimKeeper
from serving.home.pods.claims import ENFORCED, OVER_SIZE
from serving.home.pods.volumequota import limit_folder, quota_gap, tree_bytes
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, PERSISTENT_VOLUME_CLAIM
from tests.eventually import until

_MIB = 2**20
_KEY = ("default", "db")


@pytest.fixture
def quotas(tmp_path: Path) -> Iterator[Path]:
    """A folder of an ext4 file system with project quotas."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("project quotas need root and mkfs.ext4")
    image, folder = tmp_path / "ext4", tmp_path / "volumes"
    with image.open("wb") as file:
        file.truncate(64 * _MIB)
    make = ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", str(image)]
    assert subprocess.run(make, check=False).returncode == 0
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-o", "loop,prjquota", str(image), str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"this kernel mounts no ext4 with project quotas: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path, byte_count: int) -> int:
    """Write up to `byte_count` bytes without the capability to exceed quotas; return the size of the file."""
    write = ["dd", "if=/dev/zero", f"of={path}", "bs=64k", f"count={byte_count // 65_536}", "status=none"]
    bounded = ["setpriv", "--bounding-set", "-sys_resource", *write]
    done = subprocess.run(bounded if os.geteuid() == 0 else write, check=False, capture_output=True, text=True)
    assert done.returncode == 0 or "quota exceeded" in done.stderr.lower(), done.stderr
    return path.stat().st_size


def test_project_quota_rejects_writes_beyond_volume_size(quotas: Path) -> None:
    db, other = quotas / "db", quotas / "other"
    for folder in (db, other):
        folder.mkdir()
    (db / "old").mkdir()
    # Existing files count.
    assert fill(db / "old" / "file", 2 * _MIB) == 2 * _MIB
    os.mkfifo(db / "pipe")
    (db / "link").symlink_to("/nowhere")
    assert quota_gap(quotas) == ""
    limit_folder(db, 4 * _MIB)
    assert _MIB < fill(db / "new", 8 * _MIB) < 2 * _MIB + 1
    assert fill(db / "old" / "more", _MIB) == 0
    # A larger size applies immediately, and another folder has its own limit.
    limit_folder(db, 6 * _MIB)
    assert fill(db / "more", _MIB) == _MIB
    limit_folder(other, 16 * _MIB)
    assert fill(other / "file", 8 * _MIB) == 8 * _MIB
    limit_folder(db, 0)
    assert fill(db / "more", 8 * _MIB) == 8 * _MIB


def test_missing_project_quotas_are_reported(tmp_path: Path) -> None:
    # tmpfs has no project quotas.
    folder = Path("/dev/shm") if os.geteuid() == 0 else tmp_path  # noqa: S108 - nothing is written
    assert quota_gap(folder) in {"its file system has no project quotas", "only root may set project quotas"}
    assert quota_gap(tmp_path / "missing") != ""


def test_tree_size_counts_hard_links_once_and_no_symlinks(tmp_path: Path) -> None:
    empty = tree_bytes(tmp_path)
    fill(tmp_path / "file", _MIB)
    os.link(tmp_path / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    assert empty + _MIB <= tree_bytes(tmp_path) < empty + _MIB + 65_536


@contextlib.asynccontextmanager
async def running_keeper(volumes: Path, size: str) -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    metadata = {"namespace": _KEY[0], "name": _KEY[1]}
    await cluster.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(ClaimKeeper(cluster, volumes).run())
        yield cluster
        running.cancel()


async def claim_of(cluster: MemoryCluster) -> Object:
    return await cluster.get(PERSISTENT_VOLUME_CLAIM, *_KEY)


async def test_volume_above_its_size_is_reported_until_it_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.home.controllers.claimkeeper._MEASURE_PERIOD_S", 0.05)
    # Disable quotas independently of the file system of the test.
    monkeypatch.setattr("serving.home.controllers.claimkeeper.quota_gap", lambda _: "no quotas")
    file = tmp_path / "default" / "db" / "file"
    async with running_keeper(tmp_path, "1Mi") as cluster:

        async def is_over_size() -> bool:
            return is_true(await claim_of(cluster), OVER_SIZE)

        await until(file.parent.is_dir)
        fill(file, 2 * _MIB)
        await until(is_over_size)
        assert not is_true(await claim_of(cluster), ENFORCED)

        async def warnings() -> list[Object]:
            return (await cluster.list(EVENT, _KEY[0])).items

        (event,) = await until(warnings)
        assert event["reason"] == OVER_SIZE
        assert "holds more than its size of 1Mi" in event["message"]
        file.unlink()

        async def is_within() -> bool:
            return not await is_over_size()

        await until(is_within)


async def test_claim_size_is_enforced_as_folder_limit(quotas: Path) -> None:
    async with running_keeper(quotas, "2Mi") as cluster:

        async def is_enforced() -> bool:
            return is_true(await claim_of(cluster), ENFORCED)

        await until(is_enforced)
        file = quotas / "default" / "db" / "file"
        assert _MIB < fill(file, 4 * _MIB) <= 2 * _MIB
        patch = {"spec": {"resources": {"requests": {"storage": "3Mi"}}}}
        await cluster.patch(PERSISTENT_VOLUME_CLAIM, *_KEY, patch=patch)

        async def is_larger() -> bool:
            return bool((await claim_of(cluster))["status"]["capacity"] == {"storage": "3Mi"})

        await until(is_larger)
        assert 2 * _MIB < fill(file, 4 * _MIB) <= 3 * _MIB
