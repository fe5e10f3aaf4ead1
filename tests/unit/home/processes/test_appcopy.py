"""A pod's copy of its application: an overlay as root, otherwise copied files."""

import os
from pathlib import Path

import pytest

from serving.home.processes.appcopy import AppCopy, copy_files, prepare_copy, remove_copy

USER = 0x70000001


@pytest.fixture
def copy(tmp_path: Path) -> AppCopy:
    source = tmp_path / "snapshot"
    (source / "static").mkdir(parents=True)
    (source / "app.py").write_text("print(1)")
    (source / "app.py").chmod(0o755)
    (source / "link").symlink_to("app.py")
    return AppCopy(source=str(source), place=str(tmp_path / "pod"), user=USER if os.geteuid() == 0 else 0)


def written(copy: AppCopy) -> Path:
    root = Path(copy.root)
    (root / "app.py").write_text("print(2)")
    (root / "static" / "new").write_text("x")
    return root


def test_pod_writes_stay_in_its_copy_across_restarts(copy: AppCopy) -> None:
    prepare_copy(copy)
    root = written(copy)
    prepare_copy(copy)
    assert (root / "app.py").read_text() == "print(2)"
    assert (root / "static" / "new").exists()
    assert Path(copy.source, "app.py").read_text() == "print(1)"
    assert not Path(copy.source, "static", "new").exists()
    if copy.user:
        assert {path.lstat().st_uid for path in (root, root / "app.py", root / "static", root / "link")} == {USER}
    remove_copy(Path(copy.place))
    assert not root.is_mount()


def test_incomplete_copy_is_completed(copy: AppCopy) -> None:
    Path(copy.root).mkdir(parents=True)
    prepare_copy(copy)
    assert Path(copy.root, "app.py").exists()
    remove_copy(Path(copy.place))


def test_copy_files_preserves_links_modes_and_source(copy: AppCopy) -> None:
    Path(copy.place).mkdir()
    copy_files(copy, copy.root)
    root = written(copy)
    assert os.readlink(root / "link") == "app.py"  # noqa: PTH115 - the text as it is
    assert (root / "app.py").stat().st_mode & 0o777 == 0o755
    assert Path(copy.source, "app.py").read_text() == "print(1)"
    if copy.user:
        assert {path.lstat().st_uid for path in (root, root / "app.py", root / "link")} == {USER}


def test_copy_of_missing_snapshot_is_rejected(copy: AppCopy) -> None:
    with pytest.raises(FileNotFoundError):
        prepare_copy(AppCopy(source=f"{copy.source}-gone", place=copy.place, user=copy.user))
