"""The queue-proxy in front of a scripted app: as a daemon and as ASGI middleware, both in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from websockets import ConnectionClosed
from websockets.asyncio.server import ServerConnection, serve

from serving.core.model.slo import late_sum
from serving.net.wire.frames import PodStat, decode_pod_stat
from serving.queueproxy.podspec import Probe
from tests.eventually import until
from tests.integration.proxy.peers import Link, Script, get
from tests.integration.proxy.pods import BELIEVED, POST_DRAIN, TOKEN, Gate, Pod, PodMaker, forwarding

CHAT = b'{"messages": [{"role": "user", "content": "%b"}], "max_tokens": 100}' % (b"x" * 4000)
PROBES = {
    "by network probe": (b"K-Network-Probe: queue\r\n", b"200 OK", b"queue"),
    "of a kubelet": (b"User-Agent: kube-probe/1.32\r\nK-Network-Probe: queue\r\n", b"200 OK", b"queue"),
    "of something else": (b"K-Network-Probe: activator\r\n", b"400 Bad Request", b"unexpected probe header value"),
    "without a value": (b"K-Kubelet-Probe: queue\r\n", b"400 Bad Request", b"unexpected probe header value"),
}


async def test_free_slot_is_assigned_to_longest_waiting_request(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, container_concurrency=1) as running:
        clients = [await running.client() for _ in range(11)]
        for number, client in enumerate(clients):
            client.send(get(b"/%d" % number))
            await running.inside(number + 1)
        late = await running.client()
        late.send(get(b"/late"))
        head, body = await late.message()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in head.lower()
        assert body == b"pending request queue full"
        for number, client in enumerate(clients):
            await until(lambda: gate.waiting)
            assert len(gate.waiting) == 1
            gate.let_one_go()
            assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
            assert gate.order[number] == b"/%d" % number


async def test_queued_request_of_disconnected_client_is_not_sent_to_app(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, container_concurrency=1) as running:
        first, second, third = [await running.client() for _ in range(3)]
        first.send(get(b"/1"))
        await until(lambda: gate.waiting)
        second.send(get(b"/2"))
        await running.inside(2)
        third.send(get(b"/3"))
        await running.inside(3)
        second.close()
        await running.inside(2)
        gate.let_one_go()
        await first.message()
        await until(lambda: gate.waiting)
        gate.let_one_go()
        await third.message()
        assert gate.order == [b"/1", b"/3"]


async def test_client_disconnect_during_request_frees_its_slot(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, container_concurrency=1) as running:
        first, second = [await running.client() for _ in range(2)]
        first.send(get(b"/1"))
        await until(lambda: gate.waiting)
        second.send(get(b"/2"))
        await asyncio.sleep(0.02)
        first.close()
        await until(lambda: len(gate.waiting) == 2)
        gate.waiting[1].set()
        assert (await second.message())[0].startswith(b"HTTP/1.1 200 ")
        gate.waiting[0].set()


async def test_request_that_waits_too_long_receives_503(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, container_concurrency=1, queue_wait_max_s=0.15) as running:
        first, second = [await running.client() for _ in range(2)]
        first.send(get())
        await until(lambda: gate.waiting)
        second.send(get())
        head, body = await second.message()
        assert (head.split(b"\r\n")[0], body) == (
            b"HTTP/1.1 503 Service Unavailable",
            b"waited too long for a free slot",
        )
        gate.let_one_go()
        assert (await first.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_request_timeout_applies_in_queue_and_in_app(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, container_concurrency=1, request_timeout_s=0.15) as running:
        for client in [await running.client() for _ in range(2)]:
            client.send(get())
        for client in running.links:
            head, body = await client.message()
            assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 504 Gateway Timeout", b"request timeout")
        for waiting in gate.waiting:
            waiting.set()


async def test_activator_headers_are_trusted_only_with_pod_secret(pod: PodMaker) -> None:
    marks = b"K-Proxy-Request: activator\r\nK-Original-Host: example.com\r\nX-Forwarded-Proto: https\r\n"
    async with pod() as running:
        client = await running.client()
        client.send(get(headers=BELIEVED + marks))
        _, seen = await client.message()
        assert b"Host: example.com\r\n" in seen
        assert b"X-Forwarded-Proto: https\r\n" in seen
        assert BELIEVED.split()[1] not in seen
        for secret in (b"", b"K-Pod-Secret: wrong\r\n"):
            client.send(get(headers=secret + marks))
            _, seen = await client.message()
            assert b"Host: h\r\n" in seen
            assert b"X-Forwarded-Proto: http\r\n" in seen
            assert b"K-" not in seen


@pytest.mark.parametrize(("headers", "status", "body"), PROBES.values(), ids=PROBES.keys())
async def test_queue_proxy_responds_to_probes_and_does_not_count_them(
    pod: PodMaker, headers: bytes, status: bytes, body: bytes
) -> None:
    async with pod() as running:
        await running.ready()
        client = await running.client()
        client.send(get(headers=BELIEVED + headers))
        head, data = await client.message()
        assert (head.split(b"\r\n")[0], data) == (b"HTTP/1.1 " + status, body)
        _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
        assert b'class="2xx"} 0' in numbers


async def test_probe_without_pod_secret_is_forwarded_as_request(pod: PodMaker) -> None:
    async with pod() as running:
        client = await running.client()
        client.send(get(headers=b"K-Network-Probe: queue\r\nUser-Agent: kube-probe/1.32\r\n"))
        assert (await client.message())[1].startswith(b"GET / HTTP/1.1\r\n")


async def test_probe_returns_503_while_app_is_not_ready(pod: PodMaker) -> None:
    async def script(link: Link) -> None:
        await link.message()
        link.send(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    async with pod(script, readiness=Probe(path="/health")) as running:
        client = await running.client()
        client.send(get(headers=BELIEVED + b"K-Network-Probe: queue\r\n"))
        assert (await client.message())[0].startswith(b"HTTP/1.1 503 ")
        assert (await running.get_admin(get(b"/readyz")))[0].startswith(b"HTTP/1.1 503 ")


async def test_readiness_is_pushed_only_when_it_changes(pod: PodMaker) -> None:
    responses = [b"500 No", b"500 No", b"200 OK", b"500 No"]
    probe_count = 0

    async def script(link: Link) -> None:
        nonlocal probe_count
        head = await link.head()
        assert head.startswith(b"GET /health HTTP/1.1\r\n")
        assert b"X-Probe: yes\r\n" in head
        link.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % responses[min(probe_count, 3)])
        probe_count += 1

    probe = Probe(path="/health", headers=(("X-Probe", "yes"),), period_s=0.02, failure_max=2)
    async with pod(script, readiness=probe) as running:
        await until(lambda: probe_count > 5)
        assert await running.pushed() == [{"ready": True}, {"ready": False}]


async def test_ready_app_is_not_probed_again_with_period_of_zero(pod: PodMaker) -> None:
    probe_count = 0

    async def script(link: Link) -> None:
        nonlocal probe_count
        probe_count += 1
        await link.head()
        link.send(b"HTTP/1.1 399 Fine\r\nContent-Length: 0\r\n\r\n")

    async with pod(script, readiness=Probe(path="/", period_s=0, timeout_s=60)) as running:
        await running.ready()
        await asyncio.sleep(0.1)
        assert probe_count == 1


async def test_admin_port_returns_status_per_path_and_method(pod: PodMaker) -> None:
    async with pod() as running:
        for request, status in (
            (get(b"/healthz"), b"200"),
            (get(b"/"), b"404"),
            (get(b"/drain"), b"405"),
            (b"PUT /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", b"405"),
        ):
            assert (await running.get_admin(request))[0].startswith(b"HTTP/1.1 %b " % status)


async def test_unreachable_app_returns_502() -> None:
    async with forwarding() as running:
        running.app.server.close()
        client = await running.client()
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")


async def test_ordered_drain_accepts_late_requests_and_completes_requests_in_flight(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, drain_lag_s=1.5, drain_grace_s=60.0) as running:
        first, second = [await running.client() for _ in range(2)]
        first.send(get(b"/1"))
        await until(lambda: gate.waiting)
        assert (await running.get_admin(POST_DRAIN))[0].startswith(b"HTTP/1.1 403 ")
        order = POST_DRAIN.replace(b"\r\n\r\n", b"\r\n" + BELIEVED + b"\r\n")
        assert (await running.get_admin(order))[1] == b"draining"
        assert (await running.get_admin(get(b"/readyz")))[0].startswith(b"HTTP/1.1 503 ")
        probe = await running.client()
        probe.send(get(headers=BELIEVED + b"K-Network-Probe: queue\r\n"))
        assert (await probe.message())[1] == b"shutting down"
        second.send(get(b"/2"))
        await until(lambda: len(gate.waiting) == 2)
        gate.let_one_go()
        gate.let_one_go()
        for client in (first, second):
            head, _ = await client.message()
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close\r\n" in head.lower()
        async with asyncio.timeout(60):
            await running.done


async def test_drain_ends_after_grace_period(pod: PodMaker) -> None:
    gate = Gate()
    async with pod(gate.script, drain_grace_s=0.1) as running:
        client = await running.client()
        client.send(get())
        await until(lambda: gate.waiting)
        running.stop.set()
        # ASGI cannot abort a request that has no response yet.
        assert (await client.rest()).startswith(b"HTTP/1.1 503 ") if running.is_in_process else await client.ended()
        async with asyncio.timeout(60):
            await running.done
        gate.let_one_go()


async def test_stat_with_pod_name_and_token_is_sent_each_period(pod: PodMaker) -> None:
    paths: list[str] = []
    frames: list[bytes] = []

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        paths.append(socket.request.path)
        assert socket.request.headers["Authorization"] == f"Bearer {TOKEN}"
        async for message in socket:
            assert isinstance(message, bytes)
            frames.append(message)

    gate = Gate()
    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        port = next(iter(autoscaler.sockets)).getsockname()[1]
        async with pod(gate.script, url=f"ws://127.0.0.1:{port}/stats", report_period_s=0.1) as running:
            await until(lambda: frames)
            for headers in (b"", BELIEVED + b"K-Proxy-Request: activator\r\n"):
                client = await running.client()
                client.send(get(headers=headers))
            await until(lambda: len(gate.waiting) == 2)
            frame_count = len(frames)
            await until(lambda: len(frames) > frame_count + 2)
            stat = decode_pod_stat(frames[-1])
            assert stat.concurrency == pytest.approx(2, abs=0.1)
            assert stat.proxied_concurrency == pytest.approx(1, abs=0.05)
            total = [decode_pod_stat(frame) for frame in frames]
            assert sum(pod_stat.request_count for pod_stat in total) * 0.1 == pytest.approx(2)
            assert sum(pod_stat.proxied_request_count for pod_stat in total) * 0.1 == pytest.approx(1)
            gate.let_one_go()
            gate.let_one_go()
            # A lost connection is opened again.
            for socket in list(autoscaler.connections):
                await socket.close()
            frame_count = len(frames)
            await until(lambda: len(frames) > frame_count)
    assert paths == ["/stats?namespace=default&revision=hello-00001&pod=hello-1"] * 2


async def test_unsent_stats_are_counted(pod: PodMaker) -> None:
    async with pod(url="ws://127.0.0.1:1/stats", report_period_s=0.1, report_retry_min_s=0.01) as running:
        numbers = b""
        while b"queueproxy_stats_unsent_total 2" not in numbers:
            _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
            await asyncio.sleep(0.01)
        assert b"queueproxy_stats_sent_total 0" in numbers


async def model_server(link: Link) -> None:
    """A model server: a metrics page with one gauge, and a report of another in responses to requests for reports."""
    while True:
        head = (await link.head()).lower()
        if head.startswith(b"get /metrics "):
            body = b'vllm:waiting{engine="0"} 4\nvllm:waiting{engine="1"} 3\n'
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            continue
        report = b""
        if b"\r\nendpoint-load-metrics-format: json\r\n" in head:
            report = b'endpoint-load-metrics: JSON {"named_metrics": {"cache": 0.5}}\r\n'
        link.send(b"HTTP/1.1 200 OK\r\n%bContent-Length: 0\r\n\r\n" % report)


async def gauges_of(pod: PodMaker, *names: str) -> dict[str, float]:
    """The gauges of a pod's latest stat, after it has at least as many gauges as names."""
    frames: list[bytes] = []

    async def handle(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, bytes)
            frames.append(message)

    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        url = f"ws://127.0.0.1:{next(iter(autoscaler.sockets)).getsockname()[1]}/stats"
        async with pod(model_server, url=url, more={"gauges": names}, report_period_s=0.1) as running:
            client = await running.client()
            client.send(get())
            await client.message()
            await until(lambda: frames and len(decode_pod_stat(frames[-1]).gauges) >= len(names))
    return dict(decode_pod_stat(frames[-1]).gauges)


async def test_selected_gauges_of_response_report_are_requested_and_sent(pod: PodMaker) -> None:
    assert await gauges_of(pod, "vllm:cache") == {"vllm:cache": 0.5, "cache": 0.5}


async def test_selected_gauges_of_metrics_page_are_sent() -> None:
    gauges = await gauges_of(forwarding, "vllm:waiting", "vllm:cache")
    assert gauges == {"vllm:waiting": 7.0, "vllm:cache": 0.5, "cache": 0.5}


@contextlib.asynccontextmanager
async def reported(
    script: Script, *, readiness: Probe | None = None, **fields: object
) -> AsyncIterator[tuple[Pod, list[PodStat]]]:
    """A pod with further fields of its spec, and its stats so far; it sends ten per second."""
    frames: list[PodStat] = []

    async def handle(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in socket:
                assert isinstance(message, bytes)
                frames.append(decode_pod_stat(message))

    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        url = f"ws://127.0.0.1:{next(iter(autoscaler.sockets)).getsockname()[1]}/stats"
        async with forwarding(script, readiness, url=url, more=fields, report_period_s=0.1) as running:
            yield running, frames


@pytest.mark.parametrize(
    ("body", "framing", "tokens"),
    [
        (CHAT, b"Content-Length: %d" % len(CHAT), 1100.0),
        (b"{broken", b"Content-Length: 7", 0.0),
        (b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT), b"Transfer-Encoding: chunked", 0.0),
        (b'{"max_tokens": 100, "prompt": "' + b"x" * 399_970, b"Content-Length: 400001", 100_101.0),
    ],
    ids=["a chat", "no JSON", "without a length", "long and not whole"],
)
async def test_tokens_are_counted_from_request_body_until_response_ends(
    body: bytes, framing: bytes, tokens: float
) -> None:
    gate = Gate()
    async with reported(gate.script, counts_tokens=True) as (running, frames):

        def reports(concurrency: float, count: float) -> bool:
            if not frames:
                return False
            stat = frames[-1]
            return stat.concurrency == pytest.approx(concurrency) and dict(stat.gauges) == {
                "tokens_in_flight": pytest.approx(count)
            }

        client = await running.client()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n%b" % (framing, body))
        # The app receives the bytes so far, also if the rest of the body is missing.
        await until(lambda: gate.waiting)
        await until(lambda: reports(1.0, tokens))
        client.close()
        await until(lambda: reports(0.0, 0.0))
        gate.let_one_go()


@pytest.mark.parametrize(("max_s", "seen"), [(600.0, True), (None, False)])
async def test_pod_reports_loading_until_its_app_is_first_ready(max_s: float | None, seen: bool) -> None:
    status = b"503 Loading"

    async def loading(link: Link) -> None:
        while await link.head():
            link.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    probe = Probe(path="/health", period_s=0.05, failure_max=1)
    async with reported(loading, readiness=probe, loading_max_s=max_s) as (running, frames):
        await until(lambda: len(frames) >= 3)
        assert {frame.is_loading for frame in frames} == {seen}
        status = b"200 OK"
        await until(lambda: not frames[-1].is_loading)
        await running.ready()
        status = b"503 Broken"
        count = len(frames)
        await until(lambda: len(frames) > count + 5)
        assert not any(frame.is_loading for frame in frames[count:])


async def test_pod_stops_reporting_loading_after_maximum() -> None:
    async def loading(link: Link) -> None:
        while await link.head():
            link.send(b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")

    async with reported(loading, readiness=Probe(path="/health"), loading_max_s=0.5) as (_, frames):
        await until(lambda: frames and not frames[-1].is_loading)
        assert (frames[0].is_loading, frames[-1].is_loading) == (True, False)


async def test_pod_without_selected_gauges_requests_no_report(pod: PodMaker) -> None:
    async with pod(model_server) as running:
        client = await running.client()
        client.send(get())
        head, _ = await client.message()
    assert b"endpoint-load-metrics" not in head.lower()


@pytest.mark.parametrize(("goal", "late"), [("p95<1ms", 2), ("p95-wait<1ms", 1)])
async def test_late_requests_are_counted_including_their_time_in_activator(pod: PodMaker, goal: str, late: int) -> None:
    """The app is slower than the goal. One request waited in an activator; the mark of an untrusted sender is ignored."""
    bins: list[tuple[float, ...]] = []

    async def slow(link: Link) -> None:
        while await link.head():
            await asyncio.sleep(0.005)
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def handle(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, bytes)
            bins.append(decode_pod_stat(message).latency_bins)

    async with serve(handle, "127.0.0.1", 0) as autoscaler:
        url = f"ws://127.0.0.1:{next(iter(autoscaler.sockets)).getsockname()[1]}/stats"
        async with pod(slow, url=url, more={"slo": goal}, report_period_s=0.1) as running:
            client = await running.client()
            for more in (BELIEVED + b"K-Held-Ms: 5000\r\n", b"K-Held-Ms: 5000\r\n"):
                client.send(get(headers=more))
                await client.message()
            await until(lambda: sum(map(sum, bins)) >= 2)
    assert (sum(map(sum, bins)), sum(map(late_sum, bins))) == (2, late)
