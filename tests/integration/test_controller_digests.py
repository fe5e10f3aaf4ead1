"""The controller resolves image digests at a registry: tokens, pull secrets, rejections and failures."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from serving.controller.io import digest_resolver
from serving.controller.io.digest_resolver import DigestResolver
from serving.controller.revisions.digests import Resolution
from serving.core.model.imagereference import parse_reference
from serving.core.model.objects import Key, Object
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import SECRET, SERVICE_ACCOUNT
from serving.net.cluster.registry import RegistryError, digest_of
from tests.unit.controller.builders import a_revision

pytestmark = pytest.mark.asyncio

SHA = "sha256:" + "a" * 64
BODY = b'{"schemaVersion": 2}'
PAIR = base64.b64encode(b"me:hush").decode()


class Registry:
    """A registry with one image. ``auth`` is the header for which it issues a token, "" for anonymous clients.

    ``scheme`` is the scheme of its challenge.
    """

    def __init__(self, *, auth: str = "", scheme: str = "Bearer", has_digest: bool = True) -> None:
        self.auth, self.scheme, self.has_digest = auth, scheme, has_digest
        self.status = 200
        self.host = ""

    async def manifest(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.Response(status=self.status)
        expected = "Bearer t" if self.scheme == "Bearer" else f"Basic {PAIR}"
        if self.auth and request.headers.get("Authorization") != expected:
            realm = f'{self.scheme} realm="http://{self.host}/token",service="r",scope="repository:app:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": realm})
        if "vnd.oci.image.index" not in request.headers["Accept"]:
            return web.Response(status=406)
        return web.Response(body=BODY, headers={"Docker-Content-Digest": SHA} if self.has_digest else {})

    async def token(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != self.auth or request.query["scope"] != "repository:app:pull":
            return web.Response(status=401)
        return web.json_response({"token": "t"})


@asynccontextmanager
async def serving_images(registry: Registry) -> AsyncIterator[str]:
    """Serve a registry without TLS; yield the name of its image."""
    app = web.Application()
    app.router.add_get("/v2/app/manifests/1", registry.manifest)
    app.router.add_get("/token", registry.token)
    async with TestServer(app) as server:
        registry.host = f"127.0.0.1:{server.port}"
        yield f"{registry.host}/app:1"


async def digest_at(image: str, auth: str = "") -> str:
    async with aiohttp.ClientSession() as session:
        return await digest_of(session, parse_reference(image), auth=auth)


@pytest.mark.parametrize(
    ("registry", "auth", "digest"),
    [
        (Registry(), "", SHA),
        (Registry(auth=f"Basic {PAIR}"), PAIR, SHA),
        (Registry(auth=f"Basic {PAIR}", scheme="Basic"), PAIR, SHA),
        (Registry(has_digest=False), "", "sha256:c5d902c53b4afcf32ad746fd9d696431650d3fbe8f7b10ca10519543fefd772c"),
    ],
)
async def test_registry_digest_of_tag_is_resolved(registry: Registry, auth: str, digest: str) -> None:
    async with serving_images(registry) as image:
        assert await digest_at(image, auth) == digest


@pytest.mark.parametrize(
    ("registry", "status", "is_refusal"),
    [
        (Registry(auth=f"Basic {PAIR}"), 200, True),
        (Registry(auth=f"Basic {PAIR}", scheme="Basic"), 200, True),
        (Registry(), 403, True),
        (Registry(), 404, False),
    ],
)
async def test_registry_error_distinguishes_rejection_from_failure(
    registry: Registry, status: int, is_refusal: bool
) -> None:
    registry.status = status
    async with serving_images(registry) as image:
        with pytest.raises(RegistryError) as raised:
            await digest_at(image)
    assert raised.value.is_refusal is is_refusal


async def test_unreachable_registry_raises_error() -> None:
    with pytest.raises(RegistryError):
        await digest_at("127.0.0.1:1/app:1")


class Resolutions:
    """Collects the resolutions that a resolver reports."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Resolution] = asyncio.Queue()

    def __call__(self, revision: Key, uid: str, resolution: Resolution) -> None:
        assert (revision, uid) == (("default", "hello-00001"), "uid-of-revision-hello-00001")
        self.queue.put_nowait(resolution)


def secret(host: str) -> Object:
    content = json.dumps({"auths": {host: {"auth": PAIR}}}).encode()
    return {
        "metadata": {"namespace": "default", "name": "pull"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(content).decode()},
    }


def of_pod(**spec: object) -> Object:
    revision = a_revision()
    return {**revision, "spec": {**revision["spec"], **spec}}


@asynccontextmanager
async def resolving(
    cluster: MemoryCluster,
    revision: Object,
    image: str,
    settings: Callable[[], ControllerSettings] = ControllerSettings,
) -> AsyncIterator[Resolutions]:
    resolutions = Resolutions()
    resolver = DigestResolver(cluster, settings=settings, resolved=resolutions)
    running = asyncio.create_task(resolver.run())
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        resolver.start(revision, [image])
        resolver.start(revision, [image])
        yield resolutions
        resolver.forget(("default", "hello-00001"))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_pull_secrets_of_pod_or_of_its_service_account_are_used() -> None:
    async with serving_images(Registry(auth=f"Basic {PAIR}")) as image:
        cluster = MemoryCluster(admit=admit)
        await cluster.create(SECRET, secret(image.partition("/")[0]))
        account = {"metadata": {"namespace": "default", "name": "own"}, "imagePullSecrets": [{"name": "pull"}]}
        await cluster.create(SERVICE_ACCOUNT, account)
        pinned = Resolution(images={image: f"{image.removesuffix(':1')}@{SHA}"})
        for spec in ({"imagePullSecrets": [{"name": "pull"}]}, {"serviceAccountName": "own"}):
            async with resolving(cluster, of_pod(**spec), image) as resolutions:
                assert await resolutions.queue.get() == pinned


async def test_rejected_resolution_retains_the_tag_with_reason() -> None:
    async with (
        serving_images(Registry(auth=f"Basic {PAIR}")) as image,
        resolving(MemoryCluster(admit=admit), of_pod(imagePullSecrets=[{"name": "no"}]), image) as resolutions,
    ):
        resolution = await resolutions.queue.get()
    assert resolution.images == {image: ""}
    assert "nodes pull the tag" in resolution.refused
    assert not resolution.is_pending


async def test_failed_resolution_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_resolver, "_RETRY_FIRST_S", 0.01)
    registry = Registry()
    registry.status = 404
    async with serving_images(registry) as image, resolving(MemoryCluster(admit=admit), of_pod(), image) as resolutions:
        resolution = await resolutions.queue.get()
        assert resolution.failure.startswith(f'Unable to fetch image "{image}": failed to resolve image to digest: ')
        registry.status = 200
        while (resolution := await resolutions.queue.get()).failure:
            pass
        assert resolution.images == {image: f"{image.removesuffix(':1')}@{SHA}"}


async def test_silent_registry_fails_resolution_after_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        image = f"127.0.0.1:{silent.getsockname()[1]}/app:1"
        settings = ControllerSettings(digest_resolution_timeout_s=0.05)
        async with resolving(MemoryCluster(admit=admit), of_pod(), image, lambda: settings) as resolutions:
            assert "has not answered within 0.05 s" in (await resolutions.queue.get()).failure
