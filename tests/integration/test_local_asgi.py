"""Pods with the queue-proxy in the app's process, from a real template: restarted, drained, adopted by the next control."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from serving.core.model.objects import Object
from serving.home.controllers.workloads import is_ready
from serving.home.kubelet.podstreams import connect_to
from tests.eventually import until
from tests.integration.local_stage import (
    Machine,
    controlled,
    manifest,
    secret_line,
    status_of,
    template_process,
)

APP = """
import asyncio, atexit, os, sys

atexit.register(print, "the end")

async def app(scope, receive, send):
    assert scope["type"] == "http"
    print(scope["path"], flush=True)
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"""


def in_process_pod(
    folder: Path,
    command: str = f"{sys.executable} -m serving.asgi inside:app",
    **container: Any,  # noqa: ANN401 - fields of the API
) -> Object:
    (folder / "inside.py").write_text(APP)
    pod = manifest(command=command, **container)
    pod["metadata"]["annotations"] |= {"serving.dev/dir": str(folder), "serving.dev/queue-proxy": "in-process"}
    return pod


async def test_in_process_pod_is_one_process_that_is_restarted_and_drained(machine: Machine, tmp_path: Path) -> None:
    await machine.start(in_process_pod(tmp_path))
    pod = await machine.ready()
    assert [container_status["name"] for container_status in pod["status"]["containerStatuses"]] == ["user-container"]
    status, first = await machine.get(pod)
    assert status == 200
    (run,) = machine.kubelet._running.values()
    assert list(run.keepers) == ["user-container"]
    process = run.keepers["user-container"].process
    assert process is not None
    process.send(signal.SIGKILL)
    await machine.until(lambda fields: not is_ready(fields))
    pod = await machine.ready()
    assert status_of(pod)["restartCount"] == 1
    status, second = await machine.get(pod)
    assert (status, first == second) == (200, False)
    # Requests in flight and requests after the stop are served before the process ends.
    slow = asyncio.create_task(machine.get(pod, "/slow"))
    await until(lambda: "slow" in machine.log("p"))
    run.stop.set()
    assert await machine.get(pod) == (200, second)
    assert await slow == (200, second)
    await machine.until_gone()
    # The process ran its exit handlers, so it was not killed.
    assert machine.log("p").rstrip().endswith("the end")


def pipes_of(pid: int) -> set[str]:
    """The unnamed pipes of a process."""
    links = (str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir())
    return {link for link in links if link.startswith("pipe:")}


async def test_in_process_pod_survives_template_and_control(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(in_process_pod(tmp_path))
            _, before = await machine.get(await machine.ready())
            # The app does not have the pipe for readiness reports, because it could write anything there.
            assert not pipes_of(int(before.split()[1])) & pipes_of(template.pid or 0)
            template.kill()
            await until(lambda: template.pid)
        async with controlled(template.state) as machine:
            # The pod repeats its readiness to the next template.
            pod = await machine.ready()
            assert await machine.get(pod) == (200, before)
            (run,) = machine.kubelet._running.values()
            run.stop.set()
            await machine.until_gone()


async def test_kubelet_probes_reach_in_process_app_and_are_not_counted(machine: Machine, tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/probed", "port": 8080}, "periodSeconds": 1, "failureThreshold": 60}
    await machine.start(in_process_pod(tmp_path, livenessProbe=probe, readinessProbe=probe))
    pod = await machine.ready()
    # At least one probe of the queue-proxy and one of the kubelet.
    await until(lambda: machine.log("p").count("probed") >= 2)
    assert (await machine.get(pod))[0] == 200
    reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8022)
    writer.write(f"GET /metrics HTTP/1.0\r\n{secret_line('p')}\r\n".encode())
    async with asyncio.timeout(60):
        numbers = await reader.read()
    writer.close()
    assert b'status_class="2xx"} 1\n' in numbers


async def test_declared_container_port_reaches_in_process_app(machine: Machine, tmp_path: Path) -> None:
    await machine.start(in_process_pod(tmp_path, ports=[{"containerPort": 8080}]))
    _, pid = await machine.get(await machine.ready())
    (run,) = machine.kubelet._running.values()
    reader, writer = await connect_to(run, 8080)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.read()).endswith(pid.encode())
    writer.close()


async def test_import_error_of_app_is_in_its_log(machine: Machine, tmp_path: Path) -> None:
    pod = in_process_pod(tmp_path, command=f"{sys.executable} -m serving.asgi nothing:app")
    await machine.start(pod)
    # The reason is in the log, as for any app that does not start.
    await machine.until(lambda resource: status_of(resource).get("restartCount"))
    logs = (machine.state.logs / "pods" / "default" / "p").glob("user-container.*")
    assert any("serving.asgi: Could not import module" in log.read_text() for log in logs)
