"""The API server of the suite, and the accounts of the daemons on it.

``SERVING_TEST_KUBECONFIG`` names one: then the definitions, accounts and Roles of ``config/`` are applied to it, and
each daemon has the token of its own account. Without it there is our own API server, which knows no accounts.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import yaml

from serving.core.model.objects import Object
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.tree import InstallOptions, objects_of, path_of, tree_folder
from serving.tools.cli.system.availability import until_removed
from serving.tools.cli.system.install import Installation
from tests.tidy.sources import ROOT

NAMESPACE = "knative-serving"
SPACE = "serving-e2e"
HOST_NAME = "kubernetes.io/hostname"
# The suite's node on a real server runs only pods that tolerate this taint.
TAINT = {"key": "serving.dev/cluster-e2e", "effect": "NoSchedule"}
_NODE = "serving-e2e"
VARIABLE = "SERVING_TEST_KUBECONFIG"
_NEEDED = {"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
_NEEDED |= {"Role", "RoleBinding", "ConfigMap", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
_NEEDED |= {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
_TOKEN_S = 3600


def is_real() -> bool:
    """Whether the server is a real one, and not our own."""
    return bool(os.environ.get(VARIABLE))


def only_here() -> Object:
    """The part of a pod's spec that selects the suite's tainted node.

    The account is set for servers without the admission that adds it: a token is for a pod that names its account.
    """
    if not is_real():
        return {}
    tolerations = [{**TAINT, "operator": "Exists"}]
    return {"nodeSelector": {HOST_NAME: _NODE}, "tolerations": tolerations, "serviceAccountName": "default"}


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server. ``kubeconfig`` is the suite's own, with all rights."""

    kubeconfig: Path
    host: str
    port: int
    node: str

    async def kubeconfig_of(self, daemon: str, folder: Path, *, port: int) -> Path:
        """A kubeconfig through a gate at a port, with a daemon's own account where there are accounts."""
        config, cluster, user = _current(self.kubeconfig)
        url = urlsplit(cluster["server"])
        cluster["server"] = url._replace(netloc=f"127.0.0.1:{port}").geturl()
        if url.scheme == "https":
            cluster.setdefault("tls-server-name", self.host)
        if authority := cluster.get("certificate-authority"):
            # It is said from where the file is, and the new one is elsewhere.
            cluster["certificate-authority"] = str(self.kubeconfig.absolute().parent / authority)
        if is_real():
            user.clear()
            user["token"] = await asyncio.to_thread(self._token, daemon)
        path = folder / f"{daemon}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _token(self, account: str) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        request = {"spec": {"expirationSeconds": _TOKEN_S}}
        status, response = ApiClient(kubeconfig=self.kubeconfig).call("POST", path, request)
        assert status < 400, (path, response)
        return str(response["status"]["token"])


@contextlib.asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Server]:
    """The server that is named, prepared; or our own, while the context lasts."""
    if is_real():
        kubeconfig = Path(os.environ[VARIABLE])
        # The daemons of one stage would work on what is another's: there is one cluster, and they see all of it.
        assert "PYTEST_XDIST_WORKER" not in os.environ, f"with {VARIABLE} run these tests in one process, without -n"
        installation = Installation(ApiClient(kubeconfig=kubeconfig), needed_objects())
        await asyncio.to_thread(installation.check)
        await asyncio.to_thread(installation.apply)
        yield _server(kubeconfig, node=_NODE)
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


def all_objects() -> list[Object]:
    """The objects of ``config/`` with keda-http, and the account of the component placement."""
    placement = (tree_folder() / "components" / "placement" / "rbac.yaml").read_text()
    return [*objects_of(tree_folder(), InstallOptions(components=("keda-http",))), *yaml.safe_load_all(placement)]


def needed_objects() -> list[Object]:
    """Objects that the daemons need first."""
    return [resource for resource in all_objects() if resource["kind"] in _NEEDED]


@contextlib.contextmanager
def removed_at_end(api: ApiClient, objects: Sequence[Object], *, timeout_s: float = 240.0) -> Iterator[None]:
    """Remove these objects from a server at the end, with all objects of their kinds.

    Raises:
        AssertionError: if the server runs the system, whose daemons would work on the objects of the suite.
    """
    running = [
        path_of(resource) for resource in objects if resource["kind"] == "Deployment" and api.peek(path_of(resource))
    ]
    assert not running, f"this server runs {running[0]}; `serving install --uninstall` removes the system"
    try:
        yield
    finally:
        Installation(api, objects).remove(with_services=True)
        until_removed(api, objects, timeout_s=timeout_s)


def _current(kubeconfig: Path) -> tuple[Object, Object, Object]:
    """A kubeconfig, and of it the cluster and the user of its current context."""
    config: Object = yaml.safe_load(kubeconfig.read_text())

    def named(part: str, name: str) -> Object:
        resource: Object = next(entry for entry in config[f"{part}s"] if entry["name"] == name)[part]
        return resource

    context = named("context", config["current-context"])
    return config, named("cluster", context["cluster"]), named("user", context["user"])


def _server(kubeconfig: Path, *, node: str) -> Server:
    _, cluster, _ = _current(kubeconfig)
    url = urlsplit(cluster["server"])
    return Server(kubeconfig=kubeconfig, host=url.hostname or "", port=url.port or 443, node=node)
