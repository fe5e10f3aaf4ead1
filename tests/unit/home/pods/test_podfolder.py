import errno
import os
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.pods.podfolder import (
    disk_error,
    excerpt,
    is_secret,
    make_folder,
    mount,
    mount_in_memory,
    remove_folder,
    rotate,
    size_of,
    sweep_folders,
    tail,
    temporary_folder,
    warm_folder,
)
from serving.home.pods.sources import VolumeFile

FRAMES = [line for at in range(8) for line in (f'  File "app.py", line {at}, in f', "    call()", "    ^^^^^^")]
PYTHON = "Traceback (most recent call last):"


def test_volume_files_are_at_mount_path_with_their_modes(tmp_path: Path) -> None:
    mount(tmp_path, {"v": {"a/b": VolumeFile(content=b"x", mode=0o640)}}, [{"name": "v", "mountPath": "/etc/c"}])
    assert (tmp_path / "etc/c/a/b").read_bytes() == b"x"
    assert (tmp_path / ".volumes/v/a/b").stat().st_mode & 0o777 == 0o640


def test_sub_path_mounts_a_single_file(tmp_path: Path) -> None:
    mount(
        tmp_path,
        {"v": {"a": VolumeFile(content=b"x"), "b": VolumeFile(content=b"y")}},
        [{"name": "v", "mountPath": "/one", "subPath": "b"}],
    )
    assert (tmp_path / "one").read_bytes() == b"y"


def test_sub_path_expr_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="subPathExpr of v"):
        mount(tmp_path, {"v": {}}, [{"name": "v", "mountPath": "/one", "subPathExpr": "$(POD)"}])


@pytest.mark.parametrize("path", ["/../x", "/a/../../x", "/./x"])
def test_mount_path_outside_pod_folder_is_rejected(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidValue):
        mount(tmp_path, {"v": {}}, [{"name": "v", "mountPath": path}])


def test_mount_at_root_creates_no_symlink(tmp_path: Path) -> None:
    mount(tmp_path, {"v": {}}, [{"name": "v", "mountPath": "/"}])
    assert [path.name for path in tmp_path.iterdir() if path.is_symlink()] == []


def test_remount_replaces_file_content(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        mount(tmp_path, {"v": {"a": VolumeFile(content=content, mode=0o400)}}, [{"name": "v", "mountPath": "/m"}])
    assert (tmp_path / "m/a").read_bytes() == b"2"


def test_symlinks_in_volumes_do_not_lead_mounts_outside(tmp_path: Path) -> None:
    pod, claim, outside = (tmp_path / name for name in ("pod", "claim", "outside"))
    for folder in (pod, claim, outside):
        folder.mkdir()
    # Created by a previous pod in a claim, or by the pod in its emptyDir.
    (claim / "out").symlink_to(outside)
    mounts = [{"name": "c", "mountPath": "/data"}, {"name": "v", "mountPath": "/data/out/deep/planted"}]
    mounts += [{"name": "e", "mountPath": "/own"}, {"name": "v", "mountPath": "/own/out/deep/planted"}]
    volumes = {"v": {"a": VolumeFile(content=b"x")}, "c": {}, "e": {}}
    for _ in range(2):
        mount(pod, volumes, mounts, claims={"c": claim})
        if not (pod / "own/out").is_symlink():
            (pod / ".volumes/e/out").symlink_to(outside)
    assert list(outside.iterdir()) == []
    assert (pod / ".volumes/v/a").read_bytes() == b"x"


def test_volume_folder_replaced_by_symlink_is_not_written(tmp_path: Path) -> None:
    pod, outside = tmp_path / "pod", tmp_path / "outside"
    for folder in (pod, outside):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    mount(pod, {"v": {"a": VolumeFile(content=b"1")}}, [])
    # Without root, the pod runs as the user that owns its folder.
    (pod / ".volumes/v").rename(pod / "before")
    (pod / ".volumes/v").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        mount(pod, {"v": {"a": VolumeFile(content=b"2")}}, [])
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_symlink_at_a_volume_file_is_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    for content in (b"1", b"2"):
        mount(tmp_path, {"v": {"a": VolumeFile(content=content)}}, [])
        for name in ("a", "a.new"):
            (tmp_path / ".volumes/v" / name).unlink(missing_ok=True)
            (tmp_path / ".volumes/v" / name).symlink_to(outside)
    mount(tmp_path, {"v": {"a": VolumeFile(content=b"3")}}, [])
    assert outside.read_text() == "kept"
    assert [(path.name, path.read_bytes()) for path in (tmp_path / ".volumes/v").iterdir()] == [("a", b"3")]


def test_removing_a_folder_does_not_follow_symlinks(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "pod"
    outside.write_text("stays")
    make_folder(folder / "deep")
    (folder / "link").symlink_to(outside)
    remove_folder(folder)
    assert not folder.exists()
    assert outside.read_text() == "stays"


def test_oversized_log_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for text in ("first", "second", "third"):
        log.write_text(text)
        assert rotate(log, bytes_max=2, log_count=2)
    assert log.read_text() == ""
    assert [(tmp_path / f"a.log.{number}").read_text() for number in (1, 2)] == ["third", "second"]
    assert not (tmp_path / "a.log.3").exists()


def test_oversized_log_is_truncated_on_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("long")
    (tmp_path / "a.log.1").symlink_to("/dev/full")
    assert rotate(log, bytes_max=2, log_count=1)
    assert log.read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


def test_short_or_missing_log_is_not_rotated(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not rotate(log)
    log.write_text("short")
    assert not rotate(log)
    assert size_of(log) == 5
    assert size_of(tmp_path / "none") == 0


def test_tail_returns_last_lines_after_an_offset(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old\n" + "".join(f"{number}\n" for number in range(20)))
    assert tail(log, after=4).split("\n") == [str(number) for number in range(10, 20)]
    assert tail(log, after=10**6).startswith("10")
    assert tail(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["one", "two"], "one\ntwo"),
        ([str(at) for at in range(12)], "\n".join(str(at) for at in range(2, 12))),
        (
            ["begins", PYTHON, *FRAMES, "KeyError: 'X'"],
            "\n".join([PYTHON, "  ...", *FRAMES[-9:], "KeyError: 'X'"]),
        ),
        (
            [PYTHON, *FRAMES, *[f"{at}" for at in range(9)]],
            "\n".join([PYTHON, "  ...", *[f"{at}" for at in range(9)]]),
        ),
        # The app continued, so the traceback does not explain its exit.
        ([PYTHON, "  File", "E: x", *["fine"] * 12], "\n".join(["fine"] * 10)),
        (
            ["panic: no", "", "goroutine 1 [running]:", *["main.f(0x1)", "\t/app.go:1"] * 8],
            "\n".join(["panic: no", "  ...", *["main.f(0x1)", "\t/app.go:1"] * 5]),
        ),
        ([PYTHON, *["  x"] * 12], "\n".join([PYTHON, "  ...", *["  x"] * 10])),
        (["Error: listen EACCES", *["npm notice"] * 6, *["npm error code 1"] * 6], "Error: listen EACCES"),
        (["npm error code 1"], "npm error code 1"),
        (["a" * 3000], "a" * 2048),
        (["a" * 3000, "end"], "end"),
    ],
)
def test_log_excerpt_starts_with_header_of_last_traceback(lines: list[str], shown: str) -> None:
    assert excerpt(lines) == shown


def test_disk_error_names_path_and_full_disk_remedy(tmp_path: Path) -> None:
    full = disk_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert full.startswith(f"{tmp_path}: No space left on device; make room")
    assert disk_error(PermissionError(errno.EACCES, "Permission denied", "/x"), tmp_path) == "/x: Permission denied"
    assert disk_error(OSError("no port is free"), tmp_path) == "no port is free"
    assert disk_error(ValueError("other"), tmp_path) == "other"


def test_folders_without_a_pod_are_swept(tmp_path: Path) -> None:
    for name in ("kept", "gone"):
        make_folder(tmp_path / name)
        mount(tmp_path / name, {"v": {"a": VolumeFile(content=b"secret")}}, [])
    assert sweep_folders(tmp_path, ["kept"]) == ["gone"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert sweep_folders(tmp_path / "nothing", []) == []


def test_temporary_files_of_preloaded_revision_remain_while_it_has_a_pod(tmp_path: Path) -> None:
    warm = warm_folder(tmp_path, "default/hello-00001")
    for name in (warm / "pod", temporary_folder(warm) / "folder"):
        name.mkdir(parents=True)
    assert sweep_folders(tmp_path, ["pod"]) == []
    assert (temporary_folder(warm) / "folder").exists()
    assert sweep_folders(tmp_path, []) == ["pod"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"secret": {"secretName": "s"}}, True),
        ({"projected": {"sources": [{"configMap": {}}, {"secret": {"name": "s"}}]}}, True),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, True),
        ({"projected": {"sources": [{"configMap": {}}]}}, False),
        ({"configMap": {"name": "c"}}, False),
    ],
)
def test_volumes_with_secrets_or_tokens_are_secret(volume: dict[str, object], *, expected: bool) -> None:
    assert is_secret({"name": "v", **volume}) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="root only")
def test_secret_volumes_are_in_memory_and_unmounted_with_pod(tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    make_folder(pod)
    for _ in range(2):
        mount_in_memory(pod, ["v"])
    mount(pod, {"v": {"a": VolumeFile(content=b"x")}}, [{"name": "v", "mountPath": "/m"}])
    assert (pod / ".volumes/v").is_mount()
    assert (pod / "m/a").read_bytes() == b"x"
    remove_folder(pod)
    assert not pod.exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
