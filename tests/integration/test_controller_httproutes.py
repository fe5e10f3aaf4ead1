"""The controller with a Gateway, on servers with HTTPRoutes, without them, and without permission to list them."""

import asyncio
from typing import Any

import pytest

from serving.core.model.errors import ClusterError, Forbidden, NotFound, Unavailable
from serving.core.model.objects import Object, condition_of
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, EVENT, HTTP_ROUTE, ROUTE, SERVING_SERVICE, Kind
from serving.net.cluster.port import Listing, Selection
from tests.integration.fake_node import World, a_service, a_world, ready
from tests.virtual_time import run_virtually

GATEWAY = "gateways/front"
SETTINGS = ControllerSettings(public_services=True, gateway=GATEWAY)
ACCEPTED = [{"type": "Accepted", "status": "True", "reason": "Accepted"}]


class Bare(MemoryCluster):
    """A store that rejects lists of HTTPRoutes while `error` is set, and records all lists."""

    def __init__(self, error: ClusterError | None) -> None:
        super().__init__(admit=admit)
        self.error = error
        self.listed: list[Kind] = []

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        self.listed.append(selection.kind)
        if selection.kind == HTTP_ROUTE and self.error is not None:
            raise self.error
        return await super().list_selection(selection, page_size=page_size, page=page)


async def accept(world: World, name: str) -> None:
    namespace, gateway = GATEWAY.split("/")
    parent = {"parentRef": {"namespace": namespace, "name": gateway}, "conditions": ACCEPTED}
    await world.until(HTTP_ROUTE, name, bool)
    await world.cluster.patch(
        HTTP_ROUTE, "default", name, patch={"status": {"parents": [parent]}}, subresource="status"
    )


def has_reason(reason: str) -> Any:  # noqa: ANN401 - a test of an object
    return lambda resource: condition_of(resource, "IngressReady").get("reason") == reason


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("the server could not find the requested resource"), "does not know HTTPRoutes"),
        (Forbidden("httproutes is forbidden"), "does not let us list HTTPRoutes"),
    ],
)
def test_missing_httproute_api_is_reported_and_used_once_available(error: ClusterError, message: str) -> None:
    async def main() -> None:
        cluster = Bare(error)
        async with a_world(SETTINGS, cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            route = await world.until(ROUTE, "hello", has_reason("GatewayApiMissing"))
            assert message in condition_of(route, "Ready")["message"]
            events = [
                event
                for event in (await cluster.list(EVENT)).items
                if event["involvedObject"]["kind"] == CONFIG_MAP.name and event["reason"] == "GatewayApiMissing"
            ]
            assert [(event["involvedObject"]["name"], event["count"]) for event in events] == [("config-controller", 1)]
            cluster.error = None
            await accept(world, "hello")
            await world.until(SERVING_SERVICE, "hello", ready)

    run_virtually(main())


def test_temporarily_unavailable_server_is_not_reported_as_missing_api() -> None:
    async def main() -> None:
        cluster = Bare(Unavailable("try again"))
        async with a_world(SETTINGS, cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            await asyncio.sleep(3)
            cluster.error = None
            await accept(world, "hello")
            await world.until(SERVING_SERVICE, "hello", ready)
            assert not [event for event in (await cluster.list(EVENT)).items if event["type"] == "Warning"]

    run_virtually(main())


def test_without_a_gateway_httproutes_are_not_listed() -> None:
    async def main() -> None:
        cluster = Bare(NotFound("there are none"))
        async with a_world(ControllerSettings(public_services=True), cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            await world.until(SERVING_SERVICE, "hello", ready)
            assert HTTP_ROUTE not in cluster.listed

    run_virtually(main())


def test_changed_httproute_is_restored_and_one_of_another_owner_is_not() -> None:
    async def main() -> None:
        foreign_route: Object = {
            "metadata": {"name": "hello", "namespace": "default"},
            "spec": {"hostnames": ["a.example"]},
        }
        cluster = Bare(None)
        await cluster.create(HTTP_ROUTE, foreign_route)
        async with a_world(SETTINGS, cluster=cluster) as world:
            await cluster.create(SERVING_SERVICE, a_service("good"))
            await world.until(ROUTE, "hello", has_reason("NotOwned"))
            assert (await cluster.get(HTTP_ROUTE, "default", "hello"))["spec"] == foreign_route["spec"]
            await cluster.delete(HTTP_ROUTE, "default", "hello")
            await accept(world, "hello")
            await world.until(SERVING_SERVICE, "hello", ready)
            await cluster.patch(HTTP_ROUTE, "default", "hello", patch={"spec": {"hostnames": ["evil.example"]}})
            own = ["hello.default.localhost"]
            await world.until(HTTP_ROUTE, "hello", lambda http_route: http_route["spec"]["hostnames"] == own)

    run_virtually(main())
