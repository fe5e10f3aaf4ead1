import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web

from serving.core.model.errors import Unavailable
from serving.net.aio import startup
from serving.net.aio.daemon import collect_in_small_steps, inherited_sockets, run_daemon


async def end_by_signal(stop: asyncio.Event) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()


async def ignore_the_first_signal(stop: asyncio.Event) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()


async def fail_on_purpose(_: asyncio.Event) -> None:
    raise Unavailable("no API server at 127.0.0.1:6080")


async def fail_by_mistake(_: asyncio.Event) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("body", [end_by_signal, ignore_the_first_signal])
def test_a_signal_stops_and_a_second_one_cancels(body: object) -> None:
    assert run_daemon("test", body) == 0  # type: ignore[arg-type]


def test_a_daemon_that_serves_immediately_reports_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(startup.READY_VARIABLE, str(writer))
    monkeypatch.setattr(startup, "ALIVE_S", 0.01)
    monkeypatch.setattr(startup, "_pipes", [])

    async def body(_: asyncio.Event) -> None:
        startup.report_serving()
        loop = asyncio.get_running_loop()
        for _report in range(3):
            assert await loop.run_in_executor(None, os.read, reader, 1) == startup.ALIVE

    assert run_daemon("test", body) == 0
    os.close(reader)
    os.close(writer)


def test_an_error_of_ours_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_daemon("test", fail_on_purpose) == 1
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["error"]) == ("daemon.failed", "no API server at 127.0.0.1:6080")
    assert "traceback" not in logged


def test_a_mistake_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_daemon("test", fail_by_mistake) == 1
    logged = json.loads(capsys.readouterr().err)
    assert logged["error"].startswith("ZeroDivisionError")
    assert "ZeroDivisionError" in logged["traceback"]


def test_invalid_http_of_a_client_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def body(_: asyncio.Event) -> None:
        runner = web.AppRunner(web.Application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"GET / HTTP/9.9\r\n\r\n")
        assert b" 400 Bad Request" in await reader.readline()
        writer.close()
        await runner.cleanup()

    assert run_daemon("test", body) == 0
    assert capsys.readouterr().err == ""


def test_sockets_are_taken_over_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("SERVING_LISTEN_FDS", json.dumps({"public": os.dup(server.fileno())}))
        socks = inherited_sockets()
        with socks["public"] as taken:
            assert taken.getsockname() == server.getsockname()
            assert not taken.get_inheritable()


def test_without_a_supervisor_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVING_LISTEN_FDS", raising=False)
    assert inherited_sockets() == {}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
    gc.freeze()


def test_what_is_there_is_not_looked_at_again_and_what_comes_is_looked_at_a_little_at_a_time() -> None:
    collect_in_small_steps()
    assert gc.get_freeze_count() > 0
    young, older, _ = gc.get_threshold()
    assert 0 < young < 1_000
    assert older == 1


def test_a_cycle_that_is_dropped_goes_soon() -> None:
    collect_in_small_steps()
    gone: list[bool] = []

    class Knot:
        def __init__(self) -> None:
            self.self = self

        def __del__(self) -> None:
            gone.append(True)

    Knot()
    results = [[number] for number in range(2_000)]
    assert len(results) == 2_000
    assert gone == [True]
