"""A running system for end-to-end tests, and calls of its command line."""

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
# Owners precede the objects that they own.
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

        A service is ready shortly before the activator knows it, so a request that should succeed is repeated until
        then.
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
        """Invoke until a response starts with ``beginning``; the activator follows traffic changes with a short delay."""
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
        """Run a command in a process with pipes; it is interrupted at the end."""
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
    """A system on free ports, with ``options`` of `serving up` and ``environment`` variables for its daemons."""
    with patient(), started(state, *options, **environment) as stage:
        yield stage


@contextlib.contextmanager
def started(state: Path, *options: str, **environment: str) -> Iterator[Stage]:
    """As ``staged``, but without patches of this process."""
    ports = [f"--{port.name}-port=0" for port in PORTS]
    # Processes of the system are identified by this variable, or by their HOME in the state folder.
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
    assert left_of(state) == [], "the system must leave no process"


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Extend timeouts of commands in this process, for busy machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_PATIENCE_S", _PATIENCE_S)
        patch.setattr(completion, "_TIMEOUT_S", _PATIENCE_S)
        patch.setattr(doctor, "_TIMEOUT_S", _PATIENCE_S)
        patch.setattr(doctor, "_SLOW_S", _PATIENCE_S)
        yield


def left_of(state: Path) -> list[str]:
    """Command lines of the running processes that were started with a state folder."""
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
    """Delete all objects of users, and wait until no pod is left."""
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
    """Names of objects without owner in the namespace default."""
    items = json.loads(stage("get", kind, "-o", "json").stdout)["items"]
    return [resource["metadata"]["name"] for resource in items if not resource["metadata"].get("ownerReferences")]
