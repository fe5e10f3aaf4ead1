"""The event loop of the template."""

import os
import socket
import time
from functools import partial
from pathlib import Path

from serving.home.processes.orders import KeepNote, Lines, StartFailed, encode, read_report
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords
from serving.home.processes.template import Template


def test_reused_descriptor_gets_no_event_of_its_predecessor(tmp_path: Path) -> None:
    with socket.socket() as listener:
        template = Template(listener, events=os.pipe(), records=ProcessRecords(tmp_path))
        pipes, called = [os.pipe(), os.pipe()], []

        def replaces(number: int) -> None:
            # The first callback closes the other pipe and reuses its descriptor for a third, readable pipe.
            called.append(number)
            other = pipes[1 - number][0]
            template._selector.unregister(other)
            os.close(other)
            again = os.dup(pipes[number][0])
            assert again == other
            template._watch(again, lambda: called.append(2))

        for number, (reader, writer) in enumerate(pipes):
            os.write(writer, b"x")
            template._watch(reader, partial(replaces, number))
        template._turn(0)
        assert len(called) == 1
        template._selector.unregister(pipes[called[0]][0])
        template._turn(0)
        assert called[1:] == [2]


def test_unreadable_order_fails_alone_and_connection_remains(tmp_path: Path) -> None:
    path = str(tmp_path / "orders.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as control:
        listener.bind(path)
        listener.listen()
        template = Template(listener, events=os.pipe(), records=ProcessRecords(tmp_path))
        control.connect(path)
        template._connected()
        deep = b'{"type":"KeepNote","pod":"2","note":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
        unreadable = [b"\xff", b"{", b'{"type":"StartProcess","pod":"1","name":"app","log":1}', deep]
        control.sendall(b"\n".join([*unreadable, encode(KeepNote(pod="3", note={"a": 1}))]))
        control.shutdown(socket.SHUT_WR)
        while template._client is not None:
            template._received()
        reports = [read_report(line) for line in Lines().feed(control.recv(65536))]
    assert [(report.pod, report.name) for report in reports if isinstance(report, StartFailed)] == [("1", "app")]
    assert template._notes == {"3": {"a": 1}}


def test_app_reports_only_its_own_readiness(tmp_path: Path) -> None:
    events = os.pipe2(os.O_NONBLOCK)
    with socket.socket() as listener:
        records = ProcessRecords(tmp_path)
        template = Template(listener, events=events, records=records)
        app = ProcessRecord(pod="a", name="app", is_app=True, is_own_proxy=True, pid=11)
        other = ProcessRecord(pod="b", name="app", pid=12, is_ready=True)
        template._running = {process.pid: process for process in (app, other)}
        records.make_pipe(app)
        # Opened as the app opens it.
        pipe = os.open(records.pipe_of(app), os.O_RDWR | os.O_NONBLOCK)
        template._pipes.open(app)
        forged = b'{"pid":12,"exit":0}\n{"pid":12,"ready":false,"drained":true}\n{"pid":11,"exit":0}\n'
        os.write(pipe, b"no report\n[[[[\n" + forged + b'{"pid":11,"ready":true}\n')
        template._turn(0)
        assert (app.is_ready, app.exit_code, other.is_ready, other.is_drained, other.exit_code) == (
            *(True, None),
            *(True, False, None),
        )
        # The pipe is read at most a few times per second.
        os.write(pipe, b'{"pid":11,"ready":false}\n')
        template._turn(0)
        seen = [app.is_ready]
        template._pipes.resume(time.monotonic() + 1)
        template._turn(0)
        assert [*seen, app.is_ready] == [True, False]
        template._pipes.close(app.pid)
        assert template._pipes.due_in_s(0.0) is None
        os.close(pipe)
