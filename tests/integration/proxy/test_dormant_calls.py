"""The queue-proxy calls the sleep and wake endpoints of an app, such as a model server, instead of freezing it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from serving.core.settings.dormancy import read_calls
from serving.net.wire.frames import decode_pod_stat
from serving.queueproxy.podspec import Probe
from tests.eventually import until
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.pods import BELIEVED, Pod, forwarding

AFTER_S = 0.05


class ModelServer:
    """A model server with vLLM's sleep mode: while asleep it rejects requests; sleep and wake-up take 20 ms."""

    def __init__(self) -> None:
        self.is_asleep = False
        self.calls: list[bytes] = []
        self.sleep_status = b"204 No Content"
        self.status = b"200 OK"
        self.takes_s = 0.02
        self.go = asyncio.Event()
        self.go.set()

    async def script(self, link: Link) -> None:
        while True:
            line = (await link.head()).split(b"\r\n")[0]
            self.calls.append(line.removesuffix(b" HTTP/1.1"))
            await self.go.wait()
            status = b"200 OK"
            if line.startswith((b"POST /sleep", b"POST /wake_up")):
                await asyncio.sleep(self.takes_s)
                status = self.sleep_status if b"/sleep" in line else self.status
                if status.startswith(b"2"):
                    self.is_asleep = b"/sleep" in line
            elif self.is_asleep:
                status = b"500 asleep"
            link.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    def fields(self, folder: Path, **more: object) -> dict[str, Any]:
        calls = read_calls("POST /sleep?level=1, POST /wake_up")
        return {"dormant_after_s": AFTER_S, "dormant_call": calls, "processes": f"{folder}/pod.", **more}


async def status_line_of(running: Pod, path: bytes = b"/v1") -> bytes:
    client = await running.client()
    client.send(get(path))
    head, _ = await client.message()
    return head.split(b"\r\n")[0]


async def numbers(running: Pod) -> bytes:
    return (await running.get_admin(get(b"/metrics", BELIEVED)))[1]


async def has(running: Pod, line: bytes) -> bool:
    return line in await numbers(running)


async def is_dormant(running: Pod) -> bool:
    return await has(running, b"queueproxy_dormant 1")


async def test_an_idle_app_is_put_to_sleep_and_woken_by_a_request(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path)) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        assert server.is_asleep
        assert await status_line_of(running) == b"HTTP/1.1 200 OK"
        assert server.calls[:3] == [b"POST /sleep?level=1", b"POST /wake_up", b"GET /v1"]
        # The idle app is put to sleep again.
        await until(lambda: is_dormant(running))
        assert server.calls[3:] == [b"POST /sleep?level=1"]


async def test_thousand_concurrent_requests_wake_dormant_app_once(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path)) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        # The app responds after all requests have arrived, so that it is never idle between two of them.
        server.go.clear()
        requests_in_flight = [asyncio.create_task(status_line_of(running)) for _ in range(1000)]
        await running.inside(1000)
        server.go.set()
        assert set(await asyncio.gather(*requests_in_flight)) == {b"HTTP/1.1 200 OK"}
        assert server.calls.count(b"POST /wake_up") == 1


async def test_request_during_sleep_call_waits_for_sleep_and_wake_up(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path)) as running:
        server.go.clear()
        await running.ready()
        await until(lambda: server.calls)
        request = asyncio.create_task(status_line_of(running))
        await running.inside(1)
        server.go.set()
        assert await request == b"HTTP/1.1 200 OK"
        assert server.calls[:3] == [b"POST /sleep?level=1", b"POST /wake_up", b"GET /v1"]


async def test_app_that_rejects_the_sleep_call_continues_to_serve(tmp_path: Path) -> None:
    server = ModelServer()
    server.sleep_status = b"409 busy"
    async with forwarding(server.script, more=server.fields(tmp_path), dormant_call_max_s=0.5) as running:
        await running.ready()
        await until(lambda: has(running, b"queueproxy_freezes_refused_total 1"))
        assert await status_line_of(running) == b"HTTP/1.1 200 OK"


async def test_request_is_forwarded_after_wake_up_times_out(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path), dormant_call_max_s=0.2) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        server.status = b"503 loading"
        # The app's own response, not an error of the queue-proxy.
        assert await status_line_of(running) == b"HTTP/1.1 500 asleep"
        assert server.calls.count(b"POST /wake_up") >= 1


async def test_restarted_queue_proxy_wakes_app_that_its_predecessor_put_to_sleep(tmp_path: Path) -> None:
    server = ModelServer()
    server.is_asleep = True
    (tmp_path / "pod.frozen").touch()
    async with forwarding(server.script, more=server.fields(tmp_path, dormant_after_s=3600.0)) as running:
        await running.ready()
        assert not server.is_asleep


async def test_dormant_app_is_not_probed(tmp_path: Path) -> None:
    server = ModelServer()
    probe = Probe(path="/health", period_s=0.02, failure_max=1)
    async with forwarding(server.script, probe, more=server.fields(tmp_path)) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        before = len(server.calls)
        await asyncio.sleep(0.2)
        assert server.calls[before:] == []
        assert (await running.get_admin(get(b"/readyz")))[0].startswith(b"HTTP/1.1 200 ")
        # A probe of an activator does not reach the app either.
        client = await running.client()
        client.send(get(b"/", BELIEVED + b"K-Network-Probe: queue\r\n"))
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        assert server.is_asleep


async def test_wake_order_wakes_app_and_prevents_sleep(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path)) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        order = b"POST /wake HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
        assert (await running.get_admin(order + b"\r\n"))[0].startswith(b"HTTP/1.1 403 ")
        assert server.calls == [b"POST /sleep?level=1"]
        head, body = await running.get_admin(order + BELIEVED + b"\r\n")
        assert (head[:12], body) == (b"HTTP/1.1 200", b"awake")
        assert not server.is_asleep
        await asyncio.sleep(4 * AFTER_S)
        assert not server.is_asleep


async def test_drain_wakes_dormant_app(tmp_path: Path) -> None:
    server = ModelServer()
    async with forwarding(server.script, more=server.fields(tmp_path)) as running:
        await running.ready()
        await until(lambda: is_dormant(running))
        running.stop.set()
        await running.done
        assert not server.is_asleep
        lines = await running.pushed()
        assert {"ready": True, "dormant": True} in lines
        assert lines[-2:] == [{"ready": False}, {"ready": False, "drained": True}]


@pytest.mark.parametrize("is_upgrade", [False, True], ids=["response", "tunnel"])
async def test_app_with_request_in_flight_is_not_put_to_sleep(tmp_path: Path, is_upgrade: bool) -> None:
    go = asyncio.Event()
    heads: list[bytes] = []

    async def script(link: Link) -> None:
        head = await link.head()
        heads.append(head.split(b" ")[1])
        if head.startswith(b"POST "):
            # The app may go to sleep before the request arrives.
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        link.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
            if is_upgrade
            else b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        await go.wait()

    async with forwarding(script, more=ModelServer().fields(tmp_path)) as running:
        client = await running.client()
        client.send(get(b"/", b"Connection: upgrade\r\nUpgrade: x\r\n" if is_upgrade else b""))
        await until(lambda: b"/" in heads)
        await asyncio.sleep(4 * AFTER_S)
        assert heads[-1] == b"/"
        go.set()
        client.close()


async def test_dormancy_is_reported_to_autoscaler_once_and_again_after_reconnect(tmp_path: Path) -> None:
    frames: list[bytes] = []
    connections: list[ServerConnection] = []

    async def handle(connection: ServerConnection) -> None:
        connections.append(connection)
        async for frame in connection:
            assert isinstance(frame, bytes)
            frames.append(frame)

    def dormant_count() -> int:
        return sum(decode_pod_stat(frame).is_dormant for frame in frames)

    server = ModelServer()
    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        port = autoscaler.sockets[0].getsockname()[1]
        url = f"ws://127.0.0.1:{port}/stats"
        more = server.fields(tmp_path)
        async with forwarding(
            server.script, url=url, more=more, report_period_s=0.5, report_retry_min_s=0.01
        ) as running:
            await running.ready()
            await until(lambda: dormant_count() == 1)
            before = len(frames)
            await asyncio.sleep(0.6)
            assert len(frames) == before
            await connections[0].close()
            await until(lambda: dormant_count() == 2)
            assert await status_line_of(running) == b"HTTP/1.1 200 OK"
            # Dormancy is also reported if the app is put to sleep again within one report period.
            await until(lambda: any(decode_pod_stat(frame).request_count for frame in frames[before:]))
            await until(lambda: dormant_count() == 3)


async def test_app_is_woken_at_each_start_if_dormancy_cannot_be_recorded() -> None:
    server = ModelServer()
    server.is_asleep = True
    more = {**server.fields(Path("/")), "processes": ""}
    async with forwarding(server.script, more=more) as running:
        await running.ready()
        assert server.calls[0] == b"POST /wake_up"
        await until(lambda: is_dormant(running))
        assert await status_line_of(running) == b"HTTP/1.1 200 OK"
