"""Commands that reach daemons in a cluster by port forwarding, with only a kubeconfig."""

import asyncio
import base64
import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner, Result

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object
from serving.home.apiserver.podstreams import ExecOptions, ExecSession
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, NAMESPACE, POD, REVISION, SECRET, SERVING_SERVICE
from serving.tools.cli.main import main
from tests.integration.api_server import Served, served

SYSTEM = "knative-serving"
TOKEN = "q" * 43
PORTS = {"autoscaler": ("stats", 6081), "activator": ("metrics", 9090), "dashboard": ("http", 6090)}


class Page(http.server.BaseHTTPRequestHandler):
    """A daemon's pages: ``bodies`` by the first part of the path; a string is the address of a redirect."""

    bodies: ClassVar[dict[str, object]] = {}
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.bodies[self.path.split("/")[1].partition("?")[0]]
        is_authorized = self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.send_response(401 if not is_authorized else 307 if isinstance(body, str) else 200)
        text = b"" if isinstance(body, str) else json.dumps(body).encode()
        self.send_header("Location", f"http://{body}{self.path}" if isinstance(body, str) else "")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Kubelet:
    """A kubelet that forwards connections to the pages of pods."""

    def __init__(self, pages: dict[str, int]) -> None:
        self.pages = pages
        self.connections: list[tuple[str, int]] = []

    async def connect(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert namespace == SYSTEM
        self.connections.append((pod, port))
        return await asyncio.open_connection("127.0.0.1", self.pages[pod])

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        raise NotFound(f"{namespace}/{pod} runs no {options}")

    async def attach(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession:
        raise NotFound(f"{namespace}/{pod} runs no {options}")


@contextlib.contextmanager
def page(**bodies: object) -> Iterator[int]:
    handler = type("Handler", (Page,), {"bodies": bodies})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def pod_of(name: str, number: int) -> Object:
    daemon = name.partition("-")[0]
    port_name, port = PORTS[daemon]
    return {
        "metadata": {"namespace": SYSTEM, "name": name, "labels": {"app.kubernetes.io/name": daemon}},
        "spec": {"containers": [{"name": daemon, "image": "i", "ports": [{"name": port_name, "containerPort": port}]}]},
        "status": {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@contextlib.asynccontextmanager
async def cluster_of(folder: Path, pages: dict[str, int]) -> AsyncIterator[tuple[Served, Kubelet]]:
    """A cluster with these pods and the Secret of the query token."""
    cluster, kubelet = MemoryCluster(), Kubelet(pages)
    metadata = {"namespace": SYSTEM, "name": "serving-query-token"}
    await cluster.create(SECRET, {"metadata": metadata, "data": {"token": base64.b64encode(TOKEN.encode()).decode()}})
    for number, name in enumerate(pages, 1):
        pod = pod_of(name, number)
        await cluster.create(POD, pod)
        await cluster.patch(POD, SYSTEM, name, patch={"status": pod["status"]}, subresource="status")
    async with served(cluster, folder, streams=kubelet) as api:
        yield api, kubelet
    await cluster.close()


async def serving(api: Served, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, words, env={"KUBECONFIG": str(api.kubeconfig)})


async def test_why_follows_redirect_to_the_autoscaler_that_decides(tmp_path: Path) -> None:
    with page(decisions="10.0.0.2:6081", policies=[]) as standby, page(decisions=[], policies=[]) as owner:
        async with cluster_of(tmp_path, {"autoscaler-a": standby, "autoscaler-b": owner}) as (api, kubelet):
            done = await serving(api, "why", "hello")
    assert "no decision about hello in default" in done.stderr
    assert ("autoscaler-b", 6081) in kubelet.connections


async def test_requests_command_queries_all_activators(tmp_path: Path) -> None:
    with page(requests=[]) as result, page(requests=[]) as other:
        async with cluster_of(tmp_path, {"activator-a": result, "activator-b": other}) as (api, kubelet):
            done = await serving(api, "requests", "cart")
    assert "no request of cart in default is recorded" in done.stderr
    assert {pod for pod, _ in kubelet.connections} == {"activator-a", "activator-b"}


async def test_dashboard_commands_need_no_address(tmp_path: Path) -> None:
    with page(cost={"services": []}, coldstarts=[]) as port:
        async with cluster_of(tmp_path, {"dashboard-a": port}) as (api, _):
            cost = await serving(api, "cost")
            cold = await serving(api, "why", "hello", "--cold")
    assert "the dashboard has no history of a service in default" in cost.stderr
    assert "no cold start of hello is recorded" in cold.stdout


@pytest.mark.parametrize("words", [("cost",), ("requests", "hello"), ("top", "--once"), ("dashboard",)])
async def test_missing_daemon_in_cluster_is_reported_by_namespace(tmp_path: Path, words: tuple[str, ...]) -> None:
    async with cluster_of(tmp_path, {}) as (api, _):
        done = await serving(api, *words)
    assert done.exit_code == 1
    assert f"is ready in namespace {SYSTEM}; `serving doctor` says why" in done.stderr
    assert "serving up" not in done.output


async def test_doctor_does_not_refer_to_itself(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, {}) as (api, _):
        done = await serving(api, "doctor")
    assert "no pod of dashboard is ready" in done.output
    assert "serving doctor" not in done.output


async def test_backup_contains_user_objects_and_referenced_config_maps(tmp_path: Path) -> None:
    cluster, file = MemoryCluster(), tmp_path / "backup.yaml"
    await cluster.create(NAMESPACE, {"metadata": {"name": "shop"}})
    container = {"image": "registry.example/a", "envFrom": [{"configMapRef": {"name": "words"}}]}
    service = {
        "apiVersion": SERVING_SERVICE.api_version,
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "cart"},
    }
    await cluster.create(SERVING_SERVICE, {**service, "spec": {"template": {"spec": {"containers": [container]}}}})
    for namespace, name, data in (
        ("shop", "words", {"A": "b"}),
        ("shop", "other", {"A": "b"}),
        (SYSTEM, "config-network", {"_example": "x", "domain-template": "{{.Name}}.{{.Domain}}"}),
        (SYSTEM, "config-features", {"_example": "x"}),
    ):
        await cluster.create(CONFIG_MAP, {"metadata": {"namespace": namespace, "name": name}, "data": data})
    async with served(cluster, tmp_path) as api:
        done = await serving(api, "backup", str(file))
        again = await serving(api, "backup", str(file))
    await cluster.close()
    assert done.exit_code == 0, done.output
    manifests = list(yaml.safe_load_all(file.read_text()))
    assert [(each["kind"], each["metadata"]["name"]) for each in manifests] == [
        ("Namespace", "shop"),
        ("ConfigMap", "config-network"),
        ("ConfigMap", "words"),
        ("Service", "cart"),
    ]
    assert manifests[1]["data"] == {"domain-template": "{{.Name}}.{{.Domain}}"}
    assert manifests[3]["metadata"].keys() <= {"name", "namespace", "annotations"}
    assert "status" not in manifests[3]
    assert file.stat().st_mode & 0o777 == 0o600
    assert "is there already; name a new file" in again.stderr


async def test_doctor_checks_the_cluster_and_not_the_local_machine(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, {}) as (api, _):
        done = await serving(api, "doctor", "-o", "json")
        status = await serving(api, "status")
    entry = {each["name"]: each["state"] for each in json.loads(done.stdout)}
    assert (entry["api"], entry["definitions"], entry["daemons"], entry["settings"]) == ("ok", "ok", "fail", "ok")
    assert (done.exit_code, status.exit_code) == (1, 1)
    assert "serving is not installed in namespace knative-serving" in status.stderr
    assert "serving up" not in done.output + status.output


async def test_pod_that_refuses_forwarded_connection_is_reported(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, {"dashboard-a": 1}) as (api, _):
        done = await serving(api, "cost")
    assert done.exit_code == 1
    assert "the dashboard does not answer" in done.stderr
    assert "port 6090 of the pod" in done.stderr


async def test_describe_prints_reason_of_revision(tmp_path: Path) -> None:
    message = "the app listens on 9999 and was given PORT=8080"
    template = {"spec": {"containers": [{"image": "registry.example/wrong:1"}]}}
    revision: Object = {"name": "wrong-00001", "labels": {"serving.knative.dev/service": "wrong"}}
    waiting = {"type": "Ready", "status": "Unknown", "reason": "Deploying", "message": message}
    cluster = MemoryCluster()
    async with served(cluster, tmp_path) as api:
        metadata = {"namespace": "default", "name": "wrong"}
        await cluster.create(SERVING_SERVICE, {"metadata": metadata, "spec": {"template": template}})
        await cluster.create(REVISION, {"metadata": {**revision, "namespace": "default"}, "spec": template["spec"]})
        status = {"status": {"conditions": [waiting]}}
        await cluster.patch(REVISION, "default", "wrong-00001", patch=status, subresource="status")
        done = await serving(api, "describe", "wrong")
    assert f"wrong-00001: {message}" in done.stdout
