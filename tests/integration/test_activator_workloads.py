"""An activator in front of pods without a queue-proxy: those of a ScaledWorkload."""

import ssl
from typing import Any

import trustme

from serving.activator.routing.sites import Listener
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService, WorkloadTarget
from serving.net.cluster.kinds import ENDPOINT_SLICE, SCALED_WORKLOAD
from tests.eventually import until
from tests.integration.activator_stage import HttpResponse, PodServer, Stage, send_request, staged

HOST = "shop.example.com"


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
    """A workload with one pod, as its Service and its endpoints say."""
    stage.pods.append(server)
    workload = ScaledWorkloadSpec(
        target=WorkloadTarget(name="shop"), service=WorkloadService(name="shop"), hosts=(HOST,), **spec
    )
    await stage.cluster.create(ENDPOINT_SLICE, endpoint_slice(server.port, protocol=protocol))
    await stage.cluster.create(SCALED_WORKLOAD, workload.to_object(name="shop", namespace="default"))
    await until(lambda: stage.activator.ingress.router.directory.pods_of(("default", "shop")))
    await until(lambda: stage.activator.ingress.routes.find(Listener.PUBLIC, HOST))


async def ask(stage: Stage) -> HttpResponse:
    return await send_request(stage.public, host=HOST)


async def test_a_pod_gets_tls_where_its_service_says_so() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Of another name: the certificate is not verified.
    trustme.CA().issue_cert("other.example.com").configure_cert(tls)
    async with staged() as stage:
        server = PodServer("p")
        await server.start(tls)
        await serve_workload(stage, server, protocol="https")
        response = await ask(stage)
    assert (response.status, response.body) == (200, "p")
    assert "K-Proxy-Request" not in server.heads[0]


async def test_a_pod_that_does_not_speak_tls_costs_no_more_than_the_wait_for_a_pod() -> None:
    async with staged() as stage:
        server = PodServer("p")
        await server.start()
        await serve_workload(stage, server, protocol="https", wait_timeout_seconds=1)
        response = await ask(stage)
    assert response.status in {502, 503}
    assert server.heads == []
