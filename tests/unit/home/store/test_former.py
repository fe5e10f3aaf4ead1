"""Derived objects retain creation time and generation across restarts."""

from pathlib import Path
from typing import Any

from serving.core.model.objects import Object
from serving.home.backup import FORMAT, BackupManifest, restore_backup, write_backup
from serving.home.state import StateFolder
from serving.home.store.former import FormerObjects
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT

FIRST_S, SECOND_S = 1_800_000_000.0, 1_800_003_600.0


def opened(folder: Path, wall_s: float) -> MemoryCluster:
    return MemoryCluster(Journal(folder / "journal.db"), wall_s=lambda: wall_s)


async def deployed(cluster: MemoryCluster, *, replicas: int = 1) -> Object:
    """Create a Deployment owned by a ConfigMap, which is created if missing."""
    owners = (await cluster.list(CONFIG_MAP, namespace="default")).items
    owner = owners[0] if owners else await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    metadata = {"name": "app", "ownerReferences": [{**reference, "controller": True}]}
    return await cluster.create(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": replicas}})


def identity(resource: Object) -> tuple[Any, ...]:
    return tuple(resource["metadata"][key] for key in ("uid", "creationTimestamp", "generation"))


async def test_recreated_derived_object_retains_its_identity(tmp_path: Path) -> None:
    first = opened(tmp_path, FIRST_S)
    await deployed(first)
    patched = await first.patch(DEPLOYMENT, "default", "app", patch={"spec": {"replicas": 3}})
    assert patched["metadata"]["generation"] == 2
    await first.close()
    second = opened(tmp_path, SECOND_S)
    assert identity(await deployed(second, replicas=3)) == identity(patched)
    await second.close()
    # Changed content increases the generation, as within one run.
    third = opened(tmp_path, SECOND_S)
    assert identity(await deployed(third, replicas=4)) == (*identity(patched)[:2], 3)
    await third.close()


async def test_restored_backup_retains_identity_of_derived_objects(tmp_path: Path) -> None:
    original = StateFolder(tmp_path / "original")
    original.path.mkdir()
    first = opened(original.path, FIRST_S)
    result = await deployed(first)
    file = tmp_path / "saved.tar.gz"
    manifest = BackupManifest(format=FORMAT, version="1", created_s=FIRST_S)
    write_backup(file, original, journal=await first.journal_copy(), manifest=manifest)
    await first.close()
    restore_backup(file, StateFolder(tmp_path / "other"))
    second = opened(tmp_path / "other", SECOND_S)
    assert identity(await deployed(second)) == identity(result)
    await second.close()


async def test_deleted_and_recreated_derived_object_is_new(tmp_path: Path) -> None:
    first = opened(tmp_path, FIRST_S)
    before = await deployed(first)
    await first.close()
    second = opened(tmp_path, SECOND_S)
    await deployed(second)
    await second.delete(DEPLOYMENT, "default", "app")
    again = await deployed(second)
    assert again["metadata"]["creationTimestamp"] > before["metadata"]["creationTimestamp"]
    assert again["metadata"]["generation"] == 1
    await second.close()


async def test_missing_or_unreadable_derived_file_loses_creation_time_only(tmp_path: Path) -> None:
    first = opened(tmp_path, FIRST_S)
    before = await deployed(first)
    derived_file = tmp_path / "journal.db.derived"
    # The folder prevents the file from being written.
    derived_file.with_name(f"{derived_file.name}.new").mkdir()
    await first.close()
    assert not derived_file.exists()
    for content in (b"", b"[]", b'{"a": 1}', b"\xff\x00" * 10):
        derived_file.write_bytes(content)
        second = opened(tmp_path, SECOND_S)
        after = await deployed(second)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["creationTimestamp"] > before["metadata"]["creationTimestamp"]
        await second.close()


def test_no_journal_resumes_no_former_object() -> None:
    result = {"metadata": {"uid": "a", "creationTimestamp": "b"}}
    assert FormerObjects(None).resumed(result) is result
