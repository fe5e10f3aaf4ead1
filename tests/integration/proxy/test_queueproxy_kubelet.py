"""A kubelet's requests to a queue-proxy container: readiness, and the wait for the drain in a preStop hook."""

import asyncio
import random
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve

from serving.core.settings.queueproxy import QueueProxySettings
from serving.queueproxy.io.stats import stats_link
from serving.queueproxy.podspec import PodSpec, Probe
from tests.eventually import until
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.pods import BELIEVED, Gate, PodMaker, forwarding

WAIT = get(b"/wait-for-drain", headers=BELIEVED)


async def test_readiness_request_with_wait_blocks_until_app_is_ready(pod: PodMaker) -> None:
    is_up = False

    async def starting(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if is_up else 503))

    async with pod(starting, readiness=Probe(path="/")) as running:
        waiting = asyncio.create_task(running.get_admin(get(b"/readyz?wait=8")))
        assert (await running.get_admin(get(b"/readyz")))[1] == b"the app is not ready"
        assert not waiting.done()
        is_up = True
        assert (await waiting)[1] == b"ready"


async def test_readiness_request_with_wait_responds_503_after_its_time(pod: PodMaker) -> None:
    async def down(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")

    async with pod(down, readiness=Probe(path="/")) as running:
        begun_s = asyncio.get_running_loop().time()
        head, body = await running.get_admin(get(b"/readyz?wait=1"))
        assert head.startswith(b"HTTP/1.1 503 ")
        assert body == b"the app is not ready"
        assert asyncio.get_running_loop().time() - begun_s > 0.9


async def test_app_that_becomes_unready_is_reported_without_waiting(pod: PodMaker) -> None:
    is_up = True

    async def failing(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if is_up else 503))

    async with pod(failing, readiness=Probe(path="/", period_s=0.05, failure_max=1)) as running:
        await running.ready()
        is_up = False
        bodies: list[bytes] = []
        async with asyncio.timeout(60):
            while bodies[-1:] != [b"the app is not ready"]:
                bodies.append((await running.get_admin(get(b"/readyz?wait=60")))[1])
        assert set(bodies[:-1]) <= {b"ready"}


async def test_drain_wait_returns_after_requests_in_flight_end(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, drain_lag_s=0.1, drain_grace_s=60.0) as running:
        client = await running.client()
        client.send(get(b"/1"))
        await until(lambda: gate.waiting)
        waiting = asyncio.create_task(running.get_admin(WAIT))
        running.stop.set()
        await asyncio.sleep(0.3)
        assert not waiting.done(), "a request runs"
        gate.let_one_go()
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        assert (await waiting)[1] == b"drained"


async def test_drain_wait_returns_despite_open_websocket_so_that_app_can_close_it() -> None:
    ending = asyncio.Event()
    close_frame = b"\x88\x02\x03\xe9"

    async def chat(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await ending.wait()
        link.send(close_frame)

    async with forwarding(chat, drain_grace_s=60.0, drain_tunnel_wait_s=0.3) as running:
        client = await running.client()
        client.send(get(b"/", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
        await client.head()
        waiting = asyncio.create_task(running.get_admin(WAIT))
        await until(lambda: running.app.links)
        running.stop.set()
        assert (await waiting)[1] == b"drained"
        assert not running.done.done(), "the websocket is open"
        ending.set()
        assert await client.rest() == close_frame
        await client.closed()
        async with asyncio.timeout(60):
            await running.done


async def test_readiness_fails_as_soon_as_container_waits_for_drain(pod: PodMaker) -> None:
    async with pod() as running:
        await running.ready()
        waiting = asyncio.create_task(running.get_admin(WAIT))
        body = b""
        async with asyncio.timeout(60):
            while body != b"shutting down":
                body = (await running.get_admin(get(b"/readyz")))[1]
        running.stop.set()
        assert (await waiting)[1] == b"drained"


async def test_drain_wait_without_stop_order_returns_and_pod_stays_ready(pod: PodMaker) -> None:
    async with pod() as running:
        await running.ready()
        assert (await running.get_admin(WAIT))[1] == b"no order to stop has followed"
        assert (await running.get_admin(get(b"/readyz")))[1] == b"ready"
        client = await running.client()
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_drain_wait_requires_pod_secret(pod: PodMaker) -> None:
    async with pod() as running:
        assert (await running.get_admin(get(b"/wait-for-drain")))[0].startswith(b"HTTP/1.1 403 ")
        assert (await running.get_admin(b"POST /wait-for-drain HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"))[
            0
        ].startswith(b"HTTP/1.1 405 ")


async def test_stats_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    value: list[str] = []

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        value.append(socket.request.headers["Authorization"])
        await socket.wait_closed()

    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        port = next(iter(autoscaler.sockets)).getsockname()[1]
        client = stats_link(
            PodSpec(
                namespace="default",
                revision="hello-00001",
                pod="hello-1",
                app=("127.0.0.1", 1),
                stats_url=f"ws://127.0.0.1:{port}/stats",
                stats_token_file=str(tmp_path / "token"),
                settings=QueueProxySettings(report_retry_min_s=0.01, report_retry_max_s=0.01),
            ),
            draw=random.Random(1).random,
        )
        running = asyncio.create_task(client.run())
        # The kubelet writes the token file late: the link retries until the file exists.
        await asyncio.sleep(0.05)
        for number in (1, 2):
            (tmp_path / "token").write_text(f"token-{number}\n")
            for socket in list(autoscaler.connections):
                await socket.close()
            await until(lambda wanted=number: len(value) == wanted)  # type: ignore[misc]
        running.cancel()
        await asyncio.wait([running])
    assert value[:2] == ["Bearer token-1", "Bearer token-2"]


async def test_guarded_pod_accepts_requests_of_activators_only(pod: PodMaker) -> None:
    async with pod(more={"is_guarded": True}) as running:
        await running.ready()
        for headers in (
            b"",
            BELIEVED,
            b"K-Proxy-Request: activator\r\n",
            b"K-Pod-Secret: x\r\nK-Proxy-Request: activator\r\n",
        ):
            client = await running.client()
            client.send(get(headers=headers))
            assert (await client.message())[0].startswith(b"HTTP/1.1 403 "), headers
        client = await running.client()
        client.send(get(headers=BELIEVED + b"K-Proxy-Request: activator\r\n"))
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_caller_token_requires_the_key_of_the_pod(pod: PodMaker) -> None:
    async with pod(more={"caller_key": "own"}) as running:
        for query in (b"", b"?key=", b"?key=other", b"?key=own2", b"?own"):
            head, _ = await running.get_admin(get(b"/caller-token" + query))
            assert head.startswith(b"HTTP/1.1 403 "), query
        assert b"no autoscaler" in (await running.get_admin(get(b"/caller-token?key=own")))[1]
    # With its own network namespace, the pod needs no key: only its processes reach its loopback address.
    async with pod() as running:
        assert b"no autoscaler" in (await running.get_admin(get(b"/caller-token")))[1]


async def test_caller_token_returns_503_while_autoscaler_is_unreachable(pod: PodMaker) -> None:
    async with pod(url="ws://127.0.0.1:1/stats") as running:
        head, body = await running.get_admin(get(b"/caller-token"))
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"the autoscaler gives no token now" in body


async def test_metrics_require_query_token_or_pod_secret(pod: PodMaker) -> None:
    guess = b"Authorization: Bearer guess\r\n"
    async with pod(url="ws://127.0.0.1:1/stats") as running:
        for headers in (b"", b"Authorization: Basic guess\r\n", b"K-Pod-Secret: guess\r\n"):
            head, body = await running.get_admin(get(b"/metrics", headers))
            assert head.startswith(b"HTTP/1.1 401 "), headers
            assert b"WWW-Authenticate: Bearer" in head
            assert b"queueproxy" not in body
        # The first unknown token causes a query to the autoscaler, the next ones do not.
        answers = [(await running.get_admin(get(b"/metrics", guess)))[0][9:12] for _ in range(3)]
        assert answers == [b"503", b"401", b"401"]
        assert b"queueproxy_app_ready 1" in (await running.get_admin(get(b"/metrics", BELIEVED)))[1]
        assert (await running.get_admin(get(b"/readyz")))[1] == b"ready"
    async with pod() as running:
        assert (await running.get_admin(get(b"/metrics", guess)))[0].startswith(b"HTTP/1.1 401 ")
