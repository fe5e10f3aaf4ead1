"""Preloading: pods forked from a warm process of their revision, and apps that cannot be forked."""

import asyncio
import contextlib
import os
import signal
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.core.model.objects import Object
from serving.home.processes.process_lifetime import children_of
from serving.net.cluster.kinds import EVENT, POD
from tests.eventually import until
from tests.integration.local_stage import Machine, controlled, manifest, status_of, template_process

# Responds with values that must differ between pods, and with the process that imported the module.
SLOW = """
import os, random, sys
IMPORTED_BY = os.getpid()
# Like the default value of a parameter, this keeps a reference to the list.
ARGUMENTS = sys.argv
sys.stderr.write("imported\\n")
{more}
def answer():
    return [os.getpid(), IMPORTED_BY, os.environ["PORT"], random.random(), os.getcwd(), os.environ["HOSTNAME"], *ARGUMENTS]
"""
APP = """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
import slow
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(map(str, slow.answer())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        print("asked", flush=True)
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as new_machine:
            yield new_machine


def preloaded(folder: Path, name: str, *, more: str = "") -> Object:
    """A pod with preloading, of an app in a folder."""
    (folder / "slow.py").write_text(SLOW.format(more=more))
    (folder / "app.py").write_text(APP)
    pod = manifest(name, command=f"{sys.executable} app.py", workingDir=str(folder))
    pod["metadata"]["annotations"]["serving.dev/template"] = "preload"
    return pod


async def event_with(machine: Machine, reason: str) -> str:
    """Wait for an Event with this reason; return its message."""
    while True:
        for event in (await machine.cluster.list(EVENT)).items:
            if event["reason"] == reason:
                return str(event["message"])
        await asyncio.sleep(0.05)


async def response_of(machine: Machine, name: str) -> list[str]:
    status, body = await machine.get(await machine.ready(name))
    assert status == 200
    return body.split()


async def test_preloaded_pods_are_forked_and_share_no_pod_specific_state(machine: Machine, tmp_path: Path) -> None:
    await machine.start(preloaded(tmp_path, "p"))
    first = await response_of(machine, "p")
    assert first[0] == first[1]
    assert "MiB" in await event_with(machine, "Preloaded")
    responses = [first]
    for name in ("q", "r"):
        await machine.start(preloaded(tmp_path, name))
        responses.append(await response_of(machine, name))
    importers = {each_responses[1] for each_responses in responses[1:]}
    assert len(importers) == 1
    assert importers.isdisjoint(each_responses[0] for each_responses in responses)
    processes, _, ports, numbers, folders, names, arguments = zip(*responses, strict=True)
    assert all(len(set(own)) == 3 for own in (processes, ports, numbers))
    assert set(folders) == {str(tmp_path)}
    assert names == ("p", "q", "r")
    assert set(arguments) == {"app.py"}
    assert "asked" in machine.log("q")
    assert "imported" not in machine.log("q")


async def test_copied_virtual_environment_in_private_folder_is_preloaded(machine: Machine, tmp_path: Path) -> None:
    """As created by ``venv.create``, in a folder that is closed to the users of pods."""
    venv.create(tmp_path / "venv", symlinks=False)
    for name in ("p", "q"):
        pod = preloaded(tmp_path, name)
        pod["metadata"]["annotations"]["serving.dev/command"] = f"{tmp_path}/venv/bin/python app.py"
        await machine.start(pod)
        process, importer, *_ = await response_of(machine, name)
        assert (process == importer) == (name == "p")
        assert "MiB" in await event_with(machine, "Preloaded")


async def test_pods_with_volumes_are_not_preloaded_with_reason(machine: Machine, tmp_path: Path) -> None:
    """The test starts two pods one after the other; with preloading, the second would be forked."""
    for name in ("p", "q"):
        pod = preloaded(tmp_path, name)
        pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/mnt/preloaded"}]
        await machine.start(pod)
        own, importer = (await response_of(machine, name))[:2]
        assert own == importer
    message = "its volumes are mounted before it starts: /mnt/preloaded; pods start without it"
    assert await event_with(machine, "PreloadRefused") == message


async def test_forked_pod_is_restarted_and_deleted_like_any_other(machine: Machine, tmp_path: Path) -> None:
    await machine.start(preloaded(tmp_path, "p"))
    await machine.ready()
    await event_with(machine, "Preloaded")
    await machine.start(preloaded(tmp_path, "q"))
    os.kill(int((await response_of(machine, "q"))[0]), signal.SIGKILL)
    pod = await machine.until(
        lambda resource: (
            status_of(resource).get("restartCount") == 1 and "running" in status_of(resource).get("state", {})
        ),
        "q",
    )
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    process = int((await response_of(machine, "q"))[0])
    await machine.cluster.delete(POD, "default", "q")
    await machine.until_gone("q")
    await until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(999,), daemon=True).start()", "threads"),
        ("import socket; kept = socket.create_server(('127.0.0.1', 0))", "socket:"),
        ("port = os.environ.get('PORT')", "reads PORT"),
        ("if 'PORT' not in os.environ: raise ValueError('no pod')", "no pod"),
    ],
)
async def test_app_that_cannot_be_forked_is_reported_and_started_normally(
    machine: Machine, tmp_path: Path, more: str, why: str
) -> None:
    await machine.start(preloaded(tmp_path, "p", more=more))
    await machine.ready()
    assert why in await event_with(machine, "PreloadRefused")
    await machine.start(preloaded(tmp_path, "q", more=more))
    response = await response_of(machine, "q")
    assert response[0] == response[1]


async def test_pods_survive_exit_of_their_warm_process(machine: Machine, tmp_path: Path) -> None:
    await machine.start(preloaded(tmp_path, "p"))
    await machine.ready()
    await event_with(machine, "Preloaded")
    await machine.start(preloaded(tmp_path, "q"))
    response = await response_of(machine, "q")
    os.kill(int(response[1]), signal.SIGKILL)
    await machine.start(preloaded(tmp_path, "r"))
    later = await response_of(machine, "r")
    assert later[0] == later[1]
    assert "did not fork" in await event_with(machine, "PreloadFailed")
    assert (await response_of(machine, "q"))[0] == response[0]


def forked_ahead(supervisor: int) -> set[int]:
    """The processes that a warm process has forked; their parent is the supervisor."""
    results = set()
    for pid in children_of(supervisor):
        with contextlib.suppress(OSError):
            if b"preload_program.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                results.add(pid)
    return results


async def next_ahead(supervisor: int, *, known: int = 0) -> int:
    """Wait for the process forked ahead. A starting warm process is briefly a child of the supervisor, too."""
    while True:
        await until(lambda: forked_ahead(supervisor) - {known})
        before = forked_ahead(supervisor) - {known}
        await asyncio.sleep(0.2)
        if len(before) == 1 and forked_ahead(supervisor) - {known} == before:
            return before.pop()


async def test_pod_uses_process_forked_ahead_or_a_new_one(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(preloaded(tmp_path, "p"))
            await machine.ready()
            process_ahead = await next_ahead(template.supervisor.pid)
            await machine.start(preloaded(tmp_path, "q"))
            assert int((await response_of(machine, "q"))[0]) == process_ahead
            another = await next_ahead(template.supervisor.pid, known=process_ahead)
            os.kill(another, signal.SIGKILL)
            await machine.start(preloaded(tmp_path, "r"))
            process, importer, *_ = await response_of(machine, "r")
            assert int(process) != another
            assert importer != process
