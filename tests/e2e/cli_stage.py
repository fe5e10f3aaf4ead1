"""A running system for tests of the command line, and the command line itself."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from serving.home.supervisor.binding import PORTS
from serving.tools.cli.client import completion, output
from serving.tools.cli.main import main
from serving.tools.cli.system import doctor
from serving.tools.samples import hello

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = f"{sys.executable} {hello.__file__}"
_PATIENCE_S = 60.0
_UNKNOWN = "no service has the host "
# Owners before what they own.
_CLEARED = (
    "ingresses",
    "httpscaledobjects",
    "scaledworkloads",
    "ksvc",
    "deployments",
    "pods",
    "svc",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
)
_KEPT_NAMESPACES = {"default", "knative-serving", "kube-system", "kube-public", "kube-node-lease"}
_KEPT_NAMES = {"kubernetes", "kube-root-ca.crt"}


class Stage(msgspec.Struct, frozen=True):
    """The state folder and the supervisor's process id."""

    state: Path
    pid: int

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> Result:
        """Run a command in this process; its exit code is as expected.

        A service is ready a moment before the activator has heard of it: a request that is to succeed is made again
        until it has.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            done = CliRunner().invoke(
                main, [*arguments, "--state", str(self.state)], input=stdin, env={"KUBECONFIG": None, "NO_COLOR": None}
            )
            is_early = arguments[0] == "invoke" and code == 0 and _UNKNOWN in done.output
            if not is_early or time.monotonic() > until_s:
                break
            time.sleep(0.05)
        assert done.exit_code == code, (arguments, done.output, done.exception)
        return done

    def until_status(self, beginning: str, *arguments: str) -> None:
        """Invoke until a response begins so: the activator follows new traffic with a short delay."""
        until_s = time.monotonic() + _PATIENCE_S
        while not (stdout := self("invoke", *arguments).stdout).startswith(beginning):
            assert time.monotonic() < until_s, stdout
            time.sleep(0.05)

    def until(self, text: str, *arguments: str) -> None:
        """Repeat a command until it prints a text."""
        until_s = time.monotonic() + _PATIENCE_S
        while text not in (stdout := self(*arguments).stdout):
            assert time.monotonic() < until_s, stdout
            time.sleep(0.05)

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command in a process with pipes; interrupted at the end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "serving", *arguments, "--state", str(self.state)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "xterm-256color"},
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=_PATIENCE_S)


@contextlib.contextmanager
def staged(state: Path, *options: str, **environment: str) -> Iterator[Stage]:
    """A system on free ports; ``options`` are for `serving up`, ``environment`` adds variables for its daemons."""
    with patient(), started(state, *options, **environment) as stage:
        yield stage


@contextlib.contextmanager
def started(state: Path, *options: str, **environment: str) -> Iterator[Stage]:
    """``staged``, for the whole time of a process: nothing of this process is changed."""
    ports = [f"--{port.name}-port=0" for port in PORTS]
    # By this variable, or by their HOME in the state folder, all that it has started is found.
    marks = {"SERVING_STARTED_FOR": str(state), "SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true"}
    process = subprocess.Popen(
        [sys.executable, "-m", "serving", "up", f"--state={state}", *ports, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **marks, **environment},
    )
    assert process.stdout is not None
    try:
        assert re.search(r"answer at http://\S+:\d+", process.stdout.readline()), process.communicate()
        yield Stage(state, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=150)
    assert left_of(state) == [], "the system leaves no process"


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Let commands of this process wait long, on a machine that has much else to do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_PATIENCE_S", _PATIENCE_S)
        patch.setattr(completion, "_TIMEOUT_S", _PATIENCE_S)
        patch.setattr(doctor, "_TIMEOUT_S", _PATIENCE_S)
        patch.setattr(doctor, "_SLOW_S", _PATIENCE_S)
        yield


def left_of(state: Path) -> list[str]:
    """The running processes among those started with a state folder."""
    results = []
    for pid, command in processes():
        with contextlib.suppress(OSError):
            if str(state).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                results.append(command)
    return results


def processes() -> Iterator[tuple[int, str]]:
    """Process ids and command lines."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def clear(stage: Stage) -> None:
    """Delete what users created, and wait until no pod is left."""
    for namespace in _names(stage, "namespaces"):
        if namespace not in _KEPT_NAMESPACES:
            stage("delete", f"namespace/{namespace}", "--no-wait")
    for kind in _CLEARED:
        if names := [f"{kind}/{name}" for name in _names(stage, kind) if name not in _KEPT_NAMES]:
            stage("delete", *names, "--no-wait", "--ignore-not-found")
    stage("delete", "configmap/config-autoscaler", "-n", "knative-serving", "--ignore-not-found")
    until_s = time.monotonic() + _PATIENCE_S
    while remaining := stage("get", "pods", "-A", "-o", "name").stdout:
        assert time.monotonic() < until_s, remaining
        time.sleep(0.05)


def _names(stage: Stage, kind: str) -> list[str]:
    """Names in the namespace default of what has no owner."""
    items = json.loads(stage("get", kind, "-o", "json").stdout)["items"]
    return [resource["metadata"]["name"] for resource in items if not resource["metadata"].get("ownerReferences")]
