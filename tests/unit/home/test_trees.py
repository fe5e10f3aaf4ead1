import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.home.trees import discard_tree, remove_tree

# Deeper than Python's recursion limit and the kernel's maximum path length.
DEPTH = 3000


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("folder", dir_fd=here)
        below = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    yield top
    discard_tree(top)


def test_tree_of_depth_3000_is_removed(deep: Path) -> None:
    remove_tree(deep)
    assert not deep.exists()


def test_symlinks_in_a_tree_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    top = tmp_path / "top"
    (top / "a").mkdir(parents=True)
    (top / "a" / "link").symlink_to(tmp_path / "outside")
    remove_tree(top)
    assert not top.exists()
    assert (tmp_path / "outside" / "file").exists()


def test_symlink_as_top_folder_is_removed_itself(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_folder_without_owner_permissions_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "work" / "work").mkdir(parents=True)
    (top / "work" / "work" / "file").touch()
    (top / "work" / "work").chmod(0)
    (top / "work").chmod(0)
    remove_tree(top)
    assert not top.exists()


def test_removal_of_a_missing_tree_succeeds(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="root only")
def test_removal_continues_past_a_mount_and_raises_its_error(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "mounted").mkdir(parents=True)
    (top / "other" / "file").mkdir(parents=True)
    assert os.system(f"mount -t tmpfs none {top}/mounted") == 0  # noqa: S605 - a path of this test
    try:
        (top / "mounted" / "kept").touch()
        with pytest.raises(OSError, match="mounted"):
            remove_tree(top)
        assert (top / "mounted" / "kept").exists()
        assert not (top / "other").exists()
    finally:
        os.system(f"umount {top}/mounted")  # noqa: S605 - as above
