"""Commands of the README, in a fresh copy of the tree and on a running system."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import ROOT, Stage
from tests.e2e.test_examples import environment_of

pytestmark = pytest.mark.timeout(390)

README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
_COMMANDS = [line.partition(" #")[0].strip() for block in _BLOCKS for line in block.splitlines()]
_INSTALL_S, _START_S, _STEP_S = 300.0, 60.0, 60.0
# A program in any language that listens on $PORT.
_APP = """
import http.server, os

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"heard\\n")

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""
# A new network namespace, in which the default ports are free.
_ALONE = ["unshare", "-n", "sh", "-c"]


def commands_of(program: str) -> list[str]:
    """The lines of the README's blocks that run a program."""
    commands = [command for command in _COMMANDS if command.split(" ", 1)[0] == program]
    assert commands, f"the README runs no {program}"
    return commands


def typed(command: str, folder: Path, environment: dict[str, str]) -> str:
    """The standard output of a command."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_STEP_S,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_readme_serving_commands_deploy_an_own_program(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "shout").mkdir()
    (tmp_path / "shout" / "app.py").write_text(_APP, encoding="utf-8")
    environment = environment_of(serving.state.parent)
    printed = [typed(command, tmp_path, environment) for command in commands_of("serving")]
    assert [text for text in printed if text.startswith("http://shout.default.localhost:")], printed
    assert "heard\n" in printed
    assert "shout-00001" in printed[-1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without built files, with the environment of `make run`."""
    folder = tmp_path_factory.mktemp("fresh") / "serving"
    # build/ has roots of `make test-pythons` with device files, which cannot be copied.
    names = (".venv*", ".git", "__pycache__", ".*_cache", ".hypothesis", ".coverage*", "build")
    left_out = shutil.ignore_patterns(*names)
    shutil.copytree(ROOT, folder, ignore=left_out)
    make = shutil.which("make")
    assert make is not None
    subprocess.run([make, ".venv/.runtime"], cwd=folder, check=True, timeout=_INSTALL_S, capture_output=True)
    return folder


@pytest.fixture
def alone() -> None:
    """Skip without network namespaces."""
    if subprocess.run([*_ALONE, "ip link set lo up"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here: run as root, with iproute2")


@pytest.fixture
def running(copy: Path, alone: None, tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    """The process of `make run` in the copy, and its output until the sample runs."""
    del alone
    (command,) = [each_command for each_command in commands_of("make") if each_command == "make run"]
    process = subprocess.Popen(
        [*_ALONE, f"ip link set lo up && exec {command}"],
        cwd=copy,
        env={**environment_of(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        printed: list[str] = []
        while not any(line.startswith("curl ") for line in printed):
            line = process.stdout.readline()
            assert line, printed
            printed.append(line)
        yield process.pid, printed
    finally:
        # As Ctrl-C in a terminal, the signal reaches make and all its children.
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=_START_S)


@pytest.mark.slow
def test_make_run_in_a_fresh_copy_serves_the_sample(running: tuple[int, list[str]]) -> None:
    pid, printed = running
    whole = "".join(printed)
    assert "http://hello.default.localhost:8080\n" in whole
    assert "dashboard: http://127.0.0.1:6090, opened by the link of `serving dashboard`\n" in whole
    assert "export KUBECONFIG=" in whole
    curl = next(line for line in printed if line.startswith("curl ")).strip()
    response = typed(f"nsenter -t {pid} -n {curl} --silent --max-time 30", ROOT, dict(os.environ))
    assert response.startswith("Hello ")


@pytest.mark.slow
def test_lowest_allowed_dependency_versions_work(alone: None, tmp_path: Path) -> None:
    del alone
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed: pip install uv")
    environment = {**environment_of(tmp_path), "VIRTUAL_ENV": str(tmp_path / "venv")}
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment["VIRTUAL_ENV"]], check=True)
    install = [uv, "pip", "install", "--quiet", "--resolution", "lowest-direct", f"{ROOT}[grpc,otel,placement]"]
    subprocess.run(install, env=environment, check=True, timeout=_INSTALL_S)
    environment["PATH"] = f"{tmp_path / 'venv' / 'bin'}:{environment['PATH']}"
    importing = (
        "import importlib, pkgutil, serving\n"
        "for module in pkgutil.walk_packages(serving.__path__, 'serving.'):\n"
        "    module.name.endswith('__main__') or importlib.import_module(module.name)"
    )
    typed(f'python -c "{importing}"', tmp_path, environment)
    (tmp_path / "map.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {key: value}}")
    steps = (
        "serving up -d",
        f"serving deploy hello {ROOT}/serving/tools/samples --no-snapshot --command 'python hello.py'",
        "serving invoke hello",
        "serving get pods -o yaml",
        "serving apply -f map.yaml",
        "serving why hello",
        "serving simulate",
    )
    script = f"ip link set lo up; trap 'serving down' EXIT; {' && '.join(steps)}"
    done = subprocess.run(
        [*_ALONE, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Hello " in done.stdout
