"""Reload reports: written by the supervisor and read back."""

from pathlib import Path

from serving.home.supervisor.reloading import ReloadReport, read_reload


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_missing_or_damaged_reload_file_has_zero_counts(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    assert (read_reload(path)["begun_count"], read_reload(path)["ended_count"]) == (0, 0)
    path.write_bytes(b"{")
    assert read_reload(path)["begun_count"] == 0


def test_reload_report_has_counts_replacements_and_error(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    report = ReloadReport(path, write=write)
    report.replaced("a: 1 -> 2")
    assert read_reload(path) == {"begun_count": 1, "ended_count": 0, "replaced": ["a: 1 -> 2"], "error": None}
    report.end("b failed")
    assert read_reload(path) == {"begun_count": 1, "ended_count": 1, "replaced": ["a: 1 -> 2"], "error": "b failed"}


def test_new_reload_also_ends_an_unfinished_one(tmp_path: Path) -> None:
    path = tmp_path / "reload.json"
    ReloadReport(path, write=write)
    ReloadReport(path, write=write).end(None)
    assert read_reload(path) == {"begun_count": 2, "ended_count": 2, "replaced": [], "error": None}
