"""The supervisor's report of a reload, and its reader."""

from pathlib import Path

from serving.home.supervisor.reloading import ReloadReport, read_reload


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_nothing_has_begun_without_a_file_and_with_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    assert (read_reload(path)["begun_count"], read_reload(path)["ended_count"]) == (0, 0)
    path.write_bytes(b"{")
    assert read_reload(path)["begun_count"] == 0


def test_a_reload_counts_when_it_begins_and_when_it_ends_and_says_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    report = ReloadReport(path, write=write)
    report.replaced("a: 1 -> 2")
    assert read_reload(path) == {"begun_count": 1, "ended_count": 0, "replaced": ["a: 1 -> 2"], "error": None}
    report.end("b failed")
    assert read_reload(path) == {"begun_count": 1, "ended_count": 1, "replaced": ["a: 1 -> 2"], "error": "b failed"}


def test_a_reload_ends_one_that_was_never_ended(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    ReloadReport(path, write=write)
    ReloadReport(path, write=write).end(None)
    assert read_reload(path) == {"begun_count": 2, "ended_count": 2, "replaced": [], "error": None}
