"""Views of revisions (PodAutoscaler, ServerlessService) on a memory store and over the API, which rejects writes."""

import asyncio
from pathlib import Path

import pytest

from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import ClusterError
from serving.core.model.objects import condition_of, nested, version_of
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.addresses import publish_activators
from serving.home.controllers.revisionviews import RevisionViews
from serving.home.store.memory import MemoryCluster
from serving.net.aio.supervise import supervise
from serving.net.cluster.identity import user_agent
from serving.net.cluster.kinds import POD_AUTOSCALER, REVISION, SERVERLESS_SERVICE, SERVING_SERVICE, Kind
from serving.net.cluster.kube import KubeCluster
from tests.integration.api_server import served
from tests.integration.fake_node import a_service, a_world, ready

# A port without a listener, so that no running activator of this machine responds.
NOWHERE = 1


async def test_views_are_created_when_read_and_deleted_with_their_revision(tmp_path: Path) -> None:
    cluster = MemoryCluster(admit=admit)
    await publish_activators(cluster, "knative-serving", inner_port=NOWHERE)
    # A restarted control process publishes the activators again.
    await publish_activators(cluster, "knative-serving", inner_port=NOWHERE)
    async with (
        a_world(ControllerSettings(public_services=True), cluster=cluster) as world,
        served(cluster, tmp_path) as api,
        KubeCluster(str(api.kubeconfig)) as client,
    ):
        await cluster.create(SERVING_SERVICE, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        # No client has read a view yet.
        assert not cluster.table(POD_AUTOSCALER).objects
        scale = await client.get(POD_AUTOSCALER, "default", "hello-00001")
        assert ready(scale)
        assert (scale["status"]["desiredScale"], scale["status"]["actualScale"]) == (1, 1)
        assert scale["status"]["observedGeneration"] == scale["metadata"]["generation"]
        assert "managedFields" not in (await cluster.get(POD_AUTOSCALER, "default", "hello-00001"))["metadata"]
        (path,) = (await client.list(SERVERLESS_SERVICE, "default")).items
        assert ready(path)
        assert nested(path, "spec", "numActivators") == 1
        assert (path["spec"]["mode"], path["status"]["serviceName"]) == ("Proxy", "hello-00001")
        again = await client.get(SERVERLESS_SERVICE, "default", "hello-00001")
        assert again["metadata"]["resourceVersion"] == path["metadata"]["resourceVersion"]
        await cluster.delete(SERVING_SERVICE, "default", "hello")
        await world.until_gone(POD_AUTOSCALER, "hello-00001")
        assert (await client.list(SERVERLESS_SERVICE)).items == []


async def test_views_are_updated_while_a_client_watches() -> None:
    cluster = MemoryCluster(admit=admit)
    async with a_world(ControllerSettings(), cluster=cluster) as world, supervise() as group:
        views = RevisionViews(cluster)
        running = group.start(views.run(), name="views")
        with views.watched(), views.watched():
            await cluster.create(SERVING_SERVICE, a_service("good"))
            await world.until(POD_AUTOSCALER, "hello-00001", ready)
        version = cluster.table(POD_AUTOSCALER).objects["default", "hello-00001"].version
        await cluster.patch(REVISION, "default", "hello-00001", patch={"metadata": {"labels": {"a": "b"}}})
        await views.refresh("other")
        assert cluster.table(POD_AUTOSCALER).objects["default", "hello-00001"].version == version
        await views.refresh("default", "hello-00001")
        assert cluster.table(POD_AUTOSCALER).objects["default", "hello-00001"].labels["a"] == "b"
        running.cancel()


class ObservedStatuses(UnreadWrites):
    """Delayed statuses that set an event when a writer checks whether it can delay one."""

    def __init__(self) -> None:
        super().__init__()
        self.is_checked = asyncio.Event()

    @property
    def is_watched(self) -> bool:
        self.is_checked.set()
        return super().is_watched


async def test_revision_status_is_written_when_a_client_reads_it(tmp_path: Path) -> None:
    cluster, place = MemoryCluster(admit=admit), (REVISION, "default", "hello-00001")
    views, statuses = RevisionViews(cluster), ObservedStatuses()
    views.statuses = statuses
    async with (
        a_world(ControllerSettings(count_period_s=0.01), cluster=cluster, statuses=statuses) as world,
        served(cluster, tmp_path, views=views) as api,
        KubeCluster(str(api.kubeconfig)) as client,
        KubeCluster(str(api.kubeconfig), user_agent=user_agent("autoscaler", "a_1")) as daemon,
    ):
        await cluster.create(SERVING_SERVICE, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        statuses.is_checked.clear()
        await cluster.patch(*place, patch={"spec": {"servingState": "Reserve"}})
        await statuses.is_checked.wait()
        await world.controller.settled()
        revisions = [await reader.get(*place) for reader in (daemon, client, daemon)]
        assert [condition_of(revision, "Active")["status"] for revision in revisions] == ["True", "False", "False"]
        assert revisions[1]["status"]["observedGeneration"] == revisions[1]["metadata"]["generation"]
        async with client.watch(REVISION, "default", resource_version=version_of(revisions[1])) as events:
            changing = asyncio.ensure_future(cluster.patch(*place, patch={"spec": {"servingState": "Active"}}))
            states = [condition_of((await anext(events)).object, "Active")["status"] for _ in range(2)]
            await changing
        assert states == ["False", "True"]


@pytest.mark.parametrize("kind", [POD_AUTOSCALER, SERVERLESS_SERVICE], ids=lambda kind: str(kind.plural))
async def test_the_api_rejects_writes_of_views(kind: Kind, tmp_path: Path) -> None:
    async with served(MemoryCluster(), tmp_path) as api, KubeCluster(str(api.kubeconfig)) as cluster:
        body = {"metadata": {"name": "x", "namespace": "default"}}
        with pytest.raises(ClusterError, match="read-only: the controller derives it from revisions"):
            await cluster.create(kind, body)
        assert (await cluster.list(kind)).items == []
