"""Launches: concurrent process starts, and orders deferred until a start ends."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from serving.home.processes.launches import Launches, lift_quotas, restore_quotas, sealed_copy
from serving.home.processes.orders import ForgetPod, SendSignal, StartProcess
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords
from serving.home.processes.spawn import ProcessAssignment, Standby


class Stage:
    """Launches of two pods; ``ready`` are the callbacks by descriptor, ``started`` the outcomes by pod."""

    def __init__(self, folder: Path) -> None:
        self.ready: dict[int, Callable[[], object]] = {}
        self.started: dict[str, ProcessRecord | OSError] = {}
        self.ends: dict[str, socket.socket] = {}
        self.launches = Launches(
            ProcessRecords(folder),
            watch=self.ready.__setitem__,
            unwatch=self.ready.pop,
            started=lambda order, outcome: self.started.__setitem__(order.pod, outcome),
        )

    def begin(self, pod: str) -> None:
        mine, self.ends[pod] = socket.socketpair()
        standby = Standby(mine)
        order = StartProcess(pod=pod, name="app", environment={}, log="/log", arguments=("sleep",))
        standby.begin(ProcessAssignment(order=order, record=ProcessRecord(pod=pod, name="app")))
        self.launches.add(standby)

    def runs(self, pod: str, pid: int, why: bytes = b"") -> None:
        """Report a process record, with an error if the start failed."""
        self.ends[pod].sendall(msgspec.json.encode(ProcessRecord(pod=pod, name="app", pid=pid)) + b"\n" + why)
        self.ends[pod].close()

    def turn(self) -> None:
        for callback in list(self.ready.values()):
            callback()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    new_stage = Stage(tmp_path)
    yield new_stage
    for sock in new_stage.ends.values():
        sock.close()
    new_stage.launches.finish(is_all=True)


def test_slow_start_does_not_block_another(stage: Stage) -> None:
    stage.begin("slow")
    stage.begin("fast")
    stage.turn()
    assert stage.started == {}
    stage.runs("fast", 7)
    stage.turn()
    outcome = stage.started["fast"]
    assert isinstance(outcome, ProcessRecord)
    assert outcome.pid == 7
    assert ("slow", "app") in stage.launches
    assert ("fast", "app") not in stage.launches


def test_failed_start_reports_its_error(stage: Stage) -> None:
    stage.begin("a")
    stage.runs("a", 7, why=b"no such command")
    stage.launches.finish(is_all=False)
    assert str(stage.started["a"]) == "no such command"


def test_start_without_record_times_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.processes.spawn._START_MAX_S", 0.0)
    mine, stage.ends["a"] = socket.socketpair()
    standby = Standby(mine)
    standby.order, standby.end_s = StartProcess(pod="a", name="app", environment={}, log="/log"), 0.0
    stage.launches.add(standby)
    assert stage.launches.due_in_s(1.0) == 0
    stage.launches.finish(is_all=False)
    assert "did not start within" in str(stage.started["a"])


def test_signal_and_forget_order_are_deferred_until_pod_started(stage: Stage) -> None:
    stage.begin("a")
    early = SendSignal(pod="a", name="app", signal=signal.SIGTERM)
    end = ForgetPod(pod="a")
    assert stage.launches.defers(early)
    assert stage.launches.defers(end)
    assert not stage.launches.defers(ForgetPod(pod="b"))
    stage.launches.record_exit(7, 3)
    stage.runs("a", 7)
    stage.turn()
    assert stage.launches.take_exit(7) == 3
    assert stage.launches.take_deferred() == [early, end]
    assert not stage.launches.defers(early)


def test_cpu_quotas_of_both_cgroup_versions_are_lifted_and_restored(tmp_path: Path) -> None:
    first, unified, memory = tmp_path / "cpu", tmp_path / "unified", tmp_path / "memory"
    for folder in (first, unified, memory):
        folder.mkdir()
    (first / "cpu.cfs_quota_us").write_text("5000\n")
    (unified / "cpu.max").write_text("5000 100000\n")
    lifted = lift_quotas(map(str, (first, unified, memory)))
    assert (first / "cpu.cfs_quota_us").read_text() == "-1"
    assert (unified / "cpu.max").read_text() == "max"
    assert not list(memory.iterdir())
    restore_quotas(lifted)
    assert (first / "cpu.cfs_quota_us").read_text() == "5000"
    assert (unified / "cpu.max").read_text() == "5000 100000"


def test_quota_of_removed_cgroup_is_not_restored(tmp_path: Path) -> None:
    restore_quotas({tmp_path / "gone" / "cpu.max": "5000 100000"})
    assert not list(tmp_path.iterdir())


def test_runtime_is_executed_from_a_sealed_copy(tmp_path: Path) -> None:
    program = tmp_path / "runtime"
    shutil.copy2("/bin/echo", program)
    copy = sealed_copy(str(program))
    completed = subprocess.run(
        [str(program), "it"], executable=f"/proc/self/fd/{copy}", pass_fds=[copy], capture_output=True, check=True
    )
    assert completed.stdout == b"it\n"
    with Path(f"/proc/self/fd/{copy}").open("r+b", buffering=0) as attacker, pytest.raises(PermissionError):
        attacker.write(b"other")
    assert sealed_copy(str(program)) == copy
    # An upgraded program gets another copy.
    shutil.copy2("/bin/true", program)
    newer = sealed_copy(str(program))
    assert Path(f"/proc/self/fd/{newer}").read_bytes() == program.read_bytes()
    for descriptor in (copy, newer):
        os.close(descriptor)
