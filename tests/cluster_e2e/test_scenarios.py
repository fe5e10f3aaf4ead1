"""A user's view of a cluster, with ready pods that carry no traffic."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.net.cluster.kinds import CONFIGURATION, DEPLOYMENT, POD, REVISION, ROUTE, SERVICE, SERVING_SERVICE
from tests.cluster_e2e.server import SPACE, is_real
from tests.cluster_e2e.stage import Stage, is_ready, service, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("cluster")) as one:
        yield one


async def test_a_service_becomes_ready_with_all_that_stands_beneath_it(stage: Stage) -> None:
    await stage.apply(service("hello"))
    found = await stage.ready("hello")
    assert found["status"]["latestReadyRevisionName"] == "hello-00001"
    assert found["status"]["url"].startswith("http://hello.serving-e2e.")
    for kind, name in ((CONFIGURATION, "hello"), (ROUTE, "hello"), (REVISION, "hello-00001")):
        assert is_ready(await stage.cluster.get(kind, SPACE, name))
    await stage.scaled("hello-00001", 1)


async def test_a_new_version_takes_over_and_traffic_is_split_as_asked(stage: Stage) -> None:
    await stage.apply(service("split"))
    await stage.ready("split")
    changed = await stage.apply(service("split", version="2"))
    found = await stage.ready("split", generation=changed["metadata"]["generation"])
    assert found["status"]["latestReadyRevisionName"] == "split-00002"
    traffic = [{"revisionName": "split-00001", "percent": 80, "tag": "old"}, {"latestRevision": True, "percent": 20}]
    changed = await stage.apply(service("split", version="2", traffic=traffic))
    found = await stage.ready("split", generation=changed["metadata"]["generation"])
    shares = {one["revisionName"]: one["percent"] for one in found["status"]["traffic"]}
    assert shares == {"split-00001": 80, "split-00002": 20}
    assert any(one.get("url", "").startswith("http://old-split.") for one in found["status"]["traffic"])


async def test_a_version_that_never_gets_ready_takes_no_traffic(stage: Stage) -> None:
    await stage.apply(service("roll"))
    await stage.ready("roll")
    stage.kubelet.hold = True
    await stage.apply(service("roll", version="2"))
    await stage.until(SERVING_SERVICE, "roll", lambda one: one["status"]["latestCreatedRevisionName"] == "roll-00002")
    route = await stage.until(ROUTE, "roll", lambda one: one["status"].get("traffic"))
    assert [one["revisionName"] for one in route["status"]["traffic"]] == ["roll-00001"]
    await stage.kubelet.release()
    found = await stage.until(SERVING_SERVICE, "roll", is_ready)
    assert found["status"]["latestReadyRevisionName"] == "roll-00002"


async def test_a_gitops_tool_sees_no_difference(stage: Stage) -> None:
    """Argo CD compares as ``kubectl diff --server-side``, and takes another manager of a field of the spec for a drift."""
    if not is_real() or not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed, or sends no token to a server without TLS")
    manifest = json.dumps(service("gitops"))
    argo = ("--server-side", "--field-manager=argocd")

    async def kubectl(command: str, *options: str) -> str:
        given = ["kubectl", command, *options, "-f", "-"]
        process = await asyncio.create_subprocess_exec(
            *given,
            env={**os.environ, "KUBECONFIG": str(stage.server.kubeconfig)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(manifest.encode())
        assert process.returncode == 0, said.decode()
        return said.decode()

    await kubectl("apply", *argo)
    before = await stage.ready("gitops")
    await kubectl("apply", *argo)
    after = await stage.ready("gitops")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    assert await kubectl("diff", *argo) == ""
    found = json.loads(await kubectl("get", "-o=json", "--show-managed-fields"))
    (live,) = found.get("items", [found])
    owners = {one["manager"] for one in live["metadata"]["managedFields"] if one.get("subresource") != "status"}
    assert owners == {"argocd"}


async def test_a_deleted_service_leaves_nothing(stage: Stage) -> None:
    await stage.apply(service("gone"))
    await stage.ready("gone")
    await stage.cluster.delete(SERVING_SERVICE, SPACE, "gone")
    names = ((CONFIGURATION, "gone"), (ROUTE, "gone"), (REVISION, "gone-00001"), (DEPLOYMENT, "gone-00001-deployment"))
    for kind, name in (*names, (SERVICE, "gone-00001-private")):
        await stage.until_gone(kind, name)
    await stage.until_none(POD, label_selector="app=gone-00001")
