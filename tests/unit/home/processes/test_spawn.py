"""Warm-up of the template, assignments to standby processes, and the choice of a standby for a start."""

import asyncio
import socket
import threading
import typing
from collections.abc import Callable, Iterator

import msgspec
import pytest

from serving.home.processes.orders import StartProcess
from serving.home.processes.processrecords import ProcessRecord
from serving.home.processes.spawn import (
    ProcessAssignment,
    Standby,
    Standbys,
    receive,
    receive_in_loop,
    report_waiting,
    warm_up,
)
from serving.queueproxy.podspec import spec_from_environment

ENVIRONMENT = {
    "SERVING_POD_NAMESPACE": "default",
    "SERVING_POD_REVISION": "hello-00001",
    "SERVING_POD_NAME": "hello-00001-x",
    "SERVING_POD_APP": "127.0.0.1:4000",
}


def test_warm_up_resolves_types_of_queue_proxy_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_up()

    def resolved(*_: object, **__: object) -> typing.NoReturn:
        raise AssertionError("types were resolved again")

    monkeypatch.setattr(typing, "get_type_hints", resolved)
    assert spec_from_environment(ENVIRONMENT).pod == "hello-00001-x"


ASSIGNMENT = ProcessAssignment(
    order=StartProcess(pod="a", name="app", environment={"TEXT": "x" * 300_000}, log="/log", arguments=("sleep", "1")),
    record=ProcessRecord(pod="a", name="app", is_app=True),
)

NOW_S = 100.0


class Forked:
    """A fork in this process: ``ends`` are the sockets of the processes, in order, ``standbys`` the other ends."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.kinds: list[bool] = []
        self.standbys: list[Standby] = []

    def __call__(self, is_app: bool) -> Standby:
        mine, its = socket.socketpair()
        self.ends.append(its)
        self.kinds.append(is_app)
        self.standbys.append(Standby(mine))
        return self.standbys[-1]

    def close(self) -> None:
        for its in self.ends:
            its.close()
        for standby in self.standbys:
            standby.close()


@pytest.fixture
def forked() -> Iterator[Forked]:
    new_forked = Forked()
    yield new_forked
    new_forked.close()


def in_thread(process: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=process, daemon=True)
    thread.start()
    return thread


def begun(standby: Standby, process: Callable[[], None]) -> ProcessRecord:
    """The result of a start while a process does its part."""
    thread = in_thread(process)
    try:
        standby.begin(ASSIGNMENT)
        return standby.finish()
    finally:
        thread.join(60)


def test_process_receives_assignment_and_returns_record(forked: Forked) -> None:
    standby, received = forked(True), []

    def process() -> None:
        with forked.ends[0] as control:
            report_waiting(control)
            process_assignment = receive(control)
            assert process_assignment is not None
            received.append(process_assignment)
            control.sendall(msgspec.json.encode(ProcessRecord(pod="a", name="app", pid=7)) + b"\n")

    assert begun(standby, process).pid == 7
    assert received == [ASSIGNMENT]


def test_text_after_the_record_is_the_start_error(forked: Forked) -> None:
    standby = forked(True)

    def process() -> None:
        with forked.ends[0] as control:
            receive(control)
            control.sendall(msgspec.json.encode(ASSIGNMENT.record) + b"\nno such command")

    with pytest.raises(OSError, match=r"^no such command$"):
        begun(standby, process)


def test_process_exit_without_record_fails_the_start(forked: Forked) -> None:
    standby = forked(False)

    def process() -> None:
        with forked.ends[0] as control:
            receive(control)

    with pytest.raises(OSError, match="exited before it was assigned"):
        begun(standby, process)


def test_unresponsive_process_start_times_out(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.processes.spawn._START_MAX_S", 0.1)
    standby = forked(True)
    with pytest.raises(OSError, match="did not start within"):
        begun(standby, lambda: None)


def test_receive_returns_none_if_the_template_closed(forked: Forked) -> None:
    forked(True).close()
    forked(False).close()
    assert receive(forked.ends[0]) is None
    assert asyncio.run(receive_in_loop(forked.ends[1])) is None


def test_event_loop_receives_assignment() -> None:
    mine, its = socket.socketpair()
    sending = in_thread(lambda: mine.sendall(msgspec.json.encode(ASSIGNMENT) + b"\n"))
    assert asyncio.run(receive_in_loop(its)) == ASSIGNMENT
    sending.join(60)
    assert its.getblocking()
    mine.close()
    its.close()


def test_start_acquires_a_standby_that_reported_waiting(forked: Forked) -> None:
    standbys = Standbys(forked)
    standbys.fill(NOW_S)
    assert forked.kinds == [False, True]
    report_waiting(forked.ends[1])
    standby = standbys.acquire(is_app=True, now_s=NOW_S)
    assert forked.kinds == [False, True]
    standby.close()
    assert receive(forked.ends[1]) is None, "acquire chose another standby than the waiting one"


def test_start_forks_if_no_standby_is_waiting(forked: Forked) -> None:
    standbys = Standbys(forked)
    standbys.fill(NOW_S)
    standbys.acquire(is_app=True, now_s=NOW_S)
    assert forked.kinds == [False, True, True]
    report_waiting(forked.ends[1])
    standbys.acquire(is_app=True, now_s=NOW_S)
    assert forked.kinds == [False, True, True], "the waiting standby was not acquired"


def test_exited_standby_is_replaced(forked: Forked) -> None:
    standbys = Standbys(forked)
    standbys.fill(NOW_S)
    standbys.fill(NOW_S + 1)
    is_full_before = standbys.is_full
    for sock in forked.ends:
        report_waiting(sock)
    count = len(forked.ends)
    for sock, is_app in zip(forked.ends, forked.kinds, strict=True):
        if is_app:
            sock.close()
    standbys.acquire(is_app=True, now_s=NOW_S)
    assert forked.kinds[count:] == [True]
    assert (is_full_before, standbys.is_full) == (True, False)
    assert not standbys._waiting[True]


def test_standbys_are_refilled_after_a_quiet_period(forked: Forked) -> None:
    standbys = Standbys(forked)
    standbys.fill(NOW_S)
    standbys.fill(NOW_S + 1)
    assert standbys.due_in_s(NOW_S + 1) is None
    for sock in forked.ends:
        report_waiting(sock)
    count = len(forked.kinds)
    standbys.acquire(is_app=True, now_s=NOW_S + 2)
    standbys.acquire(is_app=False, now_s=NOW_S + 2.1)
    standbys.fill(NOW_S + 2.1)
    assert len(forked.kinds) == count
    standbys.fill(NOW_S + 2.2)
    assert forked.kinds[count:] == [False, True]


def test_failed_standby_fork_is_retried_later(capfd: pytest.CaptureFixture[str]) -> None:
    def refused(is_app: bool) -> Standby:
        raise OSError(11, f"no room for an app: {is_app}")

    standbys = Standbys(refused)
    standbys.fill(NOW_S)
    assert "no process can be forked ahead" in capfd.readouterr().err
    due_s = standbys.due_in_s(NOW_S)
    assert due_s is not None
    assert due_s > 1


def test_receive_returns_none_after_connection_reset() -> None:
    for receiving in (receive, lambda its: asyncio.run(receive_in_loop(its))):
        mine, its = socket.socketpair()
        with its:
            report_waiting(its)
            # Unread bytes make the kernel reset the connection.
            mine.close()
            assert receiving(its) is None
