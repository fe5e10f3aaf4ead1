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


def test_the_same_content_is_the_same_snapshot(app: Path, tmp_path: Path) -> None:
    first = take_snapshot(app, tmp_path / "snapshots")
    os.utime(app / "app.py", (1, 1))
    assert take_snapshot(app, tmp_path / "snapshots") == first
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [first]
    assert (tmp_path / "snapshots" / first / "static" / "page.html").read_text() == "<p>"


@pytest.mark.parametrize("target", ["circle", "gone", "."])
def test_a_link_that_leads_nowhere_is_copied_unchanged(app: Path, tmp_path: Path, target: str) -> None:
    (app / "circle").symlink_to(target)
    path = tmp_path / "snapshots" / take_snapshot(app, tmp_path / "snapshots")
    assert str((path / "circle").readlink()) == target


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_a_change_is_another_snapshot_and_the_first_keeps_its_files(app: Path, tmp_path: Path, change: str) -> None:
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


def test_what_git_ignores_is_linked_and_what_servingignore_names_is_left_out(app: Path, tmp_path: Path) -> None:
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


def test_links_that_leave_the_folder_lead_to_the_same_files_from_the_copy(app: Path, tmp_path: Path) -> None:
    write(tmp_path, "shared/data.txt", "x")
    write(tmp_path, "python/pyvenv.cfg", "")
    for name, target in {"data": "../shared", ".venv": "../python", "page": "static/page.html"}.items():
        (app / name).symlink_to(target)
    copy = tmp_path / "snapshots" / take_snapshot(app, tmp_path / "snapshots")
    assert (copy / "data" / "data.txt").read_text() == "x"
    assert str((copy / "page").readlink()) == "static/page.html"
    assert linked_paths(copy) == (str(tmp_path / "python"), str(tmp_path / "shared"))
    assert [is_virtualenv(Path(path)) for path in linked_paths(copy)] == [True, False]


def test_the_innermost_ignore_file_decides(app: Path) -> None:
    write(app, ".gitignore", "*.html\n")
    write(app, "static/.gitignore", "!page.html\n")
    assert "static/page.html" in paths(app)
    write(app, "static/.servingignore", "*.html\n")
    assert "static/page.html" not in paths(app)


def test_a_fingerprint_changes_with_a_file(app: Path) -> None:
    before = fingerprint(app)
    assert fingerprint(app) == before
    write(app, "app.py", "print(22)")
    assert fingerprint(app) != before


def test_a_folder_that_is_too_large_is_refused_with_advice(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_ENTRIES_MAX", 1)
    with pytest.raises(InvalidValue, match=r"\.servingignore"):
        take_snapshot(app, tmp_path / "snapshots")


@pytest.mark.parametrize(("name", "message"), [("../../etc", "32 hexadecimal digits"), ("0" * 32, "deploy again")])
def test_only_a_snapshot_that_is_there_is_used(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        path_of_snapshot(tmp_path, name)


def test_what_no_revision_uses_is_collected_after_a_while(app: Path, tmp_path: Path) -> None:
    text, unused = take_snapshot(app, tmp_path / "snapshots"), ""
    write(app, "app.py", "print(2)")
    unused = take_snapshot(app, tmp_path / "snapshots")
    now_s = (tmp_path / "snapshots" / unused).stat().st_mtime
    assert collect(tmp_path / "snapshots", {text}, now_s=now_s + 1) == []
    assert collect(tmp_path / "snapshots", {text}, now_s=now_s + 3600) == [unused]
    assert path_of_snapshot(tmp_path / "snapshots", text).is_dir()
    assert collect(tmp_path / "none", set(), now_s=0) == []


def test_the_root_and_folders_around_or_in_the_state_are_not_copied(app: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert is_application(app, state)
    for folder in (Path("/"), tmp_path, state, state / "pods"):
        assert not is_application(folder, state)
