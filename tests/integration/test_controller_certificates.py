"""The controller with external-domain-tls, with and without cert-manager in the cluster."""

import pytest

from serving.core.model.errors import ClusterError, Forbidden, NotFound
from serving.core.model.objects import condition_of, nested
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CERTIFICATE, EVENT, ROUTE, SERVING_SERVICE
from serving.net.cluster.port import Listing, Selection
from tests.integration.fake_node import a_service, a_world
from tests.virtual_time import run_virtually

SETTINGS = ControllerSettings(external_domain_tls="enabled")


class Bare(MemoryCluster):
    """A store that rejects lists of Certificates while `error` is set."""

    def __init__(self, error: ClusterError | None) -> None:
        super().__init__(admit=admit)
        self.error = error

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        if selection.kind == CERTIFICATE and self.error is not None:
            raise self.error
        return await super().list_selection(selection, page_size=page_size, page=page)


@pytest.mark.parametrize("error", [NotFound("no such resource"), Forbidden("certificates is forbidden"), None])
def test_route_url_is_https_after_cert_manager_issues_its_certificate(error: ClusterError | None) -> None:
    async def main() -> None:
        cluster = Bare(error)
        async with a_world(SETTINGS, cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            if error is not None:
                await world.until(
                    ROUTE,
                    "hello",
                    lambda current_route: (
                        condition_of(current_route, "CertificateProvisioned").get("status") == "False"
                    ),
                )
                events = (await cluster.list(EVENT)).items
                assert "CertManagerMissing" in {event["reason"] for event in events}
                cluster.error = None
            route = await world.until(ROUTE, "hello", bool)
            name = f"route-{route['metadata']['uid']}"
            await world.until(CERTIFICATE, name, bool)
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await cluster.patch(CERTIFICATE, "default", name, patch=ready, subresource="status")
            await world.until(
                ROUTE,
                "hello",
                lambda current_route: nested(current_route, "status", "url") == "https://hello.default.localhost:8443",
            )
            await world.until(
                ROUTE,
                "hello",
                lambda current_route: (
                    condition_of(current_route, "CertificateProvisioned").get("reason") != "HTTPDowngrade"
                ),
            )

    run_virtually(main())


def test_route_address_is_https_after_local_certificate_is_issued() -> None:
    async def main() -> None:
        cluster = Bare(None)
        async with a_world(ControllerSettings(cluster_local_domain_tls="enabled"), cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            route = await world.until(ROUTE, "hello", bool)
            name = f"route-{route['metadata']['uid']}-local"
            await world.until(CERTIFICATE, name, bool)
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await cluster.patch(CERTIFICATE, "default", name, patch=ready, subresource="status")
            address = "https://hello.default.svc.cluster.local:8081"
            await world.until(
                ROUTE, "hello", lambda current_route: nested(current_route, "status", "address", "url") == address
            )
            await world.until(
                SERVING_SERVICE, "hello", lambda service: nested(service, "status", "address", "url") == address
            )

    run_virtually(main())
