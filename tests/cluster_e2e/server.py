"""The server that the suite runs against, and the accounts of the daemons on it.

``SERVING_TEST_KUBECONFIG`` names one: then the definitions, accounts and Roles of ``config/`` are applied to it, and each
daemon has the token of its own account. Without it there is our own API server, which knows no accounts.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from serving.cli.api import Api
from serving.cli.install import Installation
from serving.cli.tree import Wanted, objects_of, tree_folder
from tests.tidy.sources import ROOT

__all__ = ["NAMESPACE", "Server", "is_real", "started"]

NAMESPACE = "knative-serving"
_VARIABLE = "SERVING_TEST_KUBECONFIG"
_NEEDED = {"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
_NEEDED |= {"Role", "RoleBinding", "ConfigMap"}
_TOKEN_S = 3600


def is_real() -> bool:
    """Whether the server is somebody else's."""
    return bool(os.environ.get(_VARIABLE))


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server. ``kubeconfig`` is the suite's own, with all rights."""

    kubeconfig: Path
    host: str
    port: int
    node: str

    async def kubeconfig_of(self, daemon: str, folder: Path, *, port: int) -> Path:
        """A kubeconfig through a gate at a port, with a daemon's own account where there are accounts."""
        config: dict[str, Any] = yaml.safe_load(self.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        url = urlsplit(cluster["server"])
        cluster["server"] = url._replace(netloc=f"127.0.0.1:{port}").geturl()
        if url.scheme == "https":
            cluster["tls-server-name"] = self.host
        if is_real():
            config["users"][0]["user"] = {"token": await asyncio.to_thread(self._token, daemon)}
        path = folder / f"{daemon}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _token(self, account: str) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        request = {"spec": {"expirationSeconds": _TOKEN_S}}
        answer = Api(kubeconfig=self.kubeconfig).done("POST", path, request)
        return str(answer["status"]["token"])


@contextlib.asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Server]:
    """The server that is named, prepared; or our own, while the context lasts."""
    if is_real():
        kubeconfig = Path(os.environ[_VARIABLE])
        objects = [one for one in objects_of(tree_folder(), Wanted()) if one["kind"] in _NEEDED]
        installation = Installation(Api(kubeconfig=kubeconfig), objects)
        await asyncio.to_thread(installation.check)
        await asyncio.to_thread(installation.apply)
        yield _server(kubeconfig, node="serving-e2e")
        return
    log = (folder / "server.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.cluster_e2e.own_server", str(folder)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n", (folder / "server.log").read_text()
        yield _server(folder / "kubeconfig", node="local")
    finally:
        process.stdin.close()
        await process.wait()
        log.close()


def _server(kubeconfig: Path, *, node: str) -> Server:
    config = yaml.safe_load(kubeconfig.read_text())
    url = urlsplit(config["clusters"][0]["cluster"]["server"])
    return Server(kubeconfig=kubeconfig, host=url.hostname or "", port=url.port or 443, node=node)
