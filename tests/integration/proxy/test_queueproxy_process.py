"""The queue-proxy's process: start, fork, error reports and exit."""

import asyncio
import gc
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.proxy.forwarding.exchange import Exchange
from serving.queueproxy import main
from serving.queueproxy.io.admin import AdminHandler
from serving.queueproxy.io.podhandler import PodHandler
from serving.queueproxy.io.readiness import PUSH_AGAIN, ReadinessPipe
from serving.queueproxy.io.stats import report_stats, stats_link
from serving.queueproxy.podspec import PodSpec
from tests.eventually import until
from tests.integration.proxy.peers import Backend, Link, backed, free_socket, get, ok

POST_DRAIN = b"POST /drain HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
NEEDED = {"SERVING_POD_NAMESPACE": "default", "SERVING_POD_REVISION": "hello-00001", "SERVING_POD_NAME": "hello-1"}


@pytest.fixture
def collector() -> Iterator[None]:
    """Restore the garbage collector's thresholds, which ``run`` changes in the process of the tests."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def listening() -> socket.socket:
    bound = free_socket()
    bound.listen()
    return bound


def order_drain(admin: tuple[str, int]) -> Callable[[], None]:
    """A function for another thread that orders the drain and reads the response to its end."""

    def order() -> None:
        with socket.create_connection(admin, timeout=60) as link:
            link.sendall(POST_DRAIN)
            while link.recv(4096):
                pass

    return order


@pytest.mark.usefixtures("collector")
def test_main_reads_environment_and_exits_with_0_after_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as admin:
        descriptors = {"admin": os.dup(admin.fileno())}
        monkeypatch.setenv("SERVING_POD_LISTEN", "127.0.0.1:0")
        for name, text in NEEDED.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("SERVING_POD_APP", "127.0.0.1:1")
        monkeypatch.setenv("SERVING_LISTEN_FDS", json.dumps(descriptors))
        monkeypatch.setenv("SERVING_QUEUEPROXY_DRAIN_LAG_S", "0")
        thread = threading.Thread(target=order_drain(admin.getsockname()))
        thread.start()
        assert main.main() == 0
        thread.join()


def test_invalid_environment_is_reported_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVING_POD_APP", "nowhere")
    monkeypatch.setenv("SERVING_QUEUEPROXY_DRAIN_LAG_S", "soon")
    assert main.main() == 2
    assert capfd.readouterr().err.count("environment SERVING_") == 5


def test_queue_proxy_runs_in_forked_process() -> None:
    with listening() as requests, listening() as admin:
        reader, writer = os.pipe()
        spec = PodSpec(
            namespace="default",
            revision="hello-00001",
            pod="hello-1",
            app=requests.getsockname(),
            listen_fds={"requests": requests.fileno(), "admin": admin.fileno()},
            ready_fd=writer,
            settings=QueueProxySettings(drain_lag_s=0),
        )
        child = os.fork()
        if not child:
            os._exit(main.run(spec))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            # The app's address is the queue-proxy's own, which accepts connections.
            assert json.loads(pipe.readline()) == {"pid": child, "ready": True}
            os.kill(child, PUSH_AGAIN)
            assert json.loads(pipe.readline()) == {"pid": child, "ready": True}
            order_drain(admin.getsockname())()
            assert json.loads(pipe.readline()) == {"pid": child, "ready": False}
            assert json.loads(pipe.readline()) == {"pid": child, "ready": False, "drained": True}
            assert pipe.readline() == b""
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def environment(app: Backend, listen: tuple[str, int], admin: tuple[str, int]) -> dict[str, str]:
    return NEEDED | {
        "SERVING_POD_APP": "{}:{}".format(*app.address),
        "SERVING_POD_LISTEN": "{}:{}".format(*listen),
        "SERVING_POD_ADMIN_LISTEN": "{}:{}".format(*admin),
        "SERVING_QUEUEPROXY_DRAIN_LAG_S": "0",
    }


async def test_queue_proxy_process_serves_until_sigterm() -> None:
    async with backed(ok) as app:
        # A pod has its own address; this loopback address is unique to this process.
        host = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        addresses = [(host, port) for port in (8012, 8022)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "serving.queueproxy.main",
            env=environment(app, *addresses),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                # The first line reports that the app is ready, so the sockets listen.
                assert json.loads(await process.stderr.readline())["event"] == "app.readiness_changed"
            link = await Link.to(addresses[0])
            link.send(get())
            assert (await link.message())[0].startswith(b"HTTP/1.1 200 ")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await link.ended()
                assert await process.wait() == 0
            await link.closed()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def spec_of(app: tuple[str, int]) -> PodSpec:
    return PodSpec(
        namespace="n",
        revision="r",
        pod="p",
        app=app,
        stats_url="ws://127.0.0.1:1/stats?cluster=a",
        settings=QueueProxySettings(report_period_s=0.1),
    )


def test_readiness_pipe_without_reader_raises_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pipe = ReadinessPipe(writer)
    pipe.push(ready=True)
    pipe.push(ready=False)
    os.close(writer)


async def test_failed_report_does_not_stop_later_reports() -> None:
    class FailsOnce(PodHandler):
        failures = 1

        def report(self):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as above it
            if self.failures:
                self.failures -= 1
                raise ZeroDivisionError
            return super().report()

    spec = spec_of(("127.0.0.1", 1))
    handler = FailsOnce(spec, clock=asyncio.get_running_loop().time)
    client = stats_link(spec, draw=random.Random(1).random)
    stop = asyncio.Event()
    task = asyncio.create_task(report_stats(spec, handler, client, stop=stop))
    await until(lambda: client.dropped_count)
    stop.set()
    await task
    assert handler.failures == 0
    assert client.sent_count == 0


def test_admin_handler_neither_forwards_nor_queues() -> None:
    handler = PodHandler(spec_of(("127.0.0.1", 1)), clock=lambda: 0.0)
    admin = AdminHandler(handler, on_drain=lambda: None, numbers=lambda: b"")
    exchange: Exchange = None  # type: ignore[assignment]
    with pytest.raises(NotImplementedError):
        admin.unreachable(exchange, OSError())
    with pytest.raises(NotImplementedError):
        admin.lost(exchange, "")
    with pytest.raises(NotImplementedError):
        admin.overdue(exchange)
    assert handler.inside_count == 0
