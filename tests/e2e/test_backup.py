"""Backup and restore as an operator types them."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.cli_stage import Stage, staged


def objects(stage: Stage) -> list[dict[str, Any]]:
    """The objects as users wrote them."""
    found = json.loads(stage("get", "services", "-o", "json").stdout)["items"]
    for one in found:
        one.pop("status", None)
        for name in ("resourceVersion", "managedFields"):
            one["metadata"].pop(name, None)
    return list(found)


def test_a_backup_of_a_running_system_starts_elsewhere(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    source = Path(__file__).parents[2] / "serving/tools/samples/hello.py"
    (app / "main.py").write_text(source.read_text())
    file = tmp_path / "saved.tar.gz"
    with staged(tmp_path / "state") as stage:
        stage("deploy", "hello", str(app), "--command", f"{sys.executable} main.py")
        assert str(file) in stage("backup", str(file)).output
        assert "in use by process" in stage("restore", str(file), code=1).output
        before = objects(stage)
    # The app's folder is gone with its machine; the snapshot serves it.
    (app / "main.py").unlink()
    other = Stage(state=tmp_path / "other", pid=0)
    assert "restored from a backup" in other("restore", str(file)).output
    with staged(tmp_path / "other") as stage:
        stage("wait", "hello")
        assert objects(stage) == before
        assert stage("invoke", "hello").stdout
        assert "has services already" in Stage(state=tmp_path / "state", pid=0)("restore", str(file), code=1).output


def test_a_stopped_system_is_saved_too_and_an_empty_folder_is_not(tmp_path: Path) -> None:
    with staged(tmp_path / "state") as stage:
        stage("deploy", "hello", "--command", f"{sys.executable} -m serving.tools.samples.hello", "--no-wait")
    file = tmp_path / "saved.tar.gz"
    Stage(state=tmp_path / "state", pid=0)("backup", str(file))
    assert file.stat().st_mode & 0o077 == 0
    empty = Stage(state=tmp_path / "empty", pid=0)
    assert "has nothing to save" in empty("backup", str(file), code=1).output


def test_a_damaged_journal_is_repaired_after_what_is_lost_was_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with staged(state) as stage:
        for name in ("one", "two"):
            stage("deploy", name, "--command", f"{sys.executable} -m serving.tools.samples.hello", "--no-wait")
        assert "is in use by process" in stage("doctor", "--repair", code=1).output
    stopped, journal = Stage(state=state, pid=0), state / "journal.db"
    assert "is whole; there is nothing to repair" in stopped("doctor", "--repair").output
    content = bytearray(journal.read_bytes())
    at = content.rindex(b'"name":"two"') // 4096 * 4096
    content[at : at + 4096] = b"\7" * 4096
    journal.write_bytes(content)
    refused = stopped("doctor", "--repair", code=1, stdin="n\n").output
    assert "is damaged: " in refused
    assert "\nlost: " in refused
    assert journal.read_bytes() == content
    # In a process of its own, which holds the folder up to its end.
    with stopped.process("doctor", "--repair", "--yes") as process:
        assert "repaired; the damaged file is " in process.communicate()[0]
    (kept,) = state.glob("journal.db.damaged-*Z")
    assert kept.read_bytes() == content
    with staged(state) as stage:
        stage("get", "services")
