import json
import os
import socket
import subprocess
from pathlib import Path

from serving.core.model.launch import ACME_DIRECTORY_VARIABLE
from serving.home.state import kubeconfig
from serving.home.supervisor.children import CHILDREN
from serving.tools.cli.system.doctor import check_daemons, check_reach


def test_missing_daemon_is_reported_with_its_last_log_error(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [{"level": "error", "error": "no room"}, {"level": "info", "event": "later"}]
    (tmp_path / "logs" / "control.log").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "logs" / "activator.log").write_text("Traceback:\n  File x\nOSError: [Errno 24] Too many open files\n")
    # The test process has no daemons as children.
    findings = {finding.name: finding for finding in check_daemons(tmp_path, os.getpid())}
    assert {finding.state for finding in findings.values()} == {"fail"}
    assert list(findings) == [child.name for child in CHILDREN()]
    assert findings["control"].text == "does not run; no room"
    assert findings["activator"].text == "does not run; OSError: [Errno 24] Too many open files"
    assert findings["template"].text == "does not run"


def test_each_of_several_activators_is_checked(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    ports = {"api": 1, "activator-metrics": 2, "activator-1-metrics": 3, "activator-2-metrics": 4}
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    names = [finding.name for finding in check_daemons(tmp_path, os.getpid())]
    assert names[-3:] == ["activator", "activator-1", "activator-2"]


def test_acme_and_nodegroup_daemons_are_checked_when_enabled(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "ports.json").write_text(json.dumps({"api": 1, "nodegroup-metrics": 2}))
    # Each daemon of `serving up --acme` has this environment.
    environment = {**os.environ, ACME_DIRECTORY_VARIABLE: "https://localhost:1/dir"}
    command = ["sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        # A process has no environment right after its start.
        daemon.stdout.readline()
        findings = {finding.name: finding.state for finding in check_daemons(tmp_path, os.getpid())}
        daemon.terminate()
    assert findings["acme"] == findings["nodegroup"] == "fail"


def test_unresponsive_api_port_fails_the_check(tmp_path: Path) -> None:
    # Bound but not listening, so no other process can use the port meanwhile.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        (tmp_path / "ports.json").write_text(json.dumps({"api": port}))
        (tmp_path / "kubeconfig").write_text(kubeconfig(f"http://127.0.0.1:{port}", "t"))
        results = [(finding.name, finding.state, finding.text) for finding in check_reach(tmp_path)]
    assert results == [
        ("port api", "fail", f"{port}: [Errno 111] Connection refused"),
        ("token", "fail", "Connection refused"),
    ]


def test_missing_ports_file_advises_a_restart(tmp_path: Path) -> None:
    (finding,) = check_reach(tmp_path)
    assert (finding.state, finding.advice) == ("fail", "start `serving up` again")
