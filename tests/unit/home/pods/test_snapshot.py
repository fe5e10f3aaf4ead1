import os
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.pods import snapshot
from serving.home.pods.snapshot import (
    collect,
    entries_of,
    fingerprint,
    is_application,
    linked_paths,
    path_of_snapshot,
    take_snapshot,
)
from serving.home.trees import is_virtualenv


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    write(folder, "app.py", "print(1)")
    write(folder, "static/page.html", "<p>")
    return folder


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def paths(folder: Path) -> list[str]:
    return [("@" if folder_entry.is_linked else "") + folder_entry.path for folder_entry in entries_of(folder)]


def test_equal_content_reuses_the_snapshot(app: Path, tmp_path: Path) -> None:
    first = take_snapshot(app, tmp_path / "snapshots")
    os.utime(app / "app.py", (1, 1))
    assert take_snapshot(app, tmp_path / "snapshots") == first
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [first]
    assert (tmp_path / "snapshots" / first / "static" / "page.html").read_text() == "<p>"


@pytest.mark.parametrize("target", ["circle", "gone", "."])
def test_dangling_or_circular_symlink_is_copied_unchanged(app: Path, tmp_path: Path, target: str) -> None:
    (app / "circle").symlink_to(target)
    path = tmp_path / "snapshots" / take_snapshot(app, tmp_path / "snapshots")
    assert str((path / "circle").readlink()) == target


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_changed_folder_creates_another_snapshot(app: Path, tmp_path: Path, change: str) -> None:
    first = take_snapshot(app, tmp_path / "snapshots")
    if change == "content":
        (app / "app.py").write_text("print(2)")
    elif change == "name":
        (app / "app.py").rename(app / "main.py")
    elif change == "mode":
        (app / "app.py").chmod(0o755)
    else:
        (app / "current").symlink_to("app.py")
    assert take_snapshot(app, tmp_path / "snapshots") != first
    assert (tmp_path / "snapshots" / first / "app.py").read_text() == "print(1)"


def test_gitignored_files_are_linked_and_servingignored_are_excluded(app: Path, tmp_path: Path) -> None:
    for name in (".git/HEAD", "node_modules/a/index.js", "__pycache__/a.pyc", "env/pyvenv.cfg", "big.bin", "a.log"):
        write(app, name, "x")
    write(app, ".gitignore", "node_modules/\n*.log\n!keep.log\n")
    write(app, ".servingignore", "big.bin\n")
    write(app, "keep.log", "kept")
    assert paths(app) == [
        ".gitignore",
        ".servingignore",
        "@a.log",
        "app.py",
        "@env",
        "keep.log",
        "@node_modules",
        "static/page.html",
    ]
    path = tmp_path / "snapshots" / take_snapshot(app, tmp_path / "snapshots")
    assert (path / "node_modules" / "a" / "index.js").read_text() == "x"
    before = take_snapshot(app, tmp_path / "snapshots")
    write(app, "a.log", "more")
    assert take_snapshot(app, tmp_path / "snapshots") == before


def test_symlinks_out_of_the_folder_resolve_from_the_snapshot(app: Path, tmp_path: Path) -> None:
    write(tmp_path, "shared/data.txt", "x")
    write(tmp_path, "python/pyvenv.cfg", "")
    for name, target in {"data": "../shared", ".venv": "../python", "page": "static/page.html"}.items():
        (app / name).symlink_to(target)
    copy = tmp_path / "snapshots" / take_snapshot(app, tmp_path / "snapshots")
    assert (copy / "data" / "data.txt").read_text() == "x"
    assert str((copy / "page").readlink()) == "static/page.html"
    assert linked_paths(copy) == (str(tmp_path / "python"), str(tmp_path / "shared"))
    assert [is_virtualenv(Path(path)) for path in linked_paths(copy)] == [True, False]


def test_innermost_ignore_file_has_precedence(app: Path) -> None:
    write(app, ".gitignore", "*.html\n")
    write(app, "static/.gitignore", "!page.html\n")
    assert "static/page.html" in paths(app)
    write(app, "static/.servingignore", "*.html\n")
    assert "static/page.html" not in paths(app)


def test_fingerprint_changes_with_a_file(app: Path) -> None:
    before = fingerprint(app)
    assert fingerprint(app) == before
    write(app, "app.py", "print(22)")
    assert fingerprint(app) != before


def test_oversized_folder_is_rejected_with_servingignore_advice(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_ENTRIES_MAX", 1)
    with pytest.raises(InvalidValue, match=r"\.servingignore"):
        take_snapshot(app, tmp_path / "snapshots")


@pytest.mark.parametrize(("name", "message"), [("../../etc", "32 hexadecimal digits"), ("0" * 32, "deploy again")])
def test_invalid_or_missing_snapshot_is_rejected(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        path_of_snapshot(tmp_path, name)


def test_unused_snapshot_is_collected_after_an_hour(app: Path, tmp_path: Path) -> None:
    text, unused = take_snapshot(app, tmp_path / "snapshots"), ""
    write(app, "app.py", "print(2)")
    unused = take_snapshot(app, tmp_path / "snapshots")
    now_s = (tmp_path / "snapshots" / unused).stat().st_mtime
    assert collect(tmp_path / "snapshots", {text}, now_s=now_s + 1) == []
    assert collect(tmp_path / "snapshots", {text}, now_s=now_s + 3600) == [unused]
    assert path_of_snapshot(tmp_path / "snapshots", text).is_dir()
    assert collect(tmp_path / "none", set(), now_s=0) == []


def test_root_and_state_folders_are_not_applications(app: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert is_application(app, state)
    for folder in (Path("/"), tmp_path, state, state / "pods"):
        assert not is_application(folder, state)
