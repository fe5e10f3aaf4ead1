"""Backup and repair of a stopped system (``test_volumes`` tests a restore)."""

import sys
from pathlib import Path

import pytest

from tests.e2e.cli_stage import Stage, staged

pytestmark = pytest.mark.timeout(300)


def test_stopped_system_is_backed_up_and_its_damaged_journal_repaired(tmp_path: Path) -> None:
    state, file, app = tmp_path / "state", tmp_path / "saved.tar.gz", tmp_path / "app"
    # The backup contains the folder of each app, so the folder must be small.
    app.mkdir()
    with staged(state) as stage:
        for name in ("one", "two"):
            stage(
                "deploy", name, str(app), "--command", f"{sys.executable} -m serving.tools.samples.hello", "--no-wait"
            )
        assert "is in use by process" in stage("doctor", "--repair", code=1).output
    stopped, journal = Stage(state=state, pid=0), state / "journal.db"
    stopped("backup", str(file))
    assert file.stat().st_mode & 0o077 == 0
    empty = Stage(state=tmp_path / "empty", pid=0)
    assert "has nothing to save" in empty("backup", str(file), code=1).output
    assert "has services already" in stopped("restore", str(file), code=1).output
    assert "is intact; there is nothing to repair" in stopped("doctor", "--repair").output
    content = bytearray(journal.read_bytes())
    at = content.rindex(b'"name":"two"') // 4096 * 4096
    content[at : at + 4096] = b"\7" * 4096
    journal.write_bytes(content)
    refused = stopped("doctor", "--repair", code=1, stdin="n\n").output
    assert "is damaged: " in refused
    assert "\nlost: " in refused
    assert journal.read_bytes() == content
    # In a separate process, which locks the folder until it exits.
    with stopped.process("doctor", "--repair", "--yes") as process:
        assert "repaired; the damaged file is " in process.communicate()[0]
    (path,) = state.glob("journal.db.damaged-*Z")
    assert path.read_bytes() == content
    assert "is intact; there is nothing to repair" in stopped("doctor", "--repair").output
