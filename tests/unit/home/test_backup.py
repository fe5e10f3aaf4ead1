import contextlib
import io
import os
import sqlite3
import stat
import tarfile
from pathlib import Path

import msgspec
import pytest

from serving.home.backup import (
    FORMAT,
    BackupManifest,
    BadBackup,
    journal_copy,
    read_manifest,
    restore_backup,
    write_backup,
)
from serving.home.state import StateFolder
from serving.home.store.journal import Journal, JournalEntry

MANIFEST = BackupManifest(format=FORMAT, version="1.2.3", created_s=1_700_000_000.0)
ENTRY = JournalEntry(kind="services", namespace="default", name="hello", data=b"{}")


async def state_with_services(path: Path) -> StateFolder:
    """A state folder as a stopped system leaves it."""
    write_files(path)
    journal = Journal(path / "journal.db")
    journal.write_now([ENTRY])
    await journal.close()
    return StateFolder(path)


def write_files(path: Path) -> None:
    path.mkdir()
    (path / "key").write_bytes(b"k" * 32)
    (path / "snapshots" / "ab").mkdir(parents=True)
    (path / "snapshots" / "ab" / "app.py").write_text("run()")
    (path.parent / "env").write_text("ignored by git")
    (path / "snapshots" / "ab" / ".env").symlink_to(path.parent / "env")
    (path / "snapshots" / "ab" / "gone").symlink_to("/absent/node_modules")
    (path / "policies").mkdir()
    (path / "policies" / "fixed-00000000.Fixed.py").write_text("class Fixed: ...")
    (path / "images").mkdir()
    (path / "images" / "layer").write_text("large")
    (path / "images" / "sh").symlink_to("/bin/busybox")
    (path / "pods").mkdir()
    (path / "pods" / "passing").write_text("")


async def entries(path: Path) -> list[JournalEntry]:
    journal = Journal(path)
    journal_entries = list(journal.entries())
    await journal.close()
    return journal_entries


async def test_restored_folder_has_objects_secrets_and_snapshots(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    file = tmp_path / "saved.tar.gz"
    size = write_backup(file, state, journal=journal_copy(state.journal), manifest=MANIFEST)
    assert size == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = StateFolder(tmp_path / "other")
    assert restore_backup(file, other) == MANIFEST
    assert await entries(other.journal) == [ENTRY]
    assert other.key.read_bytes() == b"k" * 32
    assert (other.snapshots / "ab" / "app.py").read_text() == "run()"
    # The original is a link to the deployed folder, which does not exist on another machine.
    assert (other.snapshots / "ab" / ".env").read_text() == "ignored by git"
    assert sorted(path.name for path in other.path.iterdir() if not path.name.startswith("journal.db")) == [
        "key",
        "policies",
        "snapshots",
    ]
    assert stat.S_IMODE(other.path.stat().st_mode) == 0o700


async def test_restored_journal_has_the_start_version_of_the_original(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    write_backup(tmp_path / "saved", state, journal=journal_copy(state.journal), manifest=MANIFEST)
    other = StateFolder(tmp_path / "other")
    restore_backup(tmp_path / "saved", other)
    versions = []
    for path in (other.journal, state.journal):
        journal = Journal(path)
        versions.append(journal.start_version)
        await journal.close()
    assert versions[0] == versions[1]


async def test_backup_contains_images_on_request(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    with_images = msgspec.structs.replace(MANIFEST, has_images=True)
    write_backup(tmp_path / "saved", state, journal=journal_copy(state.journal), manifest=with_images)
    other = StateFolder(tmp_path / "other")
    restore_backup(tmp_path / "saved", other)
    assert (other.images / "layer").read_text() == "large"
    assert str((other.images / "sh").readlink()) == "/bin/busybox"


async def test_copy_of_an_open_journal_has_committed_entries(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.write_now([ENTRY])
    (tmp_path / "copy.db").write_bytes(journal.copy())
    await journal.close()
    assert await entries(tmp_path / "copy.db") == [ENTRY]


async def test_restore_rejects_a_folder_with_services(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    write_backup(tmp_path / "saved", state, journal=journal_copy(state.journal), manifest=MANIFEST)
    with pytest.raises(BadBackup, match="has services already; move the folder away"):
        restore_backup(tmp_path / "saved", state)
    assert await entries(state.journal) == [ENTRY]


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as new_archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            new_archive.addfile(entry, io.BytesIO(content))
    return path


def manifest(**changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(MANIFEST), **changes})


def database() -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE objects (kind TEXT)")
        return connection.serialize()


def test_unknown_manifest_field_is_ignored(tmp_path: Path) -> None:
    file = archive(tmp_path / "saved", {"backup.json": manifest(colour="green"), "journal.db": database()})
    assert restore_backup(file, StateFolder(tmp_path / "state")) == MANIFEST


def test_newer_backup_format_is_rejected_with_its_version(tmp_path: Path) -> None:
    file = archive(tmp_path / "saved", {"backup.json": manifest(format=FORMAT + 1)})
    with pytest.raises(BadBackup, match=r"written by serving 1\.2\.3; .* restore it with that version"):
        read_manifest(file)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"other": b""}, "its first member is not backup.json"),
        ({"backup.json": b"{"}, "is no backup of serving"),
        ({"backup.json": manifest(), "etc/passwd": b""}, "is no part of a backup"),
        ({"backup.json": manifest(), "../key": b""}, "is no part of a backup"),
        ({"backup.json": manifest(), "snapshots/../../key": b""}, "cannot be restored: .*outside the destination"),
        ({"backup.json": manifest(), "journal.db": b"no database"}, "its journal is damaged"),
        ({"backup.json": manifest()}, "cannot be restored"),
        ({"backup.json": manifest(), "images/../../key": b""}, "cannot be restored: .*outside the destination"),
    ],
)
def test_invalid_archive_is_rejected_and_leaves_no_files(
    tmp_path: Path, members: dict[str, bytes], message: str
) -> None:
    file = archive(tmp_path / "saved", members)
    state = StateFolder(tmp_path / "state")
    with pytest.raises(BadBackup, match=message):
        restore_backup(file, state)
    assert not (tmp_path / "key").exists()
    assert not state.path.exists() or list(state.path.iterdir()) == []


async def test_truncated_archive_is_rejected(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    (state.path / "snapshots" / "ab" / "noise").write_bytes(os.urandom(100_000))
    write_backup(tmp_path / "saved", state, journal=journal_copy(state.journal), manifest=MANIFEST)
    whole = (tmp_path / "saved").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadBackup, match="cannot be restored"):
        restore_backup(tmp_path / "half", StateFolder(tmp_path / "other"))


def test_backup_does_not_replace_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="not a file"):
        write_backup(pipe, StateFolder(tmp_path), journal=b"", manifest=MANIFEST)
    assert pipe.is_fifo()


async def test_missing_folder_error_names_the_backup_file(tmp_path: Path) -> None:
    state, file = await state_with_services(tmp_path / "state"), tmp_path / "absent" / "saved.tar.gz"
    with pytest.raises(FileNotFoundError) as caught:
        write_backup(file, state, journal=b"", manifest=MANIFEST)
    assert caught.value.filename == str(file)


def test_missing_and_invalid_archives_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadBackup, match="there is no such file"):
        read_manifest(tmp_path / "absent")
    (tmp_path / "text").write_text("kind: Service")
    with pytest.raises(
        BadBackup, match="is no backup of serving: not a gzip file; `serving apply -f` applies manifests"
    ):
        read_manifest(tmp_path / "text")
    with pytest.raises(BadBackup, match="cannot be read"):
        journal_copy(tmp_path / "absent.db")


async def test_failed_backup_retains_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = await state_with_services(tmp_path / "state")
    file = tmp_path / "saved"
    file.write_text("the last one")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_backup(file, state, journal=b"", manifest=MANIFEST)
    assert file.read_text() == "the last one"
    assert names_in(tmp_path) == {"saved", "state", "env"}


@pytest.mark.parametrize(
    ("name", "kind", "target", "message"),
    [
        ("snapshots/a", tarfile.SYMTYPE, "/etc", "outside the destination"),
        ("snapshots/a", tarfile.SYMTYPE, "../../key", "outside the destination"),
        ("snapshots/a", tarfile.LNKTYPE, "../key", "outside the destination"),
        ("images/a", tarfile.LNKTYPE, "../key", "outside the destination"),
        ("snapshots/a", tarfile.FIFOTYPE, "", "is no file, folder or link"),
        # Links in images are resolved inside pods; a restore does not write through them.
        ("images/a", tarfile.SYMTYPE, "/etc", "'images/a/b' leads to a place outside the destination"),
    ],
)
def test_restore_rejects_links_out_of_the_state_folder(
    tmp_path: Path, name: str, kind: bytes, target: str, message: str
) -> None:
    (tmp_path / "key").write_text("")
    file = tmp_path / "saved.tar.gz"
    with tarfile.open(file, "w:gz") as new_archive:
        content = manifest()
        first = tarfile.TarInfo("backup.json")
        first.size = len(content)
        new_archive.addfile(first, io.BytesIO(content))
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, target
        new_archive.addfile(link)
        new_archive.addfile(tarfile.TarInfo(f"{name}/b"))
    with pytest.raises(BadBackup, match=f"cannot be restored: .*{message}"):
        restore_backup(file, StateFolder(tmp_path / "state"))
    assert (tmp_path / "key").read_text() == ""


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_restored_image_and_volume_files_have_modes_without_setuid(tmp_path: Path) -> None:
    state = await state_with_services(tmp_path / "state")
    modes = {"images/tmp": 0o1777, "images/su": 0o4755, "volumes/default/db": 0o777, "volumes/default/db/log": 0o666}
    for name, mode in modes.items():
        path = state.path / name
        path.mkdir(parents=True, exist_ok=True) if name.endswith(("tmp", "db")) else path.write_text("")
        path.chmod(mode)
    (state.path / "snapshots/ab/app.py").chmod(0o4777)
    file = tmp_path / "saved.tar.gz"
    with_all = msgspec.structs.replace(MANIFEST, has_images=True, has_volumes=True)
    write_backup(file, state, journal=journal_copy(state.journal), manifest=with_all)
    other = StateFolder(tmp_path / "other")
    restore_backup(file, other)
    # Files of an untrusted archive do not become setuid.
    result = modes | {"images/su": 0o755}
    assert {name: stat.S_IMODE((other.path / name).stat().st_mode) for name in modes} == result
    assert stat.S_IMODE((other.path / "snapshots/ab/app.py").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "1\x1b]0;gone\x07"}, "is none of a program"),
        ({"version": "1" * 1_000}, "is none of a program"),
        ({"created_s": 1e300}, "seconds since the epoch"),
        ({"created_s": -1.0}, "seconds since the epoch"),
    ],
)
def test_invalid_manifest_is_rejected_before_files_are_restored(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    file = archive(tmp_path / "a", {"backup.json": manifest(**changes), "journal.db": database()})
    with pytest.raises(BadBackup, match=why) as refused:
        restore_backup(file, StateFolder(tmp_path / "state"))
    assert "\x1b" not in str(refused.value)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["images/null", "volumes/null", "snapshots/null"])
@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE])
def test_special_file_entry_is_rejected(tmp_path: Path, name: str, kind: bytes) -> None:
    file = tmp_path / "a"
    with tarfile.open(file, "w:gz") as new_archive:
        for member, content in (("backup.json", manifest()), ("journal.db", database())):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            new_archive.addfile(entry, io.BytesIO(content))
        entry = tarfile.TarInfo(name)
        entry.type, entry.devmajor, entry.devminor = kind, 1, 3
        new_archive.addfile(entry)
    if kind == tarfile.CONTTYPE:
        # A contiguous file is a regular file.
        restore_backup(file, StateFolder(tmp_path / "state"))
        assert (tmp_path / "state" / name).is_file()
        return
    with pytest.raises(BadBackup, match="no file, folder or link"):
        restore_backup(file, StateFolder(tmp_path / "state"))
    assert names_in(tmp_path / "state") == set()


def test_too_deep_and_oversized_archives_are_rejected(tmp_path: Path) -> None:
    deep = {"backup.json": manifest(), "journal.db": database(), "volumes/" + "d/" * 1_500 + "f": b"x"}
    with pytest.raises(BadBackup, match="levels deep"):
        restore_backup(archive(tmp_path / "deep", deep), StateFolder(tmp_path / "state"))
    file = tmp_path / "large"
    with tarfile.open(file, "w:gz") as new_archive:
        entry = tarfile.TarInfo("backup.json")
        entry.size = len(manifest())
        new_archive.addfile(entry, io.BytesIO(manifest()))
        entry = tarfile.TarInfo("volumes/all")
        entry.size = 2**60
        new_archive.fileobj.write(entry.tobuf())  # without its content
    with pytest.raises(BadBackup, match="more than fits"):
        restore_backup(file, StateFolder(tmp_path / "state"))
    assert names_in(tmp_path / "state") == set()
