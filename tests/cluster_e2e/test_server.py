"""The suite on a given kubeconfig, and the objects that it applies before the daemons start."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from serving.core.model.errors import NotFound, Unavailable
from serving.core.model.objects import Object
from serving.home.apiserver.server import ApiOptions, application
from serving.home.controllers.scheduler import refusal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NAMESPACE as NAMESPACES
from serving.net.cluster.kinds import NODE, SECRET
from serving.net.cluster.kube import KubeCluster
from serving.net.wire.tokens import KEY_SECRET
from tests.cluster_e2e import server as module
from tests.cluster_e2e.gate import opened
from tests.cluster_e2e.server import Server, needed_objects
from tests.cluster_e2e.stage import KEY, SYSTEM, key_set
from tests.cluster_e2e.status_kubelet import StatusKubelet
from tests.cluster_e2e.test_rights import DAEMONS

NAME = "api.example"
TOKEN = "suite"  # noqa: S105 - a server that lives for a test


@contextlib.asynccontextmanager
async def over_tls(authority: trustme.CA) -> AsyncIterator[int]:
    """The API at a port that speaks TLS under a name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(context)
    runner = web.AppRunner(application(MemoryCluster(), ApiOptions(token=TOKEN)))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, authority: trustme.CA) -> Path:
    """A kubeconfig in the form of common tools: with another cluster first, and a file beside it."""
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    clusters = {"other": {"server": "http://127.0.0.1:1"}, "own": {"server": f"https://{NAME}:6443"}}
    clusters["own"]["certificate-authority"] = "ca.crt"
    users = {"other": {"token": "wrong"}, "me": {"token": TOKEN}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": "work", "context": {"cluster": "own", "user": "me"}}],
        "current-context": "work",
    }
    path = folder / "theirs"
    path.write_text(json.dumps(content))
    return path


async def test_a_daemon_reaches_a_server_of_tls_through_the_gate_by_that_servers_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its server has no accounts, whichever the suite runs against.
    monkeypatch.delenv("SERVING_TEST_KUBECONFIG", raising=False)
    authority = trustme.CA()
    (tmp_path / "daemons").mkdir()
    async with over_tls(authority) as port, opened("127.0.0.1", port) as gate:
        server = Server(kubeconfig=kubeconfig(tmp_path, authority), host=NAME, port=port, node="n")
        path = await server.kubeconfig_of("controller", tmp_path / "daemons", port=gate.port)
        async with KubeCluster(path) as cluster:
            assert (await cluster.list(NAMESPACES)).items
        path.write_text(path.read_text().replace(NAME, "another.example"))
        async with KubeCluster(path) as cluster:
            with pytest.raises(Unavailable, match="certificate"):
                await cluster.list(NAMESPACES)


def test_every_daemon_has_an_account_on_a_foreign_server() -> None:
    accounts = {
        needed_resource["metadata"]["name"]
        for needed_resource in needed_objects()
        if needed_resource["kind"] == "ServiceAccount"
    }
    assert set(DAEMONS) <= accounts


async def test_one_process_at_a_time_writes_to_a_foreign_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_TEST_KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(AssertionError, match="without -n"):
        async with module.started(tmp_path):
            pass


@pytest.mark.parametrize(("is_named", "node"), [(True, "serving-e2e"), (False, None)])
def test_pods_on_a_foreign_server_go_to_the_node_of_the_suite(
    monkeypatch: pytest.MonkeyPatch, *, is_named: bool, node: str | None
) -> None:
    monkeypatch.setenv("SERVING_TEST_KUBECONFIG", "a file" if is_named else "")
    assert module.only_here().get("nodeSelector", {}).get("kubernetes.io/hostname") == node


async def test_the_node_of_the_suite_takes_only_pods_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_TEST_KUBECONFIG", "a file")
    cluster = MemoryCluster()
    kubelet = StatusKubelet(cluster, "serving-e2e")
    beating = asyncio.create_task(kubelet.beat())
    await kubelet.until_schedulable()
    node = await cluster.get(NODE, "", "serving-e2e")
    # A server taints the node until its controllers have seen it.
    not_ready = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    patch = {"spec": {"taints": [*node["spec"]["taints"], not_ready]}}
    tainted = await cluster.patch(NODE, "", "serving-e2e", patch=patch)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(kubelet.until_schedulable(), 0.1)
    beating.cancel()
    pods: list[Object] = [{"spec": {}}, {"spec": module.only_here()}]
    assert [refusal(node, pod) == "" for pod in pods] == [False, True]
    assert [refusal(tainted, pod) == "" for pod in pods] == [False, False]


@pytest.mark.parametrize("before", [{"key": "dGhlaXJz", "other": "a2VwdA=="}, {"other": "a2VwdA=="}])
async def test_a_foreign_server_has_its_own_key_again_after_a_stage_that_fails(before: dict[str, str]) -> None:
    cluster = MemoryCluster()
    await cluster.create(SECRET, {"metadata": {"name": KEY_SECRET, "namespace": SYSTEM}, "data": before})

    async def fail() -> None:
        async with key_set(cluster):
            during = (await cluster.get(SECRET, SYSTEM, KEY_SECRET))["data"]
            assert during == {**before, "key": base64.b64encode(KEY).decode()}
            raise RuntimeError("a test fails")

    with pytest.raises(RuntimeError, match="a test fails"):
        await fail()
    assert (await cluster.get(SECRET, SYSTEM, KEY_SECRET))["data"] == before


async def test_a_foreign_server_without_a_key_has_none_after_a_stage() -> None:
    cluster = MemoryCluster()
    async with key_set(cluster):
        assert (await cluster.get(SECRET, SYSTEM, KEY_SECRET))["data"] == {"key": base64.b64encode(KEY).decode()}
    with pytest.raises(NotFound):
        await cluster.get(SECRET, SYSTEM, KEY_SECRET)
