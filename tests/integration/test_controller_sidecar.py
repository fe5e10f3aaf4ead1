"""The queue-proxy containers that the controller process creates: their image, and required settings."""

import asyncio
import base64
import os
import sys
from pathlib import Path

import pytest

from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, POD, SECRET, SERVING_SERVICE
from serving.net.cluster.kube import KubeCluster
from serving.net.wire.tokens import revision_token
from tests.eventually import until
from tests.integration.api_server import Served, served
from tests.integration.test_controller_digests import SHA, Registry, serving_images
from tests.tidy.sources import ROOT

SYSTEM = "knative-serving"
# The name of the Secret with the token of the dashboard.
ACTIONS = "actions"


async def started(api: Served, folder: Path, **variables: str) -> asyncio.subprocess.Process:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SERVING_")},
        "KUBECONFIG": str(api.kubeconfig),
        "SERVING_CONTROLLER_METRICS_ADDRESS": "127.0.0.1:0",
        "SERVING_CONTROLLER_SIDECAR_ENABLED": "true",
        "SERVING_KEY_FILE": str(folder / "key"),
        "SERVING_POD_NAME": "controller-1",
        **variables,
    }
    (folder / "key").write_bytes(b"k" * 32)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "serving.controller.main", cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def deployed(store: MemoryCluster, name: str = "hello", image: str = "dev.local/app") -> Object:
    """Create a service; return its first Deployment."""
    service = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
    }
    listing = await store.list(DEPLOYMENT)
    async with store.watch(DEPLOYMENT, resource_version=listing.resource_version) as events, asyncio.timeout(60):
        await store.create(SERVING_SERVICE, service)
        async for event in events:
            if event.object["metadata"]["name"].startswith(name):
                return event.object
    raise AssertionError("the watch ended")


async def test_queue_proxy_image_defaults_to_image_of_controller(tmp_path: Path) -> None:
    store = MemoryCluster(admit=admit)
    own = {"metadata": {"name": "controller-1", "namespace": SYSTEM}}
    await store.create(POD, {**own, "spec": {"containers": [{"name": "controller", "image": "registry.example/s:7"}]}})
    async with served(store, tmp_path) as api, serving_images(Registry()) as image:
        controller = await started(api, tmp_path)
        try:
            resource = await deployed(store)
            by_tag = await deployed(store, "tagged", image)
        finally:
            controller.terminate()
            await controller.communicate()
    app = by_tag["spec"]["template"]["spec"]["containers"][1]
    assert app["image"] == f"{image.removesuffix(':1')}@{SHA}"
    proxy = resource["spec"]["template"]["spec"]["containers"][0]
    assert (proxy["name"], proxy["image"]) == ("queue-proxy", "registry.example/s:7")
    values = {variable["name"]: variable.get("value") for variable in proxy["env"]}
    assert values["SERVING_POD_STATS_URL"] == "ws://autoscaler.knative-serving.svc.cluster.local.:6081/stats"


async def test_changed_queue_proxy_image_in_config_map_applies_without_restart(tmp_path: Path) -> None:
    store = MemoryCluster(admit=admit)
    own = {"metadata": {"name": "controller-1", "namespace": SYSTEM}}
    await store.create(POD, {**own, "spec": {"containers": [{"name": "controller", "image": "registry.example/s:7"}]}})
    settings = {"metadata": {"name": "config-deployment", "namespace": SYSTEM}}
    await store.create(CONFIG_MAP, {**settings, "data": {"queue-sidecar-image": "registry.example/mine:1"}})
    async with served(store, tmp_path) as api:
        controller = await started(api, tmp_path)
        try:
            images = [image_of(await deployed(store, "first"))]
            for number, image in enumerate(("registry.example/mine:2", None)):
                patch = {"data": {"queue-sidecar-image": image}}
                await store.patch(CONFIG_MAP, SYSTEM, "config-deployment", patch=patch)
                await reported(api, number + 1)
                images.append(image_of(await deployed(store, f"after-{number}")))
        finally:
            controller.terminate()
            await controller.communicate()
    assert images == ["registry.example/mine:1", "registry.example/mine:2", "registry.example/s:7"]


async def test_controller_upgrade_does_not_change_existing_deployments(tmp_path: Path) -> None:
    store = MemoryCluster(admit=admit)
    own = {"metadata": {"name": "controller-1", "namespace": SYSTEM}}
    await store.create(POD, {**own, "spec": {"containers": [{"name": "controller", "image": "registry.example/s:7"}]}})
    templates: dict[str, Object] = {}
    async with served(store, tmp_path) as api:
        for version in (7, 8):
            image = {"spec": {"containers": [{"name": "controller", "image": f"registry.example/s:{version}"}]}}
            await store.patch(POD, SYSTEM, "controller-1", patch=image)
            controller = await started(api, tmp_path)
            try:
                # The second service is reconciled after all existing objects.
                await deployed(store, f"service-{version}")
            finally:
                controller.terminate()
                await controller.communicate()
            for deployment in (await store.list(DEPLOYMENT)).items:
                name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
                assert templates.setdefault(name, template) == template
    assert [template["spec"]["containers"][0]["image"] for template in templates.values()] == [
        "registry.example/s:7",
        "registry.example/s:8",
    ]


def image_of(deployment: Object) -> str:
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


async def reported(api: Served, count: int) -> None:
    """Wait for `count` Events of the controller about changed settings."""
    async with KubeCluster(str(api.kubeconfig)) as client:

        async def is_there() -> bool:
            events = (await client.list(EVENT, SYSTEM)).items
            return sum(event.get("count") or 1 for event in events if event["reason"] == "SettingsChanged") >= count

        await until(is_there)


async def test_controller_without_key_file_creates_secrets_of_daemons(tmp_path: Path) -> None:
    store = MemoryCluster(admit=admit)
    own = {"metadata": {"name": "controller-1", "namespace": SYSTEM}}
    await store.create(POD, {**own, "spec": {"containers": [{"name": "controller", "image": "registry.example/s:7"}]}})
    async with served(store, tmp_path) as api:
        controller = await started(api, tmp_path, SERVING_KEY_FILE="", SERVING_ACTIONS_TOKEN_SECRET=ACTIONS)
        try:
            resource = await deployed(store)
        finally:
            controller.terminate()
            await controller.communicate()
    secrets = {secret["metadata"]["name"]: secret["data"] for secret in (await store.list(SECRET, SYSTEM)).items}
    assert secrets.keys() == {"serving-key", "serving-query-token", "serving-inner-authority", ACTIONS}
    values = {
        variable["name"]: variable.get("value")
        for variable in resource["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    token = revision_token(base64.b64decode(secrets["serving-key"]["key"]), namespace="default", revision="hello-00001")
    assert token in values.values(), "the queue-proxy's token is derived from that key"


@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ({"SERVING_POD_NAME": ""}, "environment SERVING_POD_NAME: is missing; expected this pod's name"),
        ({}, "there is no pod controller-1"),
    ],
)
async def test_missing_pod_name_or_pod_is_reported_and_exits_with_2(
    tmp_path: Path, variables: dict[str, str], reported: str
) -> None:
    store = MemoryCluster(admit=admit)
    async with served(store, tmp_path) as api:
        controller = await started(api, tmp_path, **variables)
        async with asyncio.timeout(60):
            _, log = await controller.communicate()
    assert controller.returncode == 2
    assert reported in log.decode()
