"""``serving why``, ``replay``, ``top`` and ``dashboard`` on a running system."""

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from serving.core.scaling.scaler.replay import again, read_record
from tests.e2e.cli_stage import SAMPLE, Stage

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _woken(serving: Stage, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("why"))
    serving("deploy", "woken", folder, "--command", SAMPLE, "--initial-scale", "0", "--concurrency", "10")
    serving("invoke", "woken")


def test_why_reports_a_wake_by_service_and_by_revision(serving: Stage) -> None:
    for name in ("woken", "woken-00001"):
        lines = serving("why", name).stdout.splitlines()
        assert any("woken-00001 0 → 1: " in line for line in lines), lines
    reported = [json.loads(line) for line in serving("why", "woken", "-o", "json").stdout.splitlines()]
    # Another test may already have created another revision.
    assert "woken-00001" in {entry["revision"] for entry in reported} <= {"woken-00001", "woken-00002"}
    assert "no decision about nobody" in serving("why", "nobody", code=1).stderr
    assert "--since" in serving("why", "woken", "--since", "yesterday", code=2).stderr


def test_why_follow_prints_new_decisions(serving: Stage, tmp_path: Path) -> None:
    with serving.process("why", "woken", "-f", "--since", "1h") as process:
        assert process.stdout is not None
        # The first line is a past decision, so the command follows the log from now on.
        assert "woken-00001 " in process.stdout.readline()
        serving("deploy", "woken", str(tmp_path), "--command", SAMPLE, "--env", "A=B")
        assert any("woken-00002 " in line for line in process.stdout)


def test_replayed_decision_log_has_equal_outcomes(serving: Stage) -> None:
    path = serving.state / "decisions.jsonl"
    # The autoscaler may be writing the last line.
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    records = [read_record(line) for line in lines]
    assert records
    assert all(again(record) == record.entry.outcome for record in records)
    assert path.stat().st_mode & 0o777 == 0o600


def test_why_reads_decisions_of_a_killed_autoscaler_from_the_log(serving: Stage) -> None:
    before = serving("why", "woken-00001").stdout.splitlines()[0].split(" (")[0]
    (pid,) = (
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and is_child(path, serving.pid, "serving.autoscaler.main")
    )
    os.kill(pid, signal.SIGKILL)
    assert serving("why", "woken-00001").stdout.startswith(before)


def is_child(process: Path, parent: int, module: str) -> bool:
    try:
        stat, command = (process / "stat").read_text(), (process / "cmdline").read_text()
    except OSError:
        return False
    return module in command and int(stat.rpartition(")")[2].split()[1]) == parent


def test_top_and_dashboard_show_the_revision(serving: Stage) -> None:
    url = serving("dashboard").stdout.strip()
    # The link sets a cookie and redirects to the page.
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(url, timeout=60) as response:
        assert b"<title>serving</title>" in response.read()
    # After another test has killed the autoscaler, the revisions appear with a delay.
    while not any(line.startswith("woken-00001 ") for line in serving("top", "--once").stdout.splitlines()):
        time.sleep(0.1)
