"""The journal, and the store on it: durable writes, pending writes and failures."""

import asyncio
import contextlib
import itertools
import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from serving.core.model.errors import AlreadyExists, Conflict, Gone, JournalDamaged, NotFound, Unavailable
from serving.core.model.objects import Object
from serving.home.store.journal import VERSION_BLOCK, Journal, JournalEntry
from serving.home.store.memory import MemoryCluster
from serving.home.store.state import FIRST_NAMESPACES
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, REVISION, SERVING_SERVICE
from serving.net.cluster.port import EventType
from tests.eventually import next_turn

SMALL_BYTES = 96 * 1024


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


def revision(name: str = "one", state: str = "Reserve") -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"image": "i"}], "servingState": state}}


def deployment(name: str, *, owner: str = "") -> Object:
    owners = [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "ownerReferences": owners}, "spec": {"replicas": 3}}


@asynccontextmanager
async def store(folder: Path, *, bytes_max: int = 2**30) -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster(Journal(folder / "journal.db", bytes_max=bytes_max))
    try:
        yield cluster
    finally:
        await cluster.close()


@contextmanager
def new_journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        asyncio.run(journal.close())


async def fill(cluster: MemoryCluster) -> None:
    """Write until the disk is full."""

    async def write() -> None:
        for number in itertools.count():
            await cluster.create(CONFIG_MAP, config_map(f"filler-{number}", text="x" * 10_000))

    with pytest.raises(Unavailable, match="nothing was changed"):
        await write()


async def test_user_writes_survive_a_restart(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        new_config_map = await cluster.create(CONFIG_MAP, config_map("one", a="b"))
        await cluster.create(CONFIG_MAP, config_map("two"))
        await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"a": "c"}})
        await cluster.delete(CONFIG_MAP, "default", "two")
    async with store(tmp_path) as cluster:
        items = (await cluster.list(CONFIG_MAP)).items
    assert [(resource["metadata"]["uid"], resource["data"]) for resource in items] == [
        (new_config_map["metadata"]["uid"], {"a": "c"})
    ]


async def test_initial_namespaces_retain_identity_across_restart(tmp_path: Path) -> None:
    results = []
    for _ in range(2):
        async with store(tmp_path) as cluster:
            results.append([await cluster.get(NAMESPACE, "", name) for name in FIRST_NAMESPACES])
    keys = ("uid", "creationTimestamp")
    first, second = ([[resource["metadata"][key] for key in keys] for resource in start] for start in results)
    assert first == second
    assert [entry["status"] for entry in results[1]] == [{"phase": "Active"}] * len(FIRST_NAMESPACES)


async def test_pods_and_statuses_do_not_survive_a_restart(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(POD, {"metadata": {"name": "one"}, "spec": {}})
        await cluster.create(REVISION, revision())
        await cluster.patch(REVISION, "default", "one", patch={"status": {"x": 1}}, subresource="status")
    async with store(tmp_path) as cluster:
        assert (await cluster.list(POD)).items == []
        assert "status" not in await cluster.get(REVISION, "default", "one")


async def test_unowned_deployments_survive_a_restart_with_their_scale(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        for name, owner in (("own", ""), ("derived", "a"), ("left", "a"), ("deleted", "")):
            await cluster.create(DEPLOYMENT, deployment(name, owner=owner))
        await cluster.patch(DEPLOYMENT, "default", "own", patch={"spec": {"replicas": 0}}, subresource="scale")
        await cluster.patch(DEPLOYMENT, "default", "left", patch={"metadata": {"ownerReferences": None}})
        await cluster.delete(DEPLOYMENT, "default", "deleted")
    async with store(tmp_path) as cluster:
        present = (await cluster.list(DEPLOYMENT)).items
    assert [(resource["metadata"]["name"], resource["spec"]["replicas"]) for resource in present] == [
        ("left", 3),
        ("own", 0),
    ]


async def test_adopted_deployment_does_not_survive_a_restart(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(DEPLOYMENT, deployment("one"))
        owners = deployment("one", owner="a")["metadata"]
        await cluster.patch(DEPLOYMENT, "default", "one", patch={"metadata": owners})
    async with store(tmp_path) as cluster:
        assert (await cluster.list(DEPLOYMENT)).items == []


async def test_serving_state_written_behind_survives_a_restart(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(REVISION, revision())
        await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": "Active"}})
    async with store(tmp_path) as cluster:
        current_revision = await cluster.get(REVISION, "default", "one")
    assert (current_revision["spec"]["servingState"], current_revision["metadata"]["generation"]) == ("Active", 2)


async def test_resource_versions_increase_across_restart(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        before = int((await cluster.create(CONFIG_MAP, config_map("one")))["metadata"]["resourceVersion"])
    async with store(tmp_path) as cluster:
        listing = await cluster.list(CONFIG_MAP)
        assert int(listing.resource_version) >= VERSION_BLOCK > before
        assert int(listing.items[0]["metadata"]["resourceVersion"]) >= VERSION_BLOCK


async def test_watch_from_before_a_restart_is_gone(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        new_config_map = await cluster.create(CONFIG_MAP, config_map("one"))
    async with store(tmp_path) as cluster:
        with pytest.raises(Gone):
            async with cluster.watch(CONFIG_MAP, resource_version=new_config_map["metadata"]["resourceVersion"]):
                pass


async def test_watch_from_first_list_after_restart_reports_changes(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(CONFIG_MAP, config_map("one"))
    async with store(tmp_path) as cluster:
        start = (await cluster.list(CONFIG_MAP)).resource_version
        await cluster.delete(CONFIG_MAP, "default", "one")
        async with cluster.watch(CONFIG_MAP, resource_version=start) as events:
            assert (await anext(events)).type is EventType.DELETED


async def test_replace_of_a_version_before_restart_conflicts(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        new_config_map = await cluster.create(CONFIG_MAP, config_map("one"))
    async with store(tmp_path) as cluster:
        with pytest.raises(Conflict):
            await cluster.replace(CONFIG_MAP, new_config_map | {"data": {"a": "b"}})


async def test_write_is_visible_only_after_it_is_on_disk(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        creation = asyncio.create_task(cluster.create(CONFIG_MAP, config_map("one")))
        # After one loop iteration the write is submitted but not completed.
        await next_turn()
        with pytest.raises(NotFound):
            await cluster.get(CONFIG_MAP, "default", "one")
        await creation
        await cluster.get(CONFIG_MAP, "default", "one")


async def test_second_of_two_concurrent_creations_is_rejected(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        done = await asyncio.gather(
            *(cluster.create(CONFIG_MAP, config_map("one")) for _ in range(2)), return_exceptions=True
        )
    assert [type(outcome) for outcome in done] == [dict, AlreadyExists]


async def test_concurrent_patches_of_an_object_are_all_applied(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(CONFIG_MAP, config_map("one"))
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {f"key-{number}": "x"}}))
        assert len((await cluster.get(CONFIG_MAP, "default", "one"))["data"]) == 20


async def test_cancelled_write_is_completed_and_delays_no_other(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        creations = [asyncio.create_task(cluster.create(CONFIG_MAP, config_map(name))) for name in ("one", "two")]
        await next_turn()
        creations[0].cancel()
        async with asyncio.timeout(60):
            await creations[1]
        await cluster.get(CONFIG_MAP, "default", "one")


async def test_body_changed_during_a_disk_write_is_not_stored(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        body = config_map("one", a="b")
        creation = asyncio.create_task(cluster.create(CONFIG_MAP, body))
        await next_turn()
        body["data"]["a"] = "changed"
        assert (await creation)["data"] == {"a": "b"}


async def test_serving_state_and_status_overtake_a_pending_write(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(REVISION, revision())
        label = {"metadata": {"labels": {"a": "b"}}}
        slow = asyncio.create_task(cluster.patch(REVISION, "default", "one", patch=label))
        await next_turn()
        flipped = await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": "Active"}})
        await cluster.patch(REVISION, "default", "one", patch={"status": {"x": 1}}, subresource="status")
        assert not slow.done()
        assert "labels" not in flipped["metadata"]
        last = await slow
    assert (last["spec"]["servingState"], last["status"], last["metadata"]["labels"]) == (
        "Active",
        {"x": 1},
        {"a": "b"},
    )
    assert last["metadata"]["generation"] > flipped["metadata"]["generation"]
    async with store(tmp_path) as cluster:
        current_revision = await cluster.get(REVISION, "default", "one")
    assert (current_revision["spec"]["servingState"], current_revision["metadata"]["labels"]) == ("Active", {"a": "b"})


async def test_concurrently_changed_serving_state_conflicts(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        await cluster.create(REVISION, revision())
        patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"servingState": "Retired"}}
        slow = asyncio.create_task(cluster.patch(REVISION, "default", "one", patch=patch))
        await next_turn()
        await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": "Active"}})
        with pytest.raises(Conflict):
            await slow
    # The disk has the visible state, not the rejected one.
    async with store(tmp_path) as cluster:
        current_revision = await cluster.get(REVISION, "default", "one")
    assert (current_revision["spec"]["servingState"], "labels" in current_revision["metadata"]) == ("Active", False)


async def test_pending_deletion_reports_the_last_status(tmp_path: Path) -> None:
    async with store(tmp_path) as cluster:
        new_revision = await cluster.create(REVISION, revision())
        slow = asyncio.create_task(cluster.delete(REVISION, "default", "one"))
        await next_turn()
        await cluster.patch(REVISION, "default", "one", patch={"status": {"x": 1}}, subresource="status")
        await slow
        async with cluster.watch(REVISION, resource_version=new_revision["metadata"]["resourceVersion"]) as events:
            reported = [await anext(events) for _ in range(2)]
    assert [(event.type, event.object["status"]) for event in reported] == [
        (EventType.MODIFIED, {"x": 1}),
        (EventType.DELETED, {"x": 1}),
    ]


async def test_serving_state_that_overtook_a_failed_write_is_stored(tmp_path: Path) -> None:
    async with store(tmp_path, bytes_max=SMALL_BYTES) as cluster:
        await cluster.create(REVISION, revision())
        patch = {"metadata": {"annotations": {"a": "x" * 200_000}}}
        slow = asyncio.create_task(cluster.patch(REVISION, "default", "one", patch=patch))
        await next_turn()
        await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": "Active"}})
        with pytest.raises(Unavailable):
            await slow
    async with store(tmp_path) as cluster:
        current_revision = await cluster.get(REVISION, "default", "one")
    assert (current_revision["spec"]["servingState"], "annotations" in current_revision["metadata"]) == (
        "Active",
        False,
    )


async def test_full_disk_rejects_writes_and_loses_no_object(tmp_path: Path) -> None:
    async with store(tmp_path, bytes_max=SMALL_BYTES) as cluster:
        await cluster.create(CONFIG_MAP, config_map("kept", a="b"))
        await fill(cluster)
        before = (await cluster.list(CONFIG_MAP)).items
        with pytest.raises(Unavailable, match="full"):
            await cluster.patch(CONFIG_MAP, "default", "kept", patch={"data": {"a": "y" * 50_000}})
        assert (await cluster.list(CONFIG_MAP)).items == before
    async with store(tmp_path) as cluster:
        after = (await cluster.list(CONFIG_MAP)).items
    assert [entry["data"] for entry in after] == [entry["data"] for entry in before]


async def test_full_disk_does_not_block_volatile_writes(tmp_path: Path) -> None:
    async with store(tmp_path, bytes_max=SMALL_BYTES) as cluster:
        await cluster.create(REVISION, revision())
        await fill(cluster)
        await cluster.create(POD, {"metadata": {"name": "one"}, "spec": {}})
        await cluster.create(DEPLOYMENT, deployment("one", owner="a"))
        await cluster.patch(DEPLOYMENT, "default", "one", patch={"spec": {"replicas": 1}}, subresource="scale")
        await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": "Active"}})
        await cluster.patch(REVISION, "default", "one", patch={"status": {"x": 1}}, subresource="status")
        assert (await cluster.get(REVISION, "default", "one"))["spec"]["servingState"] == "Active"


async def test_full_disk_allows_deletion_and_rejects_new_templates(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)], check=False).returncode:  # noqa: ASYNC221
        pytest.skip("a small file system cannot be mounted here")
    try:
        async with store(folder) as cluster:
            await cluster.create(CONFIG_MAP, config_map("marked", a="b"))
            await cluster.create(SERVING_SERVICE, {"metadata": {"name": "one"}, "spec": {"template": {}}})
            await fill(cluster)
            with pytest.raises(Unavailable, match=rf"{folder}/journal.db cannot be written: .* full; make room"):
                await cluster.create(CONFIG_MAP, config_map("another", text="x" * 10_000))
            with pytest.raises(Unavailable, match="make room"):
                await cluster.patch(SERVING_SERVICE, "default", "one", patch={"spec": {"template": {"x": 1}}})
            await cluster.patch(SERVING_SERVICE, "default", "one", patch={"spec": {"traffic": [{"percent": 100}]}})
            finalized = {"metadata": {"finalizers": ["a/b"]}}
            await cluster.patch(CONFIG_MAP, "default", "marked", patch=finalized)
            for resource in (await cluster.list(CONFIG_MAP)).items:
                await cluster.delete(CONFIG_MAP, "default", resource["metadata"]["name"])
            (remaining,) = (await cluster.list(CONFIG_MAP)).items
            assert "deletionTimestamp" in remaining["metadata"]
        async with store(folder) as cluster:
            assert len((await cluster.list(CONFIG_MAP)).items) == 1
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: ASYNC221


async def test_store_starts_on_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)], check=False).returncode:  # noqa: ASYNC221
        pytest.skip("a small file system cannot be mounted here")
    try:
        async with store(folder) as cluster:
            await cluster.create(CONFIG_MAP, config_map("one", a="b"))
        with (folder / "hog").open("wb", buffering=0) as hog, contextlib.suppress(OSError):
            while hog.write(b"x" * 4096):
                pass
        async with store(folder) as cluster:
            assert (await cluster.get(CONFIG_MAP, "default", "one"))["data"] == {"a": "b"}
            with pytest.raises(Unavailable, match="make room on its disk: deletes still work"):
                await cluster.create(CONFIG_MAP, config_map("two", text="x" * 10_000))
            await cluster.delete(CONFIG_MAP, "default", "one")
            (folder / "hog").unlink()
            await cluster.create(CONFIG_MAP, config_map("two", text="x" * 10_000))
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: ASYNC221


async def test_writes_resume_after_deletion_frees_disk_space(tmp_path: Path) -> None:
    async with store(tmp_path, bytes_max=SMALL_BYTES) as cluster:
        await fill(cluster)
        for resource in (await cluster.list(CONFIG_MAP)).items[:3]:
            await cluster.delete(CONFIG_MAP, "default", resource["metadata"]["name"])
        await cluster.create(CONFIG_MAP, config_map("again", text="x" * 10_000))


def test_journal_files_are_readable_by_owner_only(tmp_path: Path) -> None:
    with new_journal(tmp_path / "journal.db"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}


def test_open_journal_cannot_be_opened_again(tmp_path: Path) -> None:
    with new_journal(tmp_path / "journal.db"), pytest.raises(Unavailable, match="another process holds it"):
        Journal(tmp_path / "journal.db")


def test_missing_journal_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        Journal(tmp_path / "nowhere" / "journal.db")


def damaged(path: Path) -> None:
    """A journal with overwritten bytes in its middle."""
    with new_journal(path) as journal:
        for number in range(200):
            journal._connection.execute(
                "INSERT INTO objects VALUES (?, '', ?, ?)", ("configmaps", f"map-{number}", b'{"metadata":{}}' * 20)
            )
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"nonsense" * 512)


def of_another_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()


def of_the_future(path: Path) -> None:
    with new_journal(path) as journal:
        journal._connection.execute("PRAGMA user_version = 99")


def no_database(path: Path) -> None:
    path.write_bytes(b"this is not a database, and long enough to be looked at " * 20)


@pytest.mark.parametrize("make", [damaged, of_another_program, of_the_future, no_database])
def test_unreadable_journal_is_reported_and_not_changed(tmp_path: Path, make: object) -> None:
    path = tmp_path / "journal.db"
    assert callable(make)
    make(path)
    before = path.read_bytes()
    with pytest.raises(JournalDamaged, match="The file is kept as it is"):
        Journal(path)
    assert path.read_bytes() == before


def put(path: Path, *, kind: str, data: bytes) -> None:
    with new_journal(path) as journal:
        journal._connection.execute("INSERT INTO objects VALUES (?, 'default', 'one', ?)", (kind, data))


@pytest.mark.parametrize("data", [b"{", b'{"metadata": {"name": 1}}', b"[]"])
def test_unreadable_object_is_reported(tmp_path: Path, data: bytes) -> None:
    put(tmp_path / "journal.db", kind="configmaps", data=data)
    with new_journal(tmp_path / "journal.db") as journal, pytest.raises(JournalDamaged, match="configmaps default/one"):
        MemoryCluster(journal)


def test_object_of_an_unknown_kind_is_retained(tmp_path: Path) -> None:
    put(tmp_path / "journal.db", kind="things.example.com", data=b"{}")
    with new_journal(tmp_path / "journal.db") as journal:
        MemoryCluster(journal)
        assert "things.example.com" in [entry.kind for entry in journal.entries()]


async def test_next_version_block_is_reserved_in_advance(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    first = journal.reserved
    journal.claim(first - VERSION_BLOCK // 2 + 1)
    await journal.close()
    await next_turn()
    assert journal.reserved == first + VERSION_BLOCK
    with_more = Journal(tmp_path / "journal.db")
    assert with_more.start_version == first + VERSION_BLOCK
    await with_more.close()


async def test_unreserved_version_cannot_be_claimed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(Unavailable, match="no versions are left"):
        journal.claim(journal.reserved + 1)
    await journal.close()


async def test_journal_writes_are_completed_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    answered: list[int] = []
    for number in range(300):
        entry = JournalEntry(kind="k", namespace="", name=str(number), data=b"{}")

        def done(error: Unavailable | None, number: int = number) -> None:
            assert error is None
            answered.append(number)

        journal.submit(entry, done)
    await journal.close()
    await next_turn()
    assert answered == list(range(300))


async def test_unencodable_write_fails_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    queue: asyncio.Queue[str] = asyncio.Queue()
    # A name that is not UTF-8 fails before it reaches SQLite.
    for name in ("\ud800", "next"):
        entry = JournalEntry(kind="k", namespace="", name=name, data=b"{}")
        journal.submit(entry, lambda error: queue.put_nowait(ascii(error)))
        assert ("surrogates not allowed" in await queue.get()) is (name != "next")
    await journal.close()
    again = Journal(tmp_path / "journal.db")
    assert [entry.name for entry in again.entries()] == ["next"]
    await again.close()
