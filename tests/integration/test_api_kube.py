"""The kube adapter against servers that respond, fail, hang or disappear; tests/conformance covers the port."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from serving.core.model.errors import Forbidden, Gone, Invalid, NotFound, NotLeading, Unavailable
from serving.home.admission.admission import admit
from serving.home.state import kubeconfig
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kinds import CONFIG_MAP, POD, SERVING_SERVICE
from serving.net.cluster.kube import KubeCluster, KubeTimeouts
from serving.net.metrics.server import running
from tests.integration.api_server import served

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USUAL = KubeTimeouts()

# A kubeconfig with this comment is YAML, like those of other clusters, and is read by `kubernetes.aio`.
_YAML = "# YAML\n"
_BOTH_SESSIONS = pytest.mark.parametrize("comment", ["", _YAML], ids=["local", "library"])

_UNAVAILABLE = {"kind": "Status", "status": "Failure", "message": "etcd is away", "reason": "x", "code": 503}


def config_map(name: str = "m") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": {"a": "b"}}


@pytest.fixture(params=["", _YAML], ids=["local", "library"])
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[KubeCluster]:
    store = MemoryCluster(admit=admit)
    async with served(store, tmp_path) as api:
        with api.kubeconfig.open("a") as file:
            file.write(request.param)
        async with KubeCluster(api.kubeconfig) as kube_cluster:
            yield kube_cluster


@contextlib.asynccontextmanager
async def responding(
    handler: Handler, folder: Path, timeouts: KubeTimeouts = USUAL, *, comment: str = ""
) -> AsyncIterator[KubeCluster]:
    """The adapter with a server that responds with `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    path = folder / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        path.write_text(kubeconfig(url, "t") + comment, encoding="utf-8")
        async with running(app, listener, shutdown_s=0.1), KubeCluster(path, timeouts=timeouts) as kube_cluster:
            yield kube_cluster


async def test_managed_fields_are_removed_from_objects(cluster: KubeCluster) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map())
    listing = await cluster.list(CONFIG_MAP, "default")
    async with cluster.watch(CONFIG_MAP, "default", resource_version="0") as events:
        event = await anext(events)
    for resource in (new_config_map, await cluster.get(CONFIG_MAP, "default", "m"), *listing.items, event.object):
        assert "managedFields" not in resource["metadata"]


async def test_invalid_object_error_contains_its_causes(cluster: KubeCluster) -> None:
    with pytest.raises(Invalid) as caught:
        await cluster.create(SERVING_SERVICE, {"metadata": {"name": "hello"}, "spec": {}})
    assert [problem.where for problem in caught.value.problems] == ["spec.template.spec.containers"]


async def test_object_name_is_escaped_in_url(cluster: KubeCluster) -> None:
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAP, "default", "../pods?x=1")


async def test_watch_delivers_a_large_object(cluster: KubeCluster) -> None:
    large = "x" * 1_000_000
    async with cluster.watch(CONFIG_MAP, resource_version=(await cluster.list(CONFIG_MAP)).resource_version) as events:
        await cluster.create(CONFIG_MAP, config_map() | {"data": {"a": large}})
        assert (await anext(events)).object["data"] == {"a": large}


async def test_watch_ends_when_its_server_stops(tmp_path: Path) -> None:
    store = MemoryCluster()
    async with contextlib.AsyncExitStack() as stack:
        async with served(store, tmp_path) as api:
            cluster = await stack.enter_async_context(KubeCluster(api.kubeconfig))
            version = (await cluster.list(CONFIG_MAP)).resource_version
            events = await stack.enter_async_context(cluster.watch(CONFIG_MAP, resource_version=version))
            reader = asyncio.create_task(_drain(events))
        assert await reader in {"ended", "unavailable"}


async def _drain(events: AsyncIterator[object]) -> str:
    try:
        async for _ in events:
            pass
    except Unavailable:
        return "unavailable"
    return "ended"


async def test_unreachable_server_raises_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(url, "t"), encoding="utf-8")
    async with KubeCluster(path) as cluster:
        with pytest.raises(Unavailable, match="GET /api/v1/pods"):
            await cluster.list(POD)


@pytest.mark.parametrize("text", ["", "clusters: 5", "[", "current-context: x"])
async def test_invalid_kubeconfig_raises_unavailable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Unavailable, match="no usable kubeconfig"):
        await KubeCluster(path).list(POD)


async def test_missing_kubeconfig_raises_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no usable kubeconfig"):
        await KubeCluster(tmp_path / "none").list(POD)


async def test_pod_without_service_account_raises_unavailable() -> None:
    with pytest.raises(Unavailable, match="no usable kubeconfig in this pod"):
        await KubeCluster(None).list(POD)


async def test_unresponsive_server_raises_unavailable_after_timeout(tmp_path: Path) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with responding(hang, tmp_path, KubeTimeouts(call_s=0.5)) as cluster:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await cluster.get(POD, "default", "p")
        with pytest.raises(Unavailable, match="did not answer in time"):
            async with cluster.watch(POD, resource_version="1"):
                pass


async def test_silent_watch_raises_unavailable_after_its_time(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        raise AssertionError

    short = KubeTimeouts(watch_s=1, watch_margin_s=0.5)
    async with responding(silent, tmp_path, short) as cluster, cluster.watch(POD, resource_version="1") as events:
        with pytest.raises(Unavailable):
            await anext(events)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"not json\n", Unavailable),
        (b'{"type":"PAINTED","object":{}}\n', Unavailable),
        (b'{"type":"ERROR","object":{"code":410,"message":"old"}}\n', Gone),
        (b'{"type":"ERROR","object":{"code":500,"message":"oh"}}\n', Unavailable),
    ],
)
async def test_invalid_or_error_watch_event_raises_matching_error(
    tmp_path: Path, body: bytes, expected: type[Exception]
) -> None:
    async def broken(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with responding(broken, tmp_path) as cluster, cluster.watch(POD, resource_version="1") as events:
        with pytest.raises(expected):
            await anext(events)


@_BOTH_SESSIONS
@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH"])
async def test_failed_call_is_sent_once_and_retains_the_message(
    tmp_path: Path, comment: str, method: str, status: int
) -> None:
    seen: list[str] = []

    async def fail(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        return web.json_response(_UNAVAILABLE | {"code": status}, status=status)

    calls: dict[str, Callable[[KubeCluster], Awaitable[object]]] = {
        "GET": lambda cluster: cluster.get(CONFIG_MAP, "default", "m"),
        "PUT": lambda cluster: cluster.replace(CONFIG_MAP, config_map()),
        "DELETE": lambda cluster: cluster.delete(CONFIG_MAP, "default", "m"),
        "POST": lambda cluster: cluster.create(CONFIG_MAP, config_map()),
        "PATCH": lambda cluster: cluster.patch(CONFIG_MAP, "default", "m", patch={}),
    }
    async with responding(fail, tmp_path, comment=comment) as cluster, asyncio.timeout(60):
        with pytest.raises(Unavailable, match="etcd is away"):
            await calls[method](cluster)
    assert seen == [method]


@_BOTH_SESSIONS
async def test_rejected_watch_is_opened_once(tmp_path: Path, comment: str) -> None:
    seen: list[str] = []

    async def fail(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        return web.json_response(_UNAVAILABLE, status=503)

    async with responding(fail, tmp_path, comment=comment) as cluster, asyncio.timeout(60):
        with pytest.raises(Unavailable, match="etcd is away"):
            async with cluster.watch(CONFIG_MAP, resource_version="1"):
                pass
    assert seen == ["GET"]


async def test_response_that_is_not_an_object_raises_unavailable(tmp_path: Path) -> None:
    async def odd(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"[]")

    async with responding(odd, tmp_path) as cluster:
        with pytest.raises(Unavailable, match="not a JSON object"):
            await cluster.get(POD, "default", "p")


async def test_wrong_token_raises_forbidden(tmp_path: Path) -> None:
    async with served(MemoryCluster(), tmp_path) as api:
        path = tmp_path / "other"
        path.write_text(kubeconfig(api.url, "other"), encoding="utf-8")
        async with KubeCluster(path) as cluster:
            with pytest.raises(Forbidden):
                await cluster.list(POD)


@_BOTH_SESSIONS
async def test_kubeconfig_is_read_again_after_its_token_is_rejected(tmp_path: Path, comment: str) -> None:
    good = ["first"]

    async def check(request: web.Request) -> web.Response:
        is_good = request.headers.get("Authorization", "").lower() == f"bearer {good[0]}"
        reply: dict[str, Any] = (
            {"items": [], "metadata": {}} if is_good else {"message": "no", "reason": "Unauthorized"}
        )
        return web.json_response(reply, status=200 if is_good else 401)

    async with responding(check, tmp_path, comment=comment) as cluster:
        path = tmp_path / "kubeconfig"
        path.write_text(path.read_text().replace('"t"', '"first"'))
        assert (await cluster.list(CONFIG_MAP)).items == []
        good[0] = "second"
        path.write_text(path.read_text().replace('"first"', '"second"'))
        with pytest.raises(Forbidden):
            await cluster.list(CONFIG_MAP)
        assert (await cluster.list(CONFIG_MAP)).items == []
        good[0] = "third"
        path.write_text(path.read_text().replace('"second"', '"third"'))
        with pytest.raises(Forbidden):
            async with cluster.watch(CONFIG_MAP, resource_version="1"):
                pass
        assert (await cluster.list(CONFIG_MAP)).items == []


async def test_proxy_environment_variable_is_ignored(cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert (await cluster.list(POD)).items == []


async def test_closed_cluster_reopens_on_next_call(cluster: KubeCluster) -> None:
    await cluster.list(POD)
    await cluster.close()
    assert (await cluster.list(POD)).items == []


@_BOTH_SESSIONS
async def test_fenced_write_is_not_sent_after_its_lease_ends(tmp_path: Path, comment: str) -> None:
    arrived: list[str] = []
    checks = iter([True, False, True, True, False])

    async def handle(request: web.Request) -> web.StreamResponse:
        arrived.append(request.headers["User-Agent"])
        return web.json_response(config_map())

    def check() -> None:
        if not next(checks):
            raise NotLeading("default/lease")

    async with responding(handle, tmp_path, comment=comment) as cluster:
        fenced = FencedCluster(cluster, check)
        for _ in range(2):
            # The lease is checked with the connection acquired, and again when the bytes are written.
            with pytest.raises(NotLeading):
                await fenced.create(CONFIG_MAP, config_map())
        assert arrived == []
        await cluster.create(CONFIG_MAP, config_map())
        await fenced.get(CONFIG_MAP, "default", "m")
        assert arrived == ["serving", "serving"], "unfenced writes and fenced reads are sent"
