"""The controller over the memory store, with a simulated node: from a manifest to traffic, and back."""

import asyncio
from typing import Any

import pytest

from serving.core.model.objects import Object, annotations_of, condition_of, labels_of, nested
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster.kinds import (
    CONFIGURATION,
    DEPLOYMENT,
    EVENT,
    POD,
    REVISION,
    ROUTE,
    SERVICE,
    SERVING_SERVICE,
)
from tests.eventually import until
from tests.integration.fake_node import World, a_service, a_world, ready

WRITES_PER_SERVICE_MAX = 17


async def apply(world: World, manifest: Object) -> None:
    """Create a Service, or change its spec."""
    name = manifest["metadata"]["name"]
    listing = await world.cluster.list(SERVING_SERVICE, "default", field_selector=f"metadata.name={name}")
    if listing.items:
        await world.cluster.patch(SERVING_SERVICE, "default", name, patch={"spec": manifest["spec"]})
    else:
        await world.cluster.create(SERVING_SERVICE, manifest)


async def applied(world: World, manifest: Object) -> Object:
    """Apply a manifest and wait until the Service is ready."""
    await apply(world, manifest)
    return await world.until(SERVING_SERVICE, manifest["metadata"]["name"], ready)


def traffic(entry: Object) -> list[tuple[str, int | None]]:
    return [(target["revisionName"], target.get("percent")) for target in nested(entry, "status", "traffic") or ()]


def is_failed(resource: Object) -> bool:
    return bool(condition_of(resource, "Ready").get("status") == "False")


def message_of(resource: Object) -> str:
    return str(condition_of(resource, "Ready").get("message", ""))


async def test_a_service_becomes_ready_at_its_url() -> None:
    async with a_world() as world:
        service = await applied(world, a_service("good"))
        assert service["status"]["url"] == "http://hello.default.localhost:8080"
        assert service["status"]["latestReadyRevisionName"] == "hello-00001"
        assert traffic(service) == [("hello-00001", 100)]
        deployment = await world.cluster.get(DEPLOYMENT, "default", "hello-00001-deployment")
        assert deployment["spec"]["replicas"] == 1
        await world.cluster.get(SERVICE, "default", "hello-00001-private")


async def settled_service(world: World) -> Object:
    """A ready service, after the controller's last write for it."""
    service = await applied(world, a_service("good"))
    await world.until(REVISION, "hello-00001", is_active)
    await world.controller.settled()
    return service


async def test_controller_creates_service_with_few_writes() -> None:
    async with a_world() as world:
        await settled_service(world)
        assert world.controller.writes_count <= WRITES_PER_SERVICE_MAX


async def test_settled_service_causes_no_further_writes() -> None:
    async with a_world() as world:
        await settled_service(world)
        before = world.controller.writes_count
        await world.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"metadata": {"annotations": {"a": "b"}}})
        for kind in (CONFIGURATION, ROUTE):
            await world.until(kind, "hello", lambda resource: annotations_of(resource).get("a") == "b")
        await world.controller.settled()
        # Only the annotation of both children is written.
        assert world.controller.writes_count == before + 2


async def test_traffic_moves_to_a_new_revision_only_when_it_is_ready() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        await apply(world, a_service("slow"))
        revision = await world.until(
            REVISION, "hello-00002", lambda current_revision: condition_of(current_revision, "Active")
        )
        assert condition_of(revision, "Ready")["reason"] == "Deploying"
        await world.controller.settled()
        route = await world.cluster.get(ROUTE, "default", "hello")
        assert traffic(route) == [("hello-00001", 100)]
        world.node.let_go.set()
        service = await world.until(SERVING_SERVICE, "hello", ready)
        assert traffic(service) == [("hello-00002", 100)]
        old = await world.until(REVISION, "hello-00001", lambda current_revision: not is_active(current_revision))
        assert "serving.knative.dev/routes" not in old["metadata"]["annotations"]


def is_active(revision: Object) -> bool:
    return labels_of(revision)["serving.knative.dev/routingState"] == "active"


@pytest.mark.parametrize(
    ("image", "message"), [("bad", "KeyError: 'DATABASE_URL'"), ("nocommand", "serving.dev/command")]
)
async def test_failed_revision_receives_no_traffic_and_its_reason_is_reported(image: str, message: str) -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        await apply(world, a_service(image))
        service = await world.until(SERVING_SERVICE, "hello", is_failed)
        assert message in message_of(service)
        assert 'Revision "hello-00002" failed with message' in message_of(service)
        assert traffic(service) == [("hello-00001", 100)]
        await applied(world, a_service("good", traffic=[{"latestRevision": True, "percent": 100}]))


async def test_failed_first_revision_is_reported_in_service_status() -> None:
    async with a_world() as world:
        await apply(world, a_service("bad"))
        service = await world.until(SERVING_SERVICE, "hello", is_failed)
        assert "DATABASE_URL" in message_of(service)
        assert condition_of(service, "RoutesReady")["reason"] == "RevisionMissing"


async def test_failed_revision_creates_warning_events() -> None:
    async with a_world() as world:
        await apply(world, a_service("bad"))
        await world.until(SERVING_SERVICE, "hello", is_failed)
        await world.controller.settled()
        events = (await world.cluster.list(EVENT, "default")).items
        reported = {(event["involvedObject"]["kind"], event["reason"], event["type"]) for event in events}
        assert {("Revision", "ExitCode1", "Warning"), ("Service", "RevisionFailed", "Warning")} <= reported


async def test_traffic_is_split_and_tagged() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        split: list[dict[str, Any]] = [
            {"latestRevision": True, "percent": 10, "tag": "new"},
            {"revisionName": "hello-00001", "percent": 90},
        ]
        service = a_service("good", traffic=split)
        service["spec"]["template"]["spec"]["containerConcurrency"] = 2
        ready_service = await applied(world, service)
        assert traffic(ready_service) == [("hello-00002", 10), ("hello-00001", 90)]
        assert ready_service["status"]["traffic"][0]["url"] == "http://new-hello.default.localhost:8080"
        for name in ("hello-00001", "hello-00002"):
            await world.until(REVISION, name, is_active)


async def test_traffic_returns_to_an_older_revision() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        world.node.let_go.set()
        await applied(world, a_service("slow"))
        back = [{"revisionName": "hello-00001", "percent": 100}]
        assert traffic(await applied(world, a_service("slow", traffic=back))) == [("hello-00001", 100)]
        await world.until(REVISION, "hello-00002", lambda revision: not is_active(revision))


async def test_revision_name_in_use_fails_the_service() -> None:
    async with a_world() as world:
        await applied(world, a_service("good", own_name="hello-blue"))
        await applied(
            world, a_service("good", own_name="hello-green", traffic=[{"revisionName": "hello-green", "percent": 100}])
        )
        await apply(world, a_service("slow", own_name="hello-blue"))
        service = await world.until(SERVING_SERVICE, "hello", is_failed)
        assert 'revisions.serving.knative.dev "hello-blue" already exists' in message_of(service)
        assert traffic(service) == [("hello-green", 100)]


async def test_second_claim_of_a_host_is_reported_until_the_first_is_deleted() -> None:
    async with a_world() as world:
        await applied(world, a_service("good", name="blue-hello"))
        await applied(world, a_service("good"))
        tagged = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
        await apply(world, a_service("good", traffic=tagged))
        service = await world.until(SERVING_SERVICE, "hello", is_failed)
        assert 'already in use by Route "default/blue-hello"' in message_of(service)
        await world.cluster.delete(SERVING_SERVICE, "default", "blue-hello")
        service = await world.until(SERVING_SERVICE, "hello", ready)
        assert service["status"]["traffic"][0]["url"] == "http://blue-hello.default.localhost:8080"


async def test_deleted_service_removes_all_its_objects() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        await world.cluster.delete(SERVING_SERVICE, "default", "hello")
        for kind, name in (
            (CONFIGURATION, "hello"),
            (ROUTE, "hello"),
            (REVISION, "hello-00001"),
            (DEPLOYMENT, "hello-00001-deployment"),
            (SERVICE, "hello-00001-private"),
        ):
            await world.until_gone(kind, name)

        async def are_pods_ending() -> bool:
            pods = (await world.cluster.list(POD, "default")).items
            return all("deletionTimestamp" in pod["metadata"] for pod in pods)

        await until(are_pods_ending)
        await world.controller.settled()


async def test_deleted_deployment_is_recreated() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        first = await world.cluster.get(DEPLOYMENT, "default", "hello-00001-deployment")
        await world.cluster.delete(DEPLOYMENT, "default", "hello-00001-deployment")
        uid = first["metadata"]["uid"]
        await world.until(DEPLOYMENT, "hello-00001-deployment", lambda deployment: deployment["metadata"]["uid"] != uid)


async def test_old_revisions_are_garbage_collected() -> None:
    settings = ControllerSettings(min_non_active_revisions=0, max_non_active_revisions=1)
    async with a_world(settings) as world:
        for number in range(1, 5):
            service = a_service("good")
            service["spec"]["template"]["spec"]["containerConcurrency"] = number
            await applied(world, service)
        for name in ("hello-00001", "hello-00002"):
            await world.until_gone(REVISION, name)
        remaining = [revision["metadata"]["name"] for revision in (await world.cluster.list(REVISION, "default")).items]
        assert remaining == ["hello-00003", "hello-00004"]


async def test_revision_at_zero_is_ready_and_becomes_active_again() -> None:
    async with a_world() as world:
        await applied(world, a_service("good"))
        state = {"spec": {"servingState": "Reserve"}}
        await world.cluster.patch(REVISION, "default", "hello-00001", patch=state)
        revision = await world.until(
            REVISION,
            "hello-00001",
            lambda current_revision: condition_of(current_revision, "Active").get("status") == "False",
        )
        assert condition_of(revision, "Active")["reason"] == "NoTraffic"
        assert ready(revision)
        await world.cluster.patch(REVISION, "default", "hello-00001", patch={"spec": {"servingState": "Active"}})
        await world.until(
            REVISION,
            "hello-00001",
            lambda current_revision: condition_of(current_revision, "Active").get("status") == "True",
        )


async def test_many_services_become_ready() -> None:
    async with a_world() as world:
        names = [f"service-{number:02d}" for number in range(30)]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(applied(world, a_service("good", name=name)))
        await world.controller.settled()
        assert world.controller.writes_count <= WRITES_PER_SERVICE_MAX * len(names)


async def test_gradual_rollout_moves_traffic_in_steps() -> None:
    shares: list[list[int]] = []

    def is_rolled_out(route: Object) -> bool:
        traffic = [(target["revisionName"], target["percent"]) for target in route.get("status", {}).get("traffic", ())]
        shares.append([percent for _, percent in traffic])
        return traffic == [("hello-00002", 100)] and condition_of(route, "Ready")["status"] == "True"

    async with a_world() as world:
        service = a_service("good")
        service["metadata"]["annotations"] = {"serving.knative.dev/rollout-duration": "3s"}
        await world.cluster.create(SERVING_SERVICE, service)
        await world.until(SERVING_SERVICE, "hello", ready)
        template = {"metadata": {"annotations": {"version": "2"}}}
        patching = asyncio.create_task(world.until(ROUTE, "hello", is_rolled_out))
        await world.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"spec": {"template": template}})
        await patching
        assert [99, 1] in shares
        newest = [each_shares[-1] for each_shares in shares if len(each_shares) > 1]
        assert newest == sorted(newest)
        assert len(set(newest)) > 2
        await world.until(SERVING_SERVICE, "hello", ready)
