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
def test_first_signal_stops_daemon_and_second_cancels_it(body: object) -> None:
    assert run_daemon("test", body) == 0  # type: ignore[arg-type]


def test_serving_daemon_reports_alive_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_serving_error_is_logged_in_one_line_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_daemon("test", fail_on_purpose) == 1
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["error"]) == ("daemon.failed", "no API server at 127.0.0.1:6080")
    assert "traceback" not in logged


def test_unexpected_error_is_logged_with_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_daemon("test", fail_by_mistake) == 1
    logged = json.loads(capsys.readouterr().err)
    assert logged["error"].startswith("ZeroDivisionError")
    assert "ZeroDivisionError" in logged["traceback"]


def test_invalid_http_request_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_sockets_are_inherited_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("SERVING_LISTEN_FDS", json.dumps({"public": os.dup(server.fileno())}))
        socks = inherited_sockets()
        with socks["public"] as inherited:
            assert inherited.getsockname() == server.getsockname()
            assert not inherited.get_inheritable()


def test_no_sockets_are_inherited_without_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVING_LISTEN_FDS", raising=False)
    assert inherited_sockets() == {}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
    gc.freeze()


def test_gc_freezes_existing_objects_and_lowers_thresholds() -> None:
    collect_in_small_steps()
    assert gc.get_freeze_count() > 0
    young, older, _ = gc.get_threshold()
    assert 0 < young < 1_000
    assert older == 1


def test_dropped_reference_cycle_is_collected_soon() -> None:
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
