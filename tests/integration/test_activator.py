"""Requests through an activator over real sockets: cold starts, queues, rejections, routing and handover."""

import asyncio
from collections import Counter

import httpx
import msgspec
import pytest

from serving.core.model.routepolicy import route_digest
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster.kinds import REVISION, ROUTE
from serving.net.wire.tokens import activator_token, pod_secret, revision_secret
from tests.eventually import until
from tests.integration.activator_stage import KEY, HttpResponse, Stage, send_request, staged

RULES = ControllerSettings().host_rules

INNER_HOST = "hello.default.svc.cluster.local"


async def queued_requests(stage: Stage, count: int) -> list[asyncio.Task[HttpResponse]]:
    """Send `count` requests one after another, each after the activator has counted the previous one."""
    tasks = []
    for place in range(count):
        tasks.append(asyncio.create_task(send_request(stage.public, f"/{place}")))
        await until(lambda wanted=place + 1: stage.level == wanted)  # type: ignore[misc]
    return tasks


async def test_cold_request_waits_for_a_pod() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve")
        (task,) = await queued_requests(stage, 1)
        await until(lambda: stage.autoscaler.stats)
        await stage.pod("p")
        response = await task
    assert (response.status, response.body) == (200, "p")
    assert (response.headers["x-serving-revision"], response.headers["x-serving-cold-start"]) == ("hello-00001", "true")


async def test_changed_settings_apply_to_next_request() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        assert "x-serving-revision" in (await send_request(stage.public)).headers
        changed = msgspec.structs.replace(stage.activator.settings, tell_revision=False)
        stage.activator.reconfigure(changed, AutoscalerSettings(), RULES)
        assert "x-serving-revision" not in (await send_request(stage.public)).headers


async def test_target_of_revision_follows_changed_autoscaler_settings() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        router, key = stage.activator.ingress.router, ("default", "hello-00001")

        def target() -> float | None:
            facts = router.directory.revision(key)
            return None if facts is None else facts.target_concurrency

        assert target() == 0.7
        settings = AutoscalerSettings(container_concurrency_target_ratio=0.5)
        stage.activator.reconfigure(stage.activator.settings, settings, RULES)
        await until(lambda: target() == 0.5)


async def test_short_hosts_and_revision_hosts_are_served_only_inside_the_cluster() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        for host in (
            "hello.default",
            "hello.default.svc",
            "hello-00001.default",
            "hello-00001.default.svc.cluster.local",
        ):
            assert (await send_request(stage.inner, host=host)).status == 200
            assert (await send_request(stage.public, host=host)).status == 404


async def test_first_request_activates_revision_and_pokes_autoscaler() -> None:
    async with staged(report_period_s=10) as stage:
        await stage.service(state="Reserve")
        (task,) = await queued_requests(stage, 1)
        await until(lambda: stage.autoscaler.stats)
        await stage.active()
        (stat,) = stage.autoscaler.stats
        await stage.pod("p")
        await task
    assert (stat.namespace, stat.revision, stat.concurrency, stat.request_count) == ("default", "hello-00001", 1, 1)


async def test_activator_identifies_itself_to_autoscaler() -> None:
    async with staged() as stage:
        assert stage.autoscaler.paths == ["/stats?activator=activator"]
        assert stage.autoscaler.tokens == [f"Bearer {activator_token(KEY, name='activator')}"]


async def test_reconnected_autoscaler_receives_report_immediately() -> None:
    async with staged(report_period_s=10) as stage:
        await stage.service()
        (task,) = await queued_requests(stage, 1)
        await until(lambda: stage.autoscaler.stats)
        for connection in list(stage.autoscaler.connections):
            await connection.close()
        await until(lambda: len(stage.autoscaler.stats) == 2)
        await stage.pod("p")
        await task
    assert [stat.concurrency for stat in stage.autoscaler.stats] == [1, 1]


async def test_warm_response_has_no_cold_start_header() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        response = await send_request(stage.public)
    assert (response.status, "x-serving-cold-start" in response.headers) == (200, False)


async def test_queued_requests_are_served_in_order_within_pod_concurrency() -> None:
    async with staged() as stage:
        await stage.service()
        tasks = await queued_requests(stage, 20)
        pod = await stage.pod("p")
        await asyncio.gather(*tasks)
    assert [head.split()[1] for head in pod.heads] == [f"/{place}" for place in range(20)]
    assert pod.running_max == 1


async def test_request_beyond_queue_depth_receives_503() -> None:
    async with staged(queue_depth_max=2) as stage:
        await stage.service()
        tasks = await queued_requests(stage, 2)
        response = await send_request(stage.public)
        await stage.pod("p")
        statuses = [(await task).status for task in tasks]
    assert (response.status, response.headers["retry-after"], statuses) == (503, "1", [200, 200])
    assert "pending request queue full" in response.body


async def test_buffered_body_beyond_queue_bytes_receives_503() -> None:
    async with staged(queue_bytes_max=5000) as stage:
        await stage.service()
        response = await send_request(stage.public, method="POST", body="x" * 6000)
    assert response.status == 503


async def test_client_disconnect_frees_its_place_in_queue() -> None:
    async with staged(queue_depth_max=1) as stage:
        await stage.service()
        _, writer = await asyncio.open_connection(*stage.public)
        writer.write(b"GET /gone HTTP/1.1\r\nHost: hello.default.localhost\r\n\r\n")
        await until(lambda: stage.level == 1)
        writer.close()
        await until(lambda: stage.level == 0)
        (task,) = await queued_requests(stage, 1)
        pod = await stage.pod("p")
        await task
    assert [head.split()[1] for head in pod.heads] == ["/0"]


async def test_half_closed_client_receives_response_of_service_at_zero() -> None:
    async with staged() as stage:
        await stage.service()
        reader, writer = await asyncio.open_connection(*stage.public)
        writer.write(b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\n\r\n")
        writer.write_eof()
        await until(lambda: stage.level == 1)
        await stage.pod("p")
        response = await reader.read()
        writer.close()
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.endswith(b"\r\n\r\np")


async def test_wait_beyond_queue_limit_receives_503() -> None:
    async with staged(queue_wait_max_s=0.05) as stage:
        await stage.service()
        response = await send_request(stage.public)
    assert (response.status, response.body) == (503, "no pod was free within 0.05 s\n")


async def test_revision_timeout_ends_wait_with_504() -> None:
    async with staged() as stage:
        await stage.service(timeoutSeconds=0.15)
        response = await send_request(stage.public)
    assert (response.status, response.body) == (504, "activator request timeout")


async def test_failed_revision_returns_503_without_its_message() -> None:
    async with staged() as stage:
        await stage.service()
        (task,) = await queued_requests(stage, 1)
        await stage.status("hello-00001", status="False", reason="ExitCode1", message="no such command")
        waited, later = await task, await send_request(stage.public)
    text = "revision hello-00001 cannot serve\n"
    assert [(response.status, response.body) for response in (waited, later)] == [(503, text), (503, text)]


async def test_requests_wait_while_pod_is_unschedulable() -> None:
    async with staged() as stage:
        await stage.service()
        (task,) = await queued_requests(stage, 1)
        await stage.status("hello-00001", status="False", reason="Unschedulable", message="0/1 nodes are available")
        router = stage.activator.ingress.router
        await until(
            lambda: (facts := router.directory.revision(("default", "hello-00001"))) is not None and facts.delay
        )
        later = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 2)
        await stage.pod("p")
        statuses = [(await task).status, (await later).status]
    assert statuses == [200, 200]


async def test_traffic_is_split_by_percent() -> None:
    async with staged() as stage:
        for revision in ("old", "new"):
            await stage.revision(revision, slots=0)
            await stage.pod_seen(revision, of=revision)
        await stage.route({"revisionName": "old", "percent": 90}, {"revisionName": "new", "percent": 10})
        counts = Counter([(await send_request(stage.public)).body for _ in range(500)])
    # The probability of a count outside is 10^-11: the mean is 50, the standard deviation 6.7.
    assert (counts.total(), 3 <= counts["new"] <= 105) == (500, True)


async def test_route_digest_is_served_to_controller_probes() -> None:
    async with staged() as stage:
        path, headers = "/routes/default/hello", ["K-Network-Probe: route"]
        before = await send_request(stage.inner, path, headers=headers)
        await stage.service()
        route = await stage.cluster.get(ROUTE, "default", "hello")
        served = await send_request(stage.inner, path, headers=headers)
        refused = await send_request(stage.public, path, headers=headers, host="hello.other.localhost")
        moved = {"status": {"traffic": [{"revisionName": "hello-00002", "percent": 100}]}}
        after = await stage.cluster.patch(ROUTE, "default", "hello", patch=moved, subresource="status")
        routes = stage.activator.ingress.routes
        await until(lambda: routes.digest_of("default/hello") == route_digest(after, RULES))
        assert (await send_request(stage.inner, path, headers=headers)).body == route_digest(after, RULES)
        await stage.cluster.delete(ROUTE, "default", "hello")
        await until(lambda: routes.digest_of("default/hello") is None)
    assert (before.status, served.status, served.body) == (404, 200, route_digest(route, RULES))
    assert refused.status == 404


async def test_tag_is_selected_by_host_or_header() -> None:
    async with staged() as stage:
        for revision in ("old", "new"):
            await stage.revision(revision)
            await stage.pod_seen(revision, of=revision)
        await stage.route({"revisionName": "old", "percent": 100}, {"revisionName": "new", "percent": 0, "tag": "next"})
        by_host = await send_request(stage.public, host="next-hello.default.localhost")
        by_header = await send_request(stage.public, headers=["Knative-Serving-Tag: next"])
        plain = await send_request(stage.public)
    assert [by_host.body, by_header.body, plain.body] == ["new", "new", "old"]


async def test_cluster_local_host_is_served_on_inner_listener_only() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        responses = [await send_request(address, host=INNER_HOST) for address in (stage.public, stage.inner)]
    assert [response.status for response in responses] == [404, 200]


async def test_revision_header_of_gateway_is_trusted_on_inner_listener_only() -> None:
    async with staged() as stage:
        for revision in ("old", "new"):
            await stage.revision(revision)
            await stage.pod_seen(revision, of=revision)
        await stage.route({"revisionName": "old", "percent": 100}, {"revisionName": "new", "percent": 0, "tag": "next"})
        named = ["Knative-Serving-Namespace: default", "knative-serving-revision: new"]
        inside = [
            await send_request(stage.inner, headers=named),
            await send_request(stage.inner, host=INNER_HOST, headers=named),
        ]
        outside = await send_request(stage.public, headers=named)
        ambiguous = await send_request(stage.inner, host=INNER_HOST, headers=[*named, "Knative-Serving-Revision: old"])
        tagged = await send_request(
            stage.inner, headers=[named[0], "Knative-Serving-Revision: old", "Knative-Serving-Tag: next"]
        )
        unknown = await send_request(stage.inner, host=INNER_HOST, headers=[named[0], "Knative-Serving-Revision: none"])
        pods = stage.pods
    assert [response.body for response in inside] == ["new", "new"]
    assert outside.body == "old"
    assert ambiguous.body == "old", "two revision headers are ignored, and the host decides"
    assert tagged.body == "old", "the gateway has already resolved tags"
    assert unknown.status == 404
    seen = "\n".join(head for pod in pods for head in pod.heads).lower()
    assert "knative-serving-tag: next" in seen
    assert "knative-serving-revision" not in seen
    assert "knative-serving-namespace" not in seen


async def test_gateway_can_select_revision_over_http2() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        named = {
            "Host": "any.example",
            "Knative-Serving-Namespace": "default",
            "Knative-Serving-Revision": "hello-00001",
        }
        async with httpx.AsyncClient(http1=False, http2=True, trust_env=False) as client:
            urls = [f"http://{host}:{port}/" for host, port in (stage.inner, stage.public)]
            responses = [await client.get(url, headers=named) for url in urls]
    assert [(response.http_version, response.status_code) for response in responses] == [
        ("HTTP/2", 200),
        ("HTTP/2", 404),
    ]


async def test_unknown_host_is_reported_in_404() -> None:
    async with staged() as stage:
        response = await send_request(stage.public, host="nobody.default.localhost:8080")
    assert (response.status, response.body) == (404, "no service has the host nobody.default.localhost:8080\n")


async def test_reserved_headers_of_client_are_removed() -> None:
    spoofed = [
        "K-Proxy-Request: activator",
        "K-Pod-Secret: 0",
        "K-Network-Probe: queue",
        "K-Network-Hash: 0",
        "K-Kubelet-Probe: queue",
        "K-Original-Host: other",
        "Knative-Serving-Namespace: other",
        "Knative-Serving-Revision: other",
        "User-Agent: kube-probe/1.32",
        "X-Own: kept",
    ]
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        response = await send_request(stage.public, headers=spoofed)
    (head,) = pod.heads
    lines = {line.split(": ")[0].lower(): line.partition(": ")[2] for line in head.split("\r\n")[1:]}
    expected_headers = {
        "k-proxy-request": "activator",
        "k-pod-secret": pod_secret(KEY, namespace="default", pod="p"),
        "x-own": "kept",
    }
    assert response.status == 200
    assert {
        name: value for name, value in lines.items() if name.startswith(("k-", "kn", "us", "x-own"))
    } == expected_headers


async def test_activator_sends_revision_secret_to_pod() -> None:
    async with staged(secrets_of="revision") as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        await send_request(stage.public)
        revision = await stage.cluster.get(REVISION, "default", "hello-00001")
    secret = revision_secret(KEY, namespace="default", uid=revision["metadata"]["uid"])
    assert f"K-Pod-Secret: {secret}" in pod.heads[0].split("\r\n")


@pytest.mark.parametrize(
    ("target", "host", "header", "body"),
    [
        ("/healthz", "127.0.0.1", "X: 1", "ok"),
        ("/", "127.0.0.1", "User-Agent: kube-probe/1.32", "ok"),
        ("/healthz", "hello.default.localhost", "K-Network-Probe: activator", "activator"),
        ("/healthz", "hello.default.localhost", "X: 1", "p"),
    ],
)
async def test_activator_responds_to_probes(target: str, host: str, header: str, body: str) -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        response = await send_request(stage.public, target, host=host, headers=[header])
    assert (response.status, response.body) == (200, body)


async def test_queued_request_completes_after_handover() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve")
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        stage.activator.hand_over()
        await until(lambda: stage.activator.ingress.is_draining)
        with pytest.raises(ConnectionRefusedError):
            await send_request(stage.public)
        await stage.pod("p")
        response = await task
        assert (response.status, response.body) == (200, "p")


async def test_idle_connection_serves_one_more_request_after_handover() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.pod_seen("p")
        reader, writer = await asyncio.open_connection(*stage.public)
        for is_last in (False, True):
            writer.write(b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert (b"connection: close" in head.lower()) is is_last
            assert await reader.readexactly(1) == b"p"
            if not is_last:
                stage.activator.hand_over()
                await until(lambda: stage.activator.ingress.is_draining)
        assert await reader.read() == b""
        writer.close()


async def test_handover_grace_ends_queued_requests_with_503() -> None:
    async with staged(handover_grace_s=0.1) as stage:
        await stage.service(state="Reserve")
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        stage.activator.hand_over()
        assert (await task).status == 503


async def test_stop_during_handover_ends_queued_requests_with_503() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve")
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        stage.activator.hand_over()
        await until(lambda: stage.activator.ingress.is_draining)
    assert (await task).status == 503
