"""kubectl with pods of one machine: exec, attach, port-forward, logs, run and rollouts."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.e2e.cli_stage import Stage

_KUBECTL = shutil.which("kubectl") or ""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not _KUBECTL, reason="kubectl is not installed"),
]
_PATIENCE_S = 60.0
APP = """
import http.server, os

class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        print("asked for", self.path, flush=True)
        if self.path == "/exit":
            print("bye", flush=True)
            os._exit(1)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""
# Runs in the pod.
CONFIRM = """
import contextlib, os, urllib.request
with contextlib.suppress(OSError):
    urllib.request.urlopen(f"http://127.0.0.1:{os.environ['PORT']}PATH")
"""

# A pod with the annotation serving.dev/dir runs as a process, which needs no image.
NO_IMAGE = ("--image=dev.local/none:1", "--annotations=serving.dev/dir=/")
OVER_QUOTA = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: greedy, namespace: bounded}
spec:
  template:
    metadata: {annotations: {serving.dev/command: python3 -m http.server $PORT}}
    spec:
      containers: [{image: none, resources: {requests: {cpu: 200m}, limits: {cpu: 500m}}}]
"""


class Kubectl(msgspec.Struct, frozen=True):
    """kubectl with the kubeconfig of a running system, and the pod of its one service."""

    stage: Stage
    pod: str = ""

    def start(self, *words: str, **more: object) -> "subprocess.Popen[str]":
        environment = {**os.environ, "KUBECONFIG": str(self.stage.state / "kubeconfig"), "HOME": str(self.stage.state)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **more}
        return subprocess.Popen([_KUBECTL, *words], env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> str:
        process = self.start(*words, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        printed, _ = process.communicate(stdin, timeout=_PATIENCE_S)
        assert process.returncode == code, (words, printed)
        return str(printed)


@pytest.fixture(scope="module")
def kubectl(serving: Stage, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    command = f"{sys.executable} app.py"
    serving("deploy", "hello", str(folder), "--command", command, "--min-scale", "1", "--env", "COLOUR=red")
    (pod,) = Kubectl(serving)("get", "pods", "-o", "name").split()
    return Kubectl(serving, pod.removeprefix("pod/"))


def test_kubectl_output_contains_no_token(kubectl: Kubectl) -> None:
    token = (kubectl.stage.state / "token").read_text()
    for words in (("config", "view"), ("cluster-info",), ("get", "pods", "-v=6"), ("version", "-o", "yaml")):
        assert token not in kubectl(*words)
    assert "is running at" in kubectl("cluster-info")
    assert token in kubectl("config", "view", "--raw")


def test_kubectl_with_another_authority_is_rejected(kubectl: Kubectl) -> None:
    assert "certificate" in kubectl("get", "pods", "--certificate-authority=/etc/hostname", code=1)


def test_exec_has_the_environment_of_the_app(kubectl: Kubectl) -> None:
    assert kubectl("exec", kubectl.pod, "--", "sh", "-c", "echo $COLOUR; hostname") == f"red\n{kubectl.pod}\n"


def test_exec_forwards_stdin_and_returns_the_exit_code(kubectl: Kubectl) -> None:
    text = "line\n" * 100_000
    assert kubectl("exec", "-i", kubectl.pod, "--", "cat", stdin=text) == text
    printed = kubectl("exec", kubectl.pod, "--", "sh", "-c", "echo no >&2; exit 7", code=7)
    assert "no" in printed
    assert "exit code 7" in printed


def test_exec_of_a_missing_command_or_pod_is_reported(kubectl: Kubectl) -> None:
    assert "no-such-command" in kubectl("exec", kubectl.pod, "--", "no-such-command", code=1)
    assert "not found" in kubectl("exec", "no-such-pod", "--", "ls", code=1)


def test_exec_and_attach_report_why_a_container_does_not_run(kubectl: Kubectl) -> None:
    kubectl("run", "broken", *NO_IMAGE, "--command", "--", "/no/such/program")
    kubectl(
        "wait", "pod/broken", "--for", "jsonpath={.status.containerStatuses[0].state.waiting.reason}", "--timeout=60s"
    )
    for words in (("exec", "broken", "--", "ls"), ("attach", "broken")):
        printed = kubectl(*words, code=1)
        assert "container broken of the pod does not run: " in printed
        assert "/no/such/program" in printed
    kubectl("delete", "pod", "broken", "--wait=false")


def test_exec_allocates_a_terminal(kubectl: Kubectl) -> None:
    ours, theirs = os.openpty()
    process = kubectl.start("exec", "-it", kubectl.pod, "--", "sh", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"test -t 0 && echo is-a-ter''minal\nexit 3\n")
    assert process.wait(timeout=_PATIENCE_S) == 3
    printed = os.read(ours, 65536).decode()
    os.close(ours)
    assert "is-a-terminal" in printed


def test_exec_command_ends_with_its_client(kubectl: Kubectl) -> None:
    process = kubectl.start("exec", kubectl.pod, "--", "sh", "-c", "echo $$; exec sleep 1000")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        assert select.select([descriptor], [], [], _PATIENCE_S)[0]
        os.close(descriptor)


def test_attach_follows_the_output(kubectl: Kubectl, tmp_path: Path) -> None:
    with (tmp_path / "printed").open("wb") as printed:
        process = kubectl.start("attach", kubectl.pod, stdout=printed)
    try:
        # kubectl does not report when it is attached, so send requests until it prints the app's line.
        while "asked for /hear-me" not in (tmp_path / "printed").read_text():
            assert process.poll() is None, (tmp_path / "printed").read_text()
            kubectl("exec", kubectl.pod, "--", sys.executable, "-c", CONFIRM.replace("PATH", "/hear-me"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_PATIENCE_S)


@pytest.mark.parametrize("port", ["8080", "app"])
def test_port_forward_reaches_the_app(kubectl: Kubectl, port: str) -> None:
    wanted = port if port == "8080" else kubectl("exec", kubectl.pod, "--", "sh", "-c", "echo $PORT").strip()
    process = kubectl.start("port-forward", f"pod/{kubectl.pod}", f":{wanted}")
    assert process.stdout is not None
    try:
        match_ = re.search(r"127\.0\.0\.1:(\d+) ->", line := process.stdout.readline())
        assert match_, line
        with httpx.Client(base_url=f"http://127.0.0.1:{match_[1]}", timeout=_PATIENCE_S) as client:
            for _ in range(3):
                assert client.get("/").status_code == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_PATIENCE_S)


def test_port_forward_to_an_unused_port_reports_listening_ports(kubectl: Kubectl) -> None:
    process = kubectl.start("port-forward", f"pod/{kubectl.pod}", ":9")
    assert process.stdout is not None
    try:
        match_ = re.search(r"127\.0\.0\.1:(\d+) ->", process.stdout.readline())
        assert match_
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{match_[1]}/", timeout=_PATIENCE_S)
        message = next(line for line in process.stdout if "of the pod" in line)
        assert re.search(r"port 9 of the pod: the pod listens on \d+, not on 9", message)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_PATIENCE_S)


def test_rollout_restart_replaces_the_pods(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.stage(
        "deploy", "again", str(tmp_path), "--command", f"{sys.executable} -m http.server $PORT", "--min-scale", "1"
    )
    listed = ("get", "pods", "-l", "serving.knative.dev/service=again", "-o", "name")
    (before,) = kubectl(*listed).split()
    kubectl("rollout", "restart", "deployment", "again-00001-deployment")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment", "again-00001-deployment")
    kubectl("wait", before, "--for=delete", "--timeout=60s")
    (after,) = kubectl(*listed).split()
    assert after != before
    restarted = '{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}'
    kubectl("patch", "ksvc", "again", "--type=merge", "-p", restarted)
    kubectl("wait", "ksvc/again", "--for=jsonpath={.status.latestReadyRevisionName}=again-00002", "--timeout=60s")


def test_kubectl_run_creates_a_running_pod(kubectl: Kubectl) -> None:
    kubectl("run", "lone", *NO_IMAGE, "--command", "--", sys.executable, "-c", "import time; time.sleep(600)")
    kubectl("wait", "pod/lone", "--for=condition=Ready", "--timeout=60s")
    kubectl("delete", "pod", "lone", "--grace-period=1")


def test_kubectl_run_writes_to_the_stdin_of_a_container(kubectl: Kubectl) -> None:
    program = "import sys; print(*map(str.upper, sys.stdin), flush=True); sys.exit(3)"
    command = ("--command", "--", sys.executable, "-c", program)
    assert "HELLO" in kubectl("run", "once", "-i", "--restart=Never", *NO_IMAGE, *command, stdin="hello\n", code=3)
    kubectl("wait", "pod/once", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s")
    assert kubectl("get", "pod", "once", "-o", "jsonpath={..state.terminated.exitCode}") == "3"
    kubectl("delete", "pod", "once", "--grace-period=1")


def test_open_stdin_accepts_successive_attach_clients(kubectl: Kubectl) -> None:
    program = "import sys\nfor line in sys.stdin: print('heard', line, flush=True)"
    pod = {
        "metadata": {"name": "open", "annotations": {"serving.dev/dir": "/"}},
        "spec": {
            "containers": [
                {"name": "a", "image": "dev.local/none", "stdin": True, "command": [sys.executable, "-c", program]}
            ]
        },
    }
    manifest = msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", **pod}).decode()
    kubectl("create", "-f", "-", stdin=manifest)
    kubectl("wait", "pod/open", "--for=condition=Ready", "--timeout=60s")
    for word in ("one", "two"):
        process = kubectl.start("attach", "-i", "open", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        while f"heard {word}" not in kubectl("logs", "open"):
            assert process.poll() is None
        process.stdin.close()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=_PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
    kubectl("delete", "pod", "open", "--grace-period=1")


def wait_for_log(kubectl: Kubectl, text: str, name: str) -> None:
    """Wait until the logs contain a text; without a probe, a pod is ready before its program writes."""
    until_s = time.monotonic() + _PATIENCE_S
    while text not in (message := kubectl("logs", name)):
        assert time.monotonic() < until_s, message
        time.sleep(0.1)


def test_kubectl_deployment_runs_and_rolls_out_changes(kubectl: Kubectl) -> None:
    program = "import os, time; print('says', os.environ.get('WORD', 'nothing'), flush=True); time.sleep(600)"
    container = {"name": "none", "image": "dev.local/none:1", "command": [sys.executable, "-c", program]}
    metadata = {"labels": {"app": "plain"}, "annotations": {"serving.dev/dir": "/"}}
    template = {"metadata": metadata, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "plain"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "plain"}, "spec": spec}
    kubectl("create", "-f", "-", stdin=msgspec.json.encode(body).decode())
    kubectl("rollout", "status", "deployment", "plain", "--timeout=60s")
    wait_for_log(kubectl, "says nothing", "deployment/plain")
    kubectl("set", "env", "deployment/plain", "WORD=hello")
    kubectl("rollout", "status", "deployment", "plain", "--timeout=60s")
    kubectl("wait", "deployment/plain", "--for=jsonpath={.status.replicas}=1", "--timeout=60s")
    wait_for_log(kubectl, "says hello", "deployment/plain")
    kubectl("delete", "deployment", "plain")


def test_previous_logs_are_of_the_run_before_restart(kubectl: Kubectl) -> None:
    assert "no previous run of container user-container" in kubectl("logs", "-p", kubectl.pod, code=1)
    kubectl("exec", kubectl.pod, "--", sys.executable, "-c", CONFIRM.replace("PATH", "/exit"))
    kubectl("wait", f"pod/{kubectl.pod}", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1")
    kubectl("wait", f"pod/{kubectl.pod}", "--for=condition=Ready", "--timeout=60s")
    assert "bye" in kubectl("logs", "-p", kubectl.pod)
    assert "bye" not in kubectl("logs", kubectl.pod)


def test_exceeded_quota_keeps_service_unready_until_raised(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "bounded")
    kubectl("wait", "--for=create", "serviceaccount/default", "-n", "bounded", "--timeout=60s")
    kubectl("create", "quota", "small", "--hard=cpu=50m", "-n", "bounded")
    kubectl("apply", "-f", "-", stdin=OVER_QUOTA)
    kubectl("wait", "--for=condition=Ready=False", "ksvc/greedy", "-n", "bounded", "--timeout=60s")
    why = (
        'pods "greedy-00001-deployment-" is forbidden: exceeded quota: small, requested: cpu=200m, used: cpu=0, '
        "limited: cpu=50m"
    )
    for kind, reason in (("ksvc/greedy", "RevisionFailed"), ("revision/greedy-00001", "FailedCreate")):
        shown = kubectl("get", kind, "-n", "bounded", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')]}")
        document = msgspec.json.decode(shown)
        assert document["reason"] == reason
        assert why in document["message"]
    assert f"Error creating: {why}" in kubectl("get", "events", "-n", "bounded")
    kubectl("patch", "quota", "small", "-n", "bounded", "--type=merge", "-p", '{"spec":{"hard":{"cpu":"300m"}}}')
    kubectl("wait", "--for=condition=Ready", "ksvc/greedy", "-n", "bounded", "--timeout=60s")
    kubectl("wait", "--for=jsonpath={.status.used.cpu}=200m", "quota/small", "-n", "bounded", "--timeout=60s")
    assert re.search(r"cpu +200m +300m", kubectl("describe", "quota", "small", "-n", "bounded"))
    kubectl("delete", "namespace", "bounded")
