"""Freezers of apps, by cgroups and by signals, on real process trees."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from serving.home.processes.podfreezers import PodFreezers, find_freezers
from serving.home.processes.process_lifetime import start_ticks
from serving.queueproxy.io.freezers import CgroupFreezer, FirstFreezer, Freezer, SignalFreezer, freezer_of
from serving.queueproxy.io.processes import AppProcesses, read_processes
from serving.queueproxy.podspec import FreezerPlace, PodSpec
from tests.eventually import until

# A queue-proxy that freezes a container which shares its process namespace.
_SHARED = """
import asyncio, os, sys, time
from serving.queueproxy.io.freezers import freezer_of
from serving.queueproxy.io.processes import read_processes
from serving.queueproxy.podspec import PodSpec

app = int(sys.argv[1])

async def main():
    spec = PodSpec(namespace="n", revision="r", pod="p", app=("127.0.0.1", 1), unfrozen="")
    freezer = freezer_of(spec, on_exit=lambda: None)
    while os.readlink(f"/proc/{app}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        await asyncio.sleep(0.01)
    await freezer.freeze()
    states = [read_processes()[app].state]
    # Thaw as the next queue-proxy of the pod does.
    await freezer_of(spec, on_exit=lambda: None).recover()
    while (state := read_processes()[app].state) == "T":
        await asyncio.sleep(0.01)
    print(states[0], state in "RS", freezer.name, repr(freezer.unfrozen))

asyncio.run(main())
"""
FORKER = """
import os, time
while True:
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
# A shell with job control, and a job in a separate process group.
JOBS = "set -m; sleep 1000 & wait"


class App:
    """A process in a new session, with a process record like the template's."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.pid = self.process.pid
        self.prefix = f"{folder}/pod."
        record = {"pid": self.pid, "start_ticks": start_ticks(self.pid), "is_app": True}
        (folder / "pod.app.process").write_text(json.dumps(record))

    @property
    def session(self) -> list[int]:
        return [process_entry.pid for process_entry in read_processes().values() if process_entry.session == self.pid]

    def ticks(self) -> int:
        """The cpu time of the whole session."""
        total = 0
        for pid in self.session:
            with contextlib.suppress(OSError):
                total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        return total

    def end(self) -> None:
        for pid in self.session:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=["cgroup2", "cgroup1", "signals"])
def freezer_place(request: pytest.FixtureRequest) -> Iterator[FreezerPlace | None]:
    """The place of a pod's cgroup, or None for signals."""
    if request.param == "signals":
        yield None
        return
    pod_freezers = _of_version(is_unified=request.param == "cgroup2")
    if pod_freezers is None:
        pytest.skip(f"no {request.param} to write to")
    yield pod_freezers.place_of("pod")
    pod_freezers.end()


def _of_version(*, is_unified: bool) -> PodFreezers | None:
    pod_freezers = find_freezers(os.getpid())
    if pod_freezers is None or pod_freezers.is_unified is is_unified:
        return pod_freezers
    pod_freezers.end()
    root = Path("/sys/fs/cgroup/freezer")
    if is_unified or not root.is_dir():
        return None
    folder = root / pod_freezers.folder.name
    folder.mkdir(exist_ok=True)
    return PodFreezers(root=root, folder=folder, is_unified=False)


def freezer_for(place: FreezerPlace | None, app: App, exits: list[None] | None = None) -> Freezer:
    def on_exit() -> None:
        if exits is not None:
            exits.append(None)

    processes = AppProcesses(app.prefix)
    if place is None:
        return SignalFreezer(processes, marker=app.prefix + "frozen", on_exit=on_exit)
    return CgroupFreezer(place, processes, on_exit=on_exit)


@contextlib.asynccontextmanager
async def running(folder: Path, *command: str) -> AsyncIterator[App]:
    app = App(folder, *command)
    try:
        yield app
    finally:
        app.end()


async def is_still(app: App) -> bool:
    """Whether the app uses no CPU time during 0.2 s."""
    before = app.ticks()
    await asyncio.sleep(0.2)
    return app.ticks() == before


async def test_continuously_forking_app_is_frozen_and_thawed(
    freezer_place: FreezerPlace | None, tmp_path: Path
) -> None:
    async with running(tmp_path, sys.executable, "-c", FORKER) as app:
        await until(lambda: len(app.session) > 1)
        freezer = freezer_for(freezer_place, app)
        await freezer.freeze()
        assert await is_still(app)
        freezer.thaw()
        before = app.ticks()
        await until(lambda: app.ticks() > before)
        # Freeze again, with the processes known from the first time.
        await freezer.freeze()
        assert await is_still(app)
        freezer.thaw()


async def test_shell_with_job_control_survives_freeze_and_thaw(
    freezer_place: FreezerPlace | None, tmp_path: Path
) -> None:
    async with running(tmp_path, "bash", "-c", JOBS) as app:
        await until(lambda: len(app.session) == 2)
        freezer = freezer_for(freezer_place, app)
        await freezer.freeze()
        freezer.thaw()
        await asyncio.sleep(0.1)
        assert app.process.poll() is None
        assert len(app.session) == 2
        states = {
            process_entry.state for process_entry in read_processes().values() if process_entry.session == app.pid
        }
        assert states <= {"S", "R"}
        app.end()


async def test_exit_of_frozen_app_is_detected(freezer_place: FreezerPlace | None, tmp_path: Path) -> None:
    exits: list[None] = []
    async with running(tmp_path, "sleep", "1000") as app:
        freezer = freezer_for(freezer_place, app, exits)
        await freezer.freeze()
        os.kill(app.pid, signal.SIGKILL)
        if freezer_place is not None and not freezer_place.is_unified:
            # In cgroup v1, a frozen process is killed only after a thaw.
            freezer.thaw()
            assert app.process.wait() == -signal.SIGKILL
            return
        await until(lambda: exits)
        freezer.thaw()


async def test_process_stopped_by_another_program_stays_stopped_after_thaw(tmp_path: Path) -> None:
    async with running(tmp_path, "bash", "-c", "sleep 1000 & wait") as app:
        await until(lambda: len(app.session) == 2)
        child = next(pid for pid in app.session if pid != app.pid)
        os.kill(child, signal.SIGSTOP)
        await until(lambda: read_processes()[child].state == "T")
        freezer = freezer_for(None, app)
        await freezer.freeze()
        freezer.thaw()
        await until(lambda: read_processes()[app.pid].state == "S")
        assert read_processes()[child].state == "T"


async def test_restarted_queue_proxy_thaws_app_that_its_predecessor_froze(
    freezer_place: FreezerPlace | None, tmp_path: Path
) -> None:
    async with running(tmp_path, sys.executable, "-c", "while True: pass") as app:
        await freezer_for(freezer_place, app).freeze()
        assert await is_still(app)
        await freezer_for(freezer_place, app).recover()
        before = app.ticks()
        await until(lambda: app.ticks() > before)


async def test_app_without_recorded_process_cannot_be_frozen(
    freezer_place: FreezerPlace | None, tmp_path: Path
) -> None:
    async with running(tmp_path, "sleep", "1000") as app:
        (tmp_path / "pod.app.process").unlink()
        with pytest.raises(OSError, match="no process"):
            await freezer_for(freezer_place, app).freeze()


async def test_signals_are_used_if_no_cgroup_can_be_created(tmp_path: Path) -> None:
    async with running(tmp_path, sys.executable, "-c", "while True: pass") as app:
        place = FreezerPlace(root="/proc", folder="/proc/serving/pod")
        freezer = FirstFreezer(freezer_for(place, app), freezer_for(None, app))
        await freezer.freeze()
        assert freezer.name == "signals"
        assert await is_still(app)
        freezer.thaw()
        before = app.ticks()
        await until(lambda: app.ticks() > before)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups")
async def test_process_in_its_own_cgroup_is_frozen_there(tmp_path: Path) -> None:
    pod_freezers = _of_version(is_unified=True)
    if pod_freezers is None:
        pytest.skip("no cgroup2 to write to")
    # The name is not swept by any running system.
    own = pod_freezers.folder.parent / f"of-a-test-{pod_freezers.folder.name}"
    own.mkdir()
    try:
        async with running(tmp_path, sys.executable, "-c", "while True: pass") as app:
            (own / "cgroup.procs").write_text(str(app.pid))
            freezer = freezer_for(pod_freezers.place_of("pod"), app)
            await freezer.freeze()
            assert str(app.pid) in (own / "cgroup.procs").read_text().split()
            assert await is_still(app)
            freezer.thaw()
            before = app.ticks()
            await until(lambda: app.ticks() > before)
        await until(lambda: not (own / "cgroup.procs").read_text())
    finally:
        own.rmdir()
        pod_freezers.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups")
def test_cgroups_of_ended_systems_are_removed() -> None:
    pod_freezers = find_freezers(os.getpid())
    if pod_freezers is None:
        pytest.skip("no cgroup to write to")
    try:
        stale = pod_freezers.folder.parent / "serving-dormant-1-1"
        (stale / "pod").mkdir(parents=True)
        (pod_freezers.folder / "empty").mkdir()
        pod_freezers.sweep()
        assert not stale.exists()
        assert list(pod_freezers.folder.glob("*/")) == []
    finally:
        pod_freezers.end()
    assert not pod_freezers.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of its own need root")
async def test_shared_process_namespace_freezes_all_other_containers(tmp_path: Path) -> None:
    (tmp_path / "proxy.py").write_text(_SHARED)
    # Processes in another mount namespace belong to another container.
    script = f"unshare --mount sleep 600 & {sys.executable} {tmp_path}/proxy.py $!; code=$?; kill -9 $!; exit $code"
    command = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().split("\n")[0] == "T True signals ''"


async def test_unavailable_freezer_reports_its_reason() -> None:
    spec = PodSpec(namespace="n", revision="r", pod="p", app=("127.0.0.1", 1), unfrozen="no namespace")
    freezer = freezer_of(spec, on_exit=lambda: None)
    await freezer.freeze()
    freezer.thaw()
    await freezer.recover()
    assert (freezer.name, freezer.unfrozen) == ("none", "no namespace")
