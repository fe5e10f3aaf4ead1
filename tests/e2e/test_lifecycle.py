"""A system in the background: up -d, status, down and rotated logs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.home.state import StateFolder
from serving.home.supervisor.binding import PORTS
from tests.e2e.cli_stage import ROOT

pytestmark = pytest.mark.timeout(300)

_PATIENCE_S = 120


def typed(state: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    # A user's virtual environment may be active.
    result = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"PATH": os.defpath}
    done = subprocess.run(
        [sys.executable, "-m", "serving", *arguments, f"--state={state}"],
        cwd=ROOT,
        env=result,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done


def test_background_system_starts_reports_status_and_stops(tmp_path: Path) -> None:
    state, ports = tmp_path / "state", [f"--{port.name}-port=0" for port in PORTS]
    assert "does not run" in typed(state, "status", code=1).stdout
    try:
        printed = typed(state, "up", "-d", "--sample", "--log-size=100", "--log-files=2", *ports).stdout
        link = r"^dashboard: http://127\.0\.0\.1:\d+, opened by the link of `serving dashboard`$"
        assert re.search(link, printed, re.MULTILINE)
        assert re.search(r"^commands: .*serving", printed, re.MULTILINE)
        check_logs(state / "logs")
        # A second `up` reports the running system and does not end it.
        assert state.stat().st_mode & 0o777 == 0o700
        assert "holds this state folder" in typed(state, "up", "-d", *ports, code=2).stderr
        occupied = f"--public-port={StateFolder(state).read_ports()['public']}"
        stderr = typed(tmp_path / "other", "up", *ports, occupied, code=2).stderr
        assert f"that of the `serving up` with the state folder {state}; expected other ports" in stderr
        ours = StateFolder(state).read_ports()
        results = [f"--{name}-port={ours[name]}" for name in ("public", "api")]
        (line,) = typed(tmp_path / "other", "up", *ports, *results, code=2).stderr.splitlines()
        assert line.startswith(f"--public-port, --api-port: ports {ours['public']}, {ours['api']} are those of")
        assert "not in the range" in typed(tmp_path / "other", "up", "--public-port=70000", code=2).stderr
        assert typed(state, "url", "hello").stdout.startswith("http://hello.default.localhost:")
        typed(state, "scale", "hello", "--min", "1")
        shown = typed(state, "status").stdout
        assert "1 of 1 ready" in shown
        document = json.loads(typed(state, "status", "-o", "json").stdout)
        # The pod of the previous revision may still exist.
        assert (document["service_count"], document["ready_pod_count"] >= 1) == (1, True)
        assert typed(state, "version").stdout.splitlines()[1].startswith("server  v")
        assert "LATESTREADY" in typed(state, "get", "-o", "wide").stdout
        assert typed(state, "get", "-o", "jsonpath={.items[*].metadata.name}").stdout == "hello"
        assert typed(state, "down").stdout == "serving has ended\n"
    finally:
        pid = StateFolder(state).holder()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
    assert "does not run" in typed(state, "down").stdout
    assert "does not run" in typed(state, "status", code=1).stdout


def check_logs(folder: Path) -> None:
    """An activator logs more than 100 bytes at its start, so its log is rotated, with one previous file."""
    until_s = time.monotonic() + _PATIENCE_S
    while not (folder / "activator.log.1").exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert list(folder.glob("activator.log.2")) == []
    lines = [line for log in folder.glob("activator.log*") for line in log.read_text().splitlines()]
    assert all(json.loads(line)["event"] for line in lines)


def test_failed_background_start_reports_its_reason(tmp_path: Path) -> None:
    state, ports = tmp_path / "state", [f"--{port.name}-port=0" for port in PORTS]
    state.mkdir(mode=0o700)
    (state / "journal.db").write_bytes(b"no database" * 1000)
    done = typed(state, "up", "-d", *ports, code=2)
    assert f"control cannot start: the journal {state}/journal.db cannot be used" in done.stderr
    assert (state / "journal.db").read_bytes() == b"no database" * 1000
    assert (done.stdout, "is up" in done.stderr) == ("", False)
    assert "does not run" in typed(state, "status", code=1).stdout
