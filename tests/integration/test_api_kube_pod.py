"""The kube adapter in a pod: the API server of the environment, with the token of the service account."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from serving.core.model.errors import Forbidden, Unavailable
from serving.home.state import ApiCertificate
from serving.net.cluster import sessions
from serving.net.cluster.kinds import POD
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.localserver import TokenServer
from serving.net.cluster.podserver import HOST_VARIABLE, PORT_VARIABLE, pod_server
from serving.net.cluster.sessions import TokenSession


class Account:
    """A server that accepts only the newest token, and the volume of a pod's service account."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, ""
        self.accepted = ""
        self.tokens: list[str] = []

    def replace(self, token: str) -> None:
        """Replace the token, as the kubelet does."""
        (self.folder / "token").write_text(token)
        self.accepted = token

    def read(self) -> TokenServer:
        """The server, as a pod reads it."""
        url = urlsplit(self.url)
        environment = {HOST_VARIABLE: str(url.hostname), PORT_VARIABLE: str(url.port)}
        return pod_server(environment, self.folder)

    async def respond(self, request: web.Request) -> web.Response:
        """An empty list of pods."""
        self.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        if self.tokens[-1] != self.accepted:
            return web.json_response({"message": "Unauthorized"}, status=401)
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Account]:
    """A running server with a first token."""
    account = Account(folder)
    certificate = ApiCertificate(folder / "certificates")
    (folder / "ca.crt").write_text(certificate.make())
    account.replace("first")
    application = web.Application()
    application.router.add_get("/api/v1/pods", account.respond)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.server_context()).start()
        account.url = "https://{}:{}".format(*runner.addresses[0])
        yield account
    finally:
        await runner.cleanup()


async def test_pod_client_needs_no_library_and_rereads_its_rejected_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as account:
        monkeypatch.setattr(sessions, "pod_server", lambda _: account.read())
        # Makes the import of the package fail, as if it were not installed.
        monkeypatch.setitem(sys.modules, "kubernetes", None)
        async with KubeCluster(None) as cluster:
            assert (await cluster.list(POD)).items == []
            account.replace("second")
            with pytest.raises(Forbidden, match="Unauthorized"):
                await cluster.list(POD)
            assert (await cluster.list(POD)).items == []
    assert account.tokens == ["first", "first", "second"]


async def test_outdated_token_is_reread_and_missing_file_retains_last_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as account:
        monkeypatch.setattr(sessions, "pod_server", lambda _: account.read())
        monkeypatch.setattr(sessions, "_TOKEN_VALID_S", 0.0)
        async with KubeCluster(None) as cluster:
            await cluster.list(POD)
            account.replace("second")
            await cluster.list(POD)
            (tmp_path / "token").unlink()
            await cluster.list(POD)
    assert account.tokens == ["first", "second", "second"]


async def test_invalid_authority_certificate_is_reported() -> None:
    server = TokenServer(url="https://10.96.0.1:443", token="t", authority="none")  # noqa: S106 - of a test
    with pytest.raises(Unavailable, match=r"authority of https://10\.96\.0\.1:443"):
        TokenSession(server, read=lambda: None, valid_s=0.0, trust_env=False)
