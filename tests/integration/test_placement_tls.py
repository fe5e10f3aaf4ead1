"""The extender over TLS, with a reloaded certificate and with client certificates; and its bind call."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from serving.core.model.errors import InvalidCertificate
from serving.core.settings.placement import ExtenderTlsSettings, PlacementSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kube import KubeCluster
from serving.nodes.extender.main import PlacementDaemon
from tests.integration.daemons import started

_ARGS = {"PodName": "p", "PodNamespace": "blue", "PodUID": "u", "Node": "a"}


def write(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))


@contextlib.asynccontextmanager
async def extender(settings: PlacementSettings, cluster: object = None) -> AsyncIterator[str]:
    """A running daemon; yields its URL."""
    daemon = PlacementDaemon(settings, cluster or MemoryCluster())  # type: ignore[arg-type]
    async with started(daemon):
        yield "{}://{}:{}".format("https" if settings.tls.paths else "http", *daemon.address)


async def is_served(url: str, authority: trustme.CA, *, client: trustme.LeafCert | None = None) -> bool:
    """Whether a client that trusts the authority receives a response on a new connection."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.configure_cert(context)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz", ssl=context) as response:
            return response.status in (200, 503)
    except (aiohttp.ClientError, ssl.SSLError, ConnectionError):
        return False


async def test_changed_certificate_is_served_and_invalid_one_is_ignored(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    write(first, tmp_path)
    tls = ExtenderTlsSettings(
        certificate_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"), reload_period_s=0.05
    )
    async with extender(PlacementSettings(tls=tls, listen_address="127.0.0.1:0", load_period_s=0.0)) as url:
        assert await is_served(url, first)
        assert not await is_served(url, second)
        write(second, tmp_path)
        async with asyncio.timeout(60):
            while not await is_served(url, second):  # noqa: ASYNC110 - asked as a caller would
                await asyncio.sleep(0.02)
        (tmp_path / "key.pem").write_text("nonsense")
        await asyncio.sleep(0.2)
        assert await is_served(url, second)
        assert not await is_served(url, first)


async def test_callers_without_certificate_of_the_authority_are_rejected(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    write(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ExtenderTlsSettings(
        certificate_file=str(tmp_path / "cert.pem"),
        key_file=str(tmp_path / "key.pem"),
        client_ca_file=str(tmp_path / "ca.pem"),
    )
    async with extender(PlacementSettings(tls=tls, listen_address="127.0.0.1:0", load_period_s=0.0)) as url:
        assert not await is_served(url, authority)
        assert not await is_served(url, authority, client=other.issue_cert("scheduler"))
        assert await is_served(url, authority, client=authority.issue_cert("scheduler"))


@pytest.mark.parametrize("broken", ["cert.pem", "key.pem", "ca.pem"])
async def test_invalid_tls_files_at_start_raise_an_error(tmp_path: Path, broken: str) -> None:
    authority = trustme.CA()
    write(authority, tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / broken).write_text("nonsense")
    tls = ExtenderTlsSettings(
        certificate_file=str(tmp_path / "cert.pem"),
        key_file=str(tmp_path / "key.pem"),
        client_ca_file=str(tmp_path / "ca.pem"),
    )
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidCertificate, match=r"\.pem")):
        async with extender(PlacementSettings(tls=tls, listen_address="127.0.0.1:0")):
            pass


@contextlib.asynccontextmanager
async def server(status: int) -> AsyncIterator[tuple[str, list[tuple[str, object]]]]:
    """An API server that responds to bindings with a status; yields its URL and the received bindings."""
    bindings: list[tuple[str, object]] = []

    async def create(request: web.Request) -> web.Response:
        bindings.append((request.path, await request.json()))
        response = {"kind": "Status", "status": "Failure", "message": "pod p is already assigned", "reason": "Conflict"}
        return web.json_response({"kind": "Status", "status": "Success"} if status < 400 else response, status=status)

    application = web.Application()
    application.router.add_post("/{path:.*}", create)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", bindings
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def kube(address: str, folder: Path) -> AsyncIterator[KubeCluster]:
    """A client of an API server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "here", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    cluster = KubeCluster(folder / "kubeconfig")
    try:
        yield cluster
    finally:
        await cluster.close()


async def bind(url: str, body: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/bind", data=json.dumps(body)) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(("status", "error"), [(201, ""), (409, "pod p is already assigned")])
async def test_bind_call_creates_a_binding(status: int, error: str, tmp_path: Path) -> None:
    settings = PlacementSettings(binds=True, listen_address="127.0.0.1:0", load_period_s=0.0)
    async with (
        server(status) as (address, bindings),
        kube(address, tmp_path) as cluster,
        extender(settings, cluster) as url,
    ):
        assert await bind(url, _ARGS) == (200, json.dumps({"Error": error}, separators=(",", ":")))
        path, body = bindings[0]
        assert path == "/api/v1/namespaces/blue/bindings"
        assert body == {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": "blue", "uid": "u"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "a"},
        }


async def test_bind_is_rejected_if_disabled_or_malformed() -> None:
    async with extender(PlacementSettings(listen_address="127.0.0.1:0", load_period_s=0.0)) as url:
        status, text = await bind(url, _ARGS)
        assert (status, "does not bind pods" in text) == (200, True)
        wrong_calls: list[object] = [[], {**_ARGS, "Node": ""}, {"PodName": "p"}]
        for wrong in wrong_calls:
            status, text = await bind(url, wrong)
            assert (status, "ExtenderBindingArgs" in text) == (400, True)
