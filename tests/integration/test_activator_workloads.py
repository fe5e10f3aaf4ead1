"""An activator in front of pods without a queue-proxy: those of a ScaledWorkload."""

import asyncio
import json
import ssl
from typing import Any

import pytest
import trustme

from serving.activator.routing.sites import Listener, Site
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService, WorkloadTarget
from serving.core.settings.http import HttpSettings
from serving.net.cluster.kinds import ENDPOINT_SLICE, REVISION, SCALED_WORKLOAD
from tests.eventually import until
from tests.integration.activator_stage import HttpResponse, PodServer, Stage, send_request, staged

HOST = "shop.example.com"
_CLIENTS = 24


def endpoint_slice(port: int, *, protocol: str) -> Object:
    endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": "p"}}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "shop"}},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "", "port": port, "appProtocol": protocol}],
    }


async def serve_workload(stage: Stage, server: PodServer, *, protocol: str, **spec: Any) -> None:  # noqa: ANN401 - its fields
    """Create a workload with a Service and one pod, and wait until the activator serves it."""
    stage.pods.append(server)
    workload = ScaledWorkloadSpec(
        target=WorkloadTarget(name="shop"), service=WorkloadService(name="shop"), hosts=(HOST,), **spec
    )
    await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(server.port, protocol=protocol))
    await stage.cluster.create(SCALED_WORKLOAD, workload.to_object(name="shop", namespace="default"))
    await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "shop")))
    await until(lambda: stage.activator.ingress.routes.find(Listener.PUBLIC, HOST))


async def send_workload_request(stage: Stage) -> HttpResponse:
    return await send_request(stage.public, host=HOST)


async def test_pod_of_service_with_https_app_protocol_receives_tls() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The certificate is for another name, because the activator does not verify it.
    trustme.CA().issue_cert("other.example.com").configure_cert(tls)
    async with staged() as stage:
        server = PodServer("p")
        await server.start(tls)
        await serve_workload(stage, server, protocol="https")
        response = await send_workload_request(stage)
    assert (response.status, response.body) == (200, "p")
    assert "K-Proxy-Request" not in server.heads[0]


async def test_client_affinity_survives_added_pods_until_its_pod_is_removed() -> None:
    async with staged(http=HttpSettings(trusted_proxies="127.0.0.0/8")) as stage:
        router = stage.activator.ingress.router

        async def add(name: str) -> None:
            stage.pods.append(PodServer(name))
            await stage.pods[-1].start()
            resource = endpoint_slice(stage.pods[-1].port, protocol="http")
            resource["metadata"] |= {"name": name}
            count = len(router.directory.pods_of(("default", "shop")))
            await stage.cluster.create(ENDPOINT_SLICE, resource)
            await until(lambda: len(router.directory.pods_of(("default", "shop"))) == count + 1)

        async def pods_of_clients() -> list[str]:
            headers = [f"X-Forwarded-For: 1.1.1.{number}" for number in range(_CLIENTS)]
            return [(await send_request(stage.public, host=HOST, headers=[line])).body for line in headers]

        await serve_cold(stage)
        await stage.cluster.patch(
            SCALED_WORKLOAD, "default", "shop", patch={"status": {"clientAffinitySeconds": 60}}, subresource="status"
        )
        await until(lambda: (site := router_site(stage)) is not None and site.policy.affinity is not None)
        for name in ("a", "b"):
            await add(name)
        first = await pods_of_clients()
        assert set(first) == {"a", "b"}
        for name in ("c", "d"):
            await add(name)
        assert await pods_of_clients() == first
        await stage.cluster.delete(ENDPOINT_SLICE, "default", "a")
        await until(lambda: len(router.directory.pods_of(("default", "shop"))) == 3)
        later = await pods_of_clients()
        assert [pod for pod, before in zip(later, first, strict=True) if before == "b"] == ["b"] * first.count("b")
        # The clients of the removed pod are distributed to several pods.
        assert len({pod for pod, before in zip(later, first, strict=True) if before == "a"}) > 1
        assert await pods_of_clients() == later


def router_site(stage: Stage) -> Site | None:
    return stage.activator.ingress.routes.find(Listener.PUBLIC, HOST)


async def test_pod_without_tls_behind_https_service_returns_error_after_wait() -> None:
    async with staged() as stage:
        server = PodServer("p")
        await server.start()
        await serve_workload(stage, server, protocol="https", wait_timeout_seconds=1)
        response = await send_workload_request(stage)
        # The wait ends in a try or between two tries.
        assert response.status in {502, 503}
        assert stage.activator.ingress.counts["pod-unreachable"] > 1
    assert server.heads == []


async def test_late_listening_app_receives_the_waiting_request() -> None:
    async with staged() as stage:
        server = PodServer("p")
        await server.start()
        await serve_workload(stage, server, protocol="http")
        port = server.port
        await server.stop()
        response = asyncio.create_task(send_workload_request(stage))
        throttlers = stage.activator.ingress.router.throttlers
        # The pod is ejected for 0.8 s by then.
        await until(
            lambda: any(
                ejection.failure_count == 5
                for throttler in throttlers.values()
                for ejection in throttler.ejected.ejections.values()
            )
        )
        await server.start(port=port)
        assert (await response).body == "p"
        (throttler,) = throttlers.values()
        assert not throttler.ejected.ejections


async def serve_cold(stage: Stage, *, fallback: PodServer | None = None, **spec: object) -> None:
    """Create a workload without pods. Its fallback is the Service of another pod."""
    whole = {"target": {"name": "shop"}, "service": {"name": "shop"}, "hosts": [HOST], **spec}
    workload = {"apiVersion": "serving.dev/v1alpha1", "kind": "ScaledWorkload", "spec": whole}
    if fallback is not None:
        stage.pods.append(fallback)
        pods = endpoint_slice(fallback.port, protocol="http")
        pods["metadata"] |= {"name": "m", "labels": {"kubernetes.io/service-name": "maintenance"}}
        await stage.cluster.create(ENDPOINT_SLICE, pods)
    await stage.cluster.create(SCALED_WORKLOAD, {**workload, "metadata": {"name": "shop", "namespace": "default"}})
    await until(lambda: stage.activator.ingress.routes.find(Listener.PUBLIC, HOST))


async def test_request_without_pod_in_time_receives_fallback_response() -> None:
    async with staged() as stage:
        server = PodServer("m")
        await server.start()
        cold_start = {"fallback": {"name": "maintenance"}}
        await serve_cold(stage, fallback=server, waitTimeoutSeconds=1, coldStart=cold_start)
        await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "shop:fallback")))
        response = await send_workload_request(stage)
        assert (response.status, response.body) == (200, "m")
        parts = {"namespace": "default", "name": "shop"}
        (report,) = json.loads(stage.activator.ingress.recorder.reports(parts))
        (record,) = report["sampled"]
        assert (report["revision"], record["pod"], record["is_cold"]) == ("shop:fallback", "p", True)
        assert record["start_s"] >= 1.0 > record["app_s"]
        # The load is reported for the workload only.
        await until(lambda: stage.autoscaler.stats)
        assert {stat.revision for stat in stage.autoscaler.stats} == {"shop"}
        # Without pods of the fallback a request gets 503.
        await stage.cluster.delete(ENDPOINT_SLICE, "default", "m")
        await until(lambda: not stage.activator.ingress.router.directory.pods_of(("default", "shop:fallback")))
        assert (await send_workload_request(stage)).status == 503
        # A fallback that is removed from the spec is removed from the directory.
        patch = {"spec": {"coldStart": None}}
        await stage.cluster.patch(SCALED_WORKLOAD, "default", "shop", patch=patch)
        keys = stage.activator.ingress.router.directory
        await until(lambda: keys.revision(("default", "shop:fallback")) is None)


async def test_workload_is_served_again_after_revision_of_same_name_is_deleted() -> None:
    async with staged() as stage:
        server = PodServer("p")
        await server.start()
        await serve_workload(stage, server, protocol="http")
        directory = stage.activator.ingress.router.directory
        await stage.revision("shop")
        await until(lambda: not directory.is_workload(("default", "shop")))
        await stage.cluster.delete(REVISION, "default", "shop")
        await until(lambda: directory.is_workload(("default", "shop")))
        assert (await send_workload_request(stage)).body == "p"


async def test_placeholder_is_sent_immediately_and_starts_the_workload() -> None:
    async with staged() as stage:
        placeholder = {"statusCode": 202, "headers": {"Refresh": "5"}, "body": "<p>soon"}
        await serve_cold(stage, coldStart={"placeholder": placeholder})
        response = await send_workload_request(stage)
        assert (response.status, response.body, response.headers["refresh"]) == (202, "<p>soon", "5")
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        await until(lambda: stage.autoscaler.stats)
        assert stage.autoscaler.stats[0].revision == "shop"
        server = PodServer("p")
        await server.start()
        stage.pods.append(server)
        await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(server.port, protocol="http"))
        await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "shop")))
        assert (await send_workload_request(stage)).body == "p"


@pytest.mark.parametrize(
    ("placeholder", "status", "kind", "body"),
    [
        ({}, 503, "text/plain; charset=utf-8", ""),
        ({"statusCode": 204, "body": "never sent"}, 204, "text/plain; charset=utf-8", ""),
        ({"headers": {"content-type": "application/json"}, "body": "{}"}, 503, "application/json", "{}"),
    ],
)
async def test_placeholder_response_has_configured_status_and_type(
    placeholder: dict[str, object], status: int, kind: str, body: str
) -> None:
    async with staged() as stage:
        await serve_cold(stage, coldStart={"placeholder": placeholder})
        response = await send_workload_request(stage)
    assert (response.status, response.headers["content-type"], response.body) == (status, kind, body)


async def test_requests_beyond_pending_limit_receive_placeholder_with_overflow() -> None:
    async with staged() as stage:
        cold_start = {"placeholder": {"body": "later"}, "overflow": "Placeholder"}
        await serve_cold(stage, maxPendingRequests=1, coldStart=cold_start)
        first = asyncio.create_task(send_workload_request(stage))
        await until(lambda: stage.level == 1)
        assert (await send_workload_request(stage)).body == "later"
        server = PodServer("p")
        await server.start()
        stage.pods.append(server)
        await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(server.port, protocol="http"))
        assert (await first).body == "p"
