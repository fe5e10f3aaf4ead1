"""A DomainMapping in the controller and the activator, over HTTP and over TLS with the certificate of a Secret."""

import asyncio
import ssl

import pytest

from serving.activator.routing.sites import Listener
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.tls import TlsSettings
from serving.net.cluster.kinds import CLUSTER_DOMAIN_CLAIM, DOMAIN_MAPPING, NAMESPACE, SECRET, SERVING_SERVICE
from tests.eventually import until
from tests.integration.activator_stage import send_request, staged
from tests.integration.fake_node import a_service, a_world, ready
from tests.integration.test_activator_tls import secret_of, tls_of
from tests.integration.tls_stage import handshake

HOST = "shop.example.com"
MAPPING: Object = {
    "apiVersion": "serving.knative.dev/v1beta1",
    "kind": "DomainMapping",
    "metadata": {"name": HOST, "namespace": "default"},
    "spec": {
        "ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "namespace": "default"}
    },
}
CLAIM: Object = {
    "apiVersion": "networking.internal.knative.dev/v1alpha1",
    "kind": "ClusterDomainClaim",
    "metadata": {"name": HOST},
    "spec": {"namespace": "default"},
}
SERVED = {
    "observedGeneration": 1,
    "conditions": [
        {"type": condition_type, "status": "True"} for condition_type in ("DomainClaimed", "ReferenceResolved")
    ],
}


async def test_controller_claims_host_resolves_reference_and_deletes_claim() -> None:
    async with a_world(ControllerSettings(autocreate_cluster_domain_claims=True)) as world:
        await world.cluster.create(DOMAIN_MAPPING, MAPPING)
        unresolved = await world.until(
            DOMAIN_MAPPING, HOST, lambda current_domain_mapping: "status" in current_domain_mapping
        )
        assert not ready(unresolved)
        claim = await world.cluster.get(CLUSTER_DOMAIN_CLAIM, "", HOST)
        assert claim["spec"] == {"namespace": "default"}
        await world.cluster.create(SERVING_SERVICE, a_service("good"))
        domain_mapping = await world.until(DOMAIN_MAPPING, HOST, ready)
        assert domain_mapping["status"]["url"] == f"http://{HOST}:8080"
        await world.cluster.delete(DOMAIN_MAPPING, "default", HOST)
        async with (
            asyncio.timeout(60),
            world.cluster.watch(CLUSTER_DOMAIN_CLAIM, resource_version=claim["metadata"]["resourceVersion"]) as events,
        ):
            async for event in events:
                if event.type == "DELETED":
                    break


async def test_activator_serves_claimed_host_over_http_and_tls() -> None:
    async with staged(tls=TlsSettings(address="127.0.0.1:0")) as stage:
        await stage.service(slots=0)
        await stage.pod_seen("p")
        assert not stage.activator.certificates.certificates.count
        assert (await send_request(stage.public, host=HOST)).status == 404
        await stage.cluster.create(DOMAIN_MAPPING, MAPPING)
        await stage.cluster.patch(DOMAIN_MAPPING, "default", HOST, patch={"status": SERVED}, subresource="status")
        # The ClusterDomainClaim decides: write access to the status of a mapping is not enough to serve a host.
        forged = {**MAPPING, "metadata": {"name": HOST, "namespace": "forger"}}
        body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "forger"}}
        await stage.cluster.create(NAMESPACE, body)
        await stage.cluster.create(DOMAIN_MAPPING, forged)
        await stage.cluster.patch(DOMAIN_MAPPING, "forger", HOST, patch={"status": SERVED}, subresource="status")
        await stage.cluster.create(CLUSTER_DOMAIN_CLAIM, CLAIM)
        await until(lambda: stage.activator.ingress.routes.find(Listener.PUBLIC, HOST) is not None)
        assert (await send_request(stage.public, host=HOST)).status == 200
        # The certificate covers another host too, but is served only for the mapped host.
        secret = secret_of(HOST, "other.example.com")
        secret["metadata"] |= {"name": "cert", "namespace": "default"}
        await stage.cluster.create(SECRET, secret)
        tls = {"spec": {"tls": {"secretName": "cert"}}}
        await stage.cluster.patch(DOMAIN_MAPPING, "default", HOST, patch=tls)
        seen = {**SERVED, "observedGeneration": 2}
        await stage.cluster.patch(DOMAIN_MAPPING, "default", HOST, patch={"status": seen}, subresource="status")
        await until(lambda: stage.activator.tls_address is not None)
        address = tls_of(stage)
        assert await handshake(address, HOST) == [HOST, "other.example.com"]
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await handshake(address, "other.example.com")
