"""A pod that does not become ready reports the reason in its condition and as an Event."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.home.controllers.workloads import is_ready
from serving.net.cluster.kinds import EVENT
from tests.eventually import until
from tests.integration.local_stage import HELLO, Machine, manifest

# An HTTP server that responds 503, on the port of its argument or of the environment.
_SERVER = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(503, "Warming Up")
port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["PORT"])
server = http.server.HTTPServer(("127.0.0.1", port), Answer)
print("serving at", server.server_port, flush=True)
server.serve_forever()
"""


def ready_condition(pod: Object) -> Object:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


async def explained(machine: Machine, reason: str, command: str, **container: Any) -> str:  # noqa: ANN401 - fields of the API
    """Wait for the reason in the Ready condition and for the Event with the same message; return the message."""
    await machine.start(manifest(command=command, **container))
    pod = await machine.until(lambda resource: ready_condition(resource).get("reason") == reason)
    message: str = ready_condition(pod)["message"]
    async with asyncio.timeout(60), machine.cluster.watch(EVENT, resource_version="0") as events:
        async for event in events:
            if event.object["reason"] == reason:
                assert event.object["type"] == "Warning"
                assert event.object["message"].partition("; last")[0] == message.partition("; last")[0]
                return message
    raise AssertionError("the watch ended")


def server(*arguments: str) -> str:
    return shlex.join([sys.executable, "-c", _SERVER, *arguments])


async def test_app_on_wrong_port_is_reported_with_both_ports(machine: Machine) -> None:
    message = await explained(machine, "WrongPort", server("0"))
    (port,) = [line.rpartition(" ")[2] for line in message.splitlines() if line.startswith("serving at ")]
    value = next(iter(machine.kubelet._running.values())).location.port
    assert (
        f"listens on port {port} and was given PORT={value}; it must listen on $PORT (or deploy it with --fixed-port)"
        in message
    )


async def test_app_that_does_not_listen_is_reported_with_its_log(machine: Machine) -> None:
    message = await explained(machine, "NotListening", "sh -c 'echo waiting for the database; sleep 1000'")
    assert message.endswith("last lines of its log:\nwaiting for the database")


async def test_failed_readiness_probe_is_reported_with_its_response(machine: Machine) -> None:
    probe = {"httpGet": {"path": "/health"}}
    message = await explained(machine, "ReadinessProbeFailed", server(), readinessProbe=probe)
    assert "GET /health: the app answered 503 Warming Up" in message


async def test_failed_probe_of_pod_without_queue_proxy_is_reported_with_its_response(machine: Machine) -> None:
    probe = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 0.1}
    pod = manifest(command=server(), readinessProbe=probe, ports=[{"containerPort": 8080}])
    del pod["metadata"]["labels"]
    await machine.start(pod)
    unready = await machine.until(lambda resource: ready_condition(resource).get("reason") == "ReadinessProbeFailed")
    assert "GET /health: the app answered 503 Warming Up" in ready_condition(unready)["message"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-check"], "exec no-such-check: no-such-check: no such command in the pod's PATH"),
        (["sh", "-c", "echo no database; exit 3"], "exit code 3: no database"),
        (["sleep", "60"], "no result within 1 s (timeoutSeconds)"),
    ],
)
async def test_failed_exec_readiness_probe_is_reported_with_its_output(
    machine: Machine, command: list[str], message: str
) -> None:
    probe = {"exec": {"command": command}, "periodSeconds": 0.5}
    hello = f"{sys.executable} {HELLO}"
    assert message in await explained(machine, "ReadinessProbeFailed", hello, readinessProbe=probe)


async def test_pod_that_becomes_ready_removes_the_reason(machine: Machine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"sh -c 'while ! test -e {gate}; do sleep 0.1; done; exec {sys.executable} {HELLO}'"
    pod = manifest(command=command)
    pod["metadata"]["annotations"]["serving.dev/dir"] = str(tmp_path)
    await machine.start(pod)
    await machine.until(lambda resource: ready_condition(resource).get("reason") == "NotListening")
    gate.touch()
    pod = await machine.until(is_ready)
    assert "reason" not in ready_condition(pod)
    explained_pod = next(iter(machine.kubelet._running.values()))
    await until(lambda: explained_pod._unready is None)
