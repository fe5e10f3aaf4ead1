"""Views follow revisions over the memory store; the API serves them and rejects writes."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from serving.controller.io.view_writer import ViewWriter
from serving.core.model.errors import ClusterError
from serving.core.model.objects import nested
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.addresses import publish_activators
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD_AUTOSCALER, SERVERLESS_SERVICE, SERVING_SERVICE, Kind
from serving.net.cluster.kube import KubeCluster
from tests.integration.api_server import served
from tests.integration.fake_node import a_service, a_world, ready

# No activator of this machine has it: the port of one that runs is asked, and answers.
NOWHERE = 1


async def test_a_revision_has_its_views_and_takes_them_with_it() -> None:
    cluster = MemoryCluster(admit=admit)
    await publish_activators(cluster, "knative-serving", inner_port=NOWHERE)
    # A control process that starts again finds it there.
    await publish_activators(cluster, "knative-serving", inner_port=NOWHERE)
    async with a_world(ControllerSettings(public_services=True), cluster=cluster) as world:
        writing = asyncio.create_task(ViewWriter(cluster).run())
        await cluster.create(SERVING_SERVICE, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        scale = await world.until(POD_AUTOSCALER, "hello-00001", ready)
        assert (scale["status"]["desiredScale"], scale["status"]["actualScale"]) == (1, 1)
        assert scale["status"]["observedGeneration"] == scale["metadata"]["generation"]
        path = await world.until(
            SERVERLESS_SERVICE, "hello-00001", lambda one: nested(one, "spec", "numActivators") == 1 and ready(one)
        )
        assert (path["spec"]["mode"], path["status"]["serviceName"]) == ("Proxy", "hello-00001")
        await cluster.delete(SERVING_SERVICE, "default", "hello")
        await world.until_gone(POD_AUTOSCALER, "hello-00001")
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


@pytest.mark.parametrize("kind", [POD_AUTOSCALER, SERVERLESS_SERVICE], ids=lambda kind: str(kind.plural))
async def test_the_api_rejects_writes_of_views(kind: Kind, tmp_path: Path) -> None:
    async with served(MemoryCluster(), tmp_path) as api, KubeCluster(str(api.kubeconfig)) as cluster:
        body = {"metadata": {"name": "x", "namespace": "default"}}
        with pytest.raises(ClusterError, match="read-only: the controller derives it from revisions"):
            await cluster.create(kind, body)
        assert (await cluster.list(kind)).items == []
