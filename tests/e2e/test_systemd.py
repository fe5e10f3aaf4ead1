"""`serving up --systemd`: the test receives its messages at the notify socket."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from serving.home.processes.process_lifetime import children_of
from serving.home.supervisor.binding import PORTS
from tests.e2e.cli_stage import ROOT, Stage

WITHIN_S = 150.0


def test_system_reports_ready_watchdog_and_stopping_to_systemd(tmp_path: Path) -> None:
    """Takes five seconds to start a whole system."""
    state, address = tmp_path / "state", str(tmp_path / "notify")
    command = [sys.executable, "-m", "serving", "up", "--systemd", f"--state={state}"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(WITHIN_S)
        process = subprocess.Popen(
            [*command, *(f"--{port.name}-port=0" for port in PORTS)],
            cwd=ROOT,
            env={**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"},
        )
        try:
            states: list[str] = []
            while "READY=1" not in states:
                states += systemd.recv(4096).decode().splitlines()
            assert f"MAINPID={process.pid}" in states
            # At READY, the store is open and the API responds to the first request.
            assert (
                json.loads(Stage(state=state, pid=process.pid)("get", "services", "-o", "json").stdout)["items"] == []
            )
            assert "WATCHDOG=1" in [systemd.recv(4096).decode() for _ in range(3)]
            children = children_of(process.pid)
            assert children
            assert not [pid for pid in children if b"NOTIFY_SOCKET" in Path(f"/proc/{pid}/environ").read_bytes()]
        finally:
            process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in states:
            states += systemd.recv(4096).decode().splitlines()
        assert process.wait(WITHIN_S) == 0


def test_systemd_option_is_rejected_without_systemd(tmp_path: Path) -> None:
    output = Stage(state=tmp_path, pid=0)("up", "--systemd", code=2).output
    assert "--systemd needs a service of systemd with Type=notify" in output
