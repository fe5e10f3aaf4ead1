"""Kinds of process pods: ports, start order and probes. Containers: test_pod_conformance.py."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from serving.core.model.objects import Object
from serving.home.kubelet.container import ContainerSpec
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.podkinds import InAppPod, PodSetup, PreloadedPod, ProcessPod, choose_kind
from serving.home.pods.locations import PodLocation
from serving.home.processes.processruntime import ProcessRuntime
from serving.home.store.memory import MemoryCluster

CONTAINER: Object = {"name": "app", "command": ["./app"], "resources": {"limits": {"memory": "1Mi"}}}
INSIDE = {"serving.dev/queue-proxy": "in-process"}


def setup_of(folder: Path, annotations: dict[str, str]) -> PodSetup:
    labels = {"serving.knative.dev/revision": "r"}
    values = {"serving.dev/command": "", **annotations}
    metadata = {"name": "p", "namespace": "default", "labels": labels, "annotations": values}
    return PodSetup(
        node=NodeContext(
            cluster=MemoryCluster(),
            runtime=ProcessRuntime(folder / "socket"),
            pods=folder / "pods",
            logs=folder / "logs",
            snapshots=folder / "snapshots",
            stats_url="ws://127.0.0.1:1/stats",
            key=bytes(32),
        ),
        manifest={"metadata": metadata, "spec": {"containers": [CONTAINER]}},
        pod_id="1",
        location=PodLocation(address="127.64.0.3", port=4000),
    )


def spec_of(kind: ProcessPod) -> ContainerSpec:
    start = kind.start(CONTAINER)
    return kind.completed(CONTAINER, ContainerSpec(start=start, on_state=print, on_warning=print))


def test_process_pod_is_assigned_and_probed_at_its_port(tmp_path: Path) -> None:
    kind = ProcessPod(setup_of(tmp_path, {}))
    container_spec = spec_of(kind)
    assert (container_spec.start.environment["PORT"], container_spec.address) == ("4000", ("127.0.0.1", 4000))
    assert kind.start_proxy().environment["SERVING_POD_APP"] == "127.0.0.1:4000"
    assert (kind.watched_memory(), kind.is_proxy_first, container_spec.start.preload) == ({"app": 2**20}, False, "")


def test_process_pod_is_assigned_tcp_ports(tmp_path: Path) -> None:
    location = PodLocation(address="127.64.0.3", port=4000, tcp_ports=(4001,))
    setup = msgspec.structs.replace(setup_of(tmp_path, {}), location=location)
    ports = [{"containerPort": 8080}, {"name": "tcp-5432", "containerPort": 5432}]
    container = {**CONTAINER, "ports": ports}
    setup.manifest["spec"]["containers"] = [container]
    kind = ProcessPod(setup)
    environment = kind.start(container).environment
    assert (environment["PORT"], environment["PORT_5432"]) == ("4000", "4001")
    assert kind.start_proxy().environment["SERVING_POD_TCP_PORTS"] == '{"5432":4001}'


@pytest.mark.parametrize(("port", "probed"), [("http", 4000), (8080, 4000), (9999, 9999)])
def test_pod_without_queue_proxy_is_probed_at_the_apps_port(tmp_path: Path, port: int | str, probed: int) -> None:
    setup = setup_of(tmp_path, {})
    probe = {"httpGet": {"path": "/", "port": port}}
    container = {**CONTAINER, "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": probe}
    setup.manifest["spec"]["containers"] = [container]
    del setup.manifest["metadata"]["labels"]["serving.knative.dev/revision"]
    kind = ProcessPod(setup)
    spec = kind.completed(container, ContainerSpec(start=kind.start(container), on_state=print, on_warning=print))
    assert [plan.port for plan in spec.probes] == [probed]


def test_preloaded_pod_starts_its_queue_proxy_first(tmp_path: Path) -> None:
    kind = PreloadedPod(
        setup_of(tmp_path, {"serving.dev/template": "preload", "serving.dev/preload-modules": "json, csv"})
    )
    start = spec_of(kind).start
    assert (start.preload, start.modules, kind.is_proxy_first) == ("default/r", ("json", "csv"), True)


def test_in_process_queue_proxy_pod_has_the_pod_address(tmp_path: Path) -> None:
    container_spec = spec_of(InAppPod(setup_of(tmp_path, INSIDE)))
    assert (container_spec.address, container_spec.start.is_own_proxy) == (("127.64.0.3", 8012), True)
    environment = container_spec.start.environment
    assert (environment["HOST"], environment["PORT"]) == ("127.64.0.3", "8012")
    assert environment["SERVING_POD_APP"] == "127.64.0.3:8012"


@pytest.mark.parametrize(
    ("annotations", "kind"),
    [({}, ProcessPod), ({"serving.dev/template": "preload"}, PreloadedPod), (INSIDE, InAppPod)],
)
async def test_annotations_select_the_pod_kind(
    annotations: dict[str, str], kind: type[ProcessPod], tmp_path: Path
) -> None:
    async def warn(reason: str, message: str) -> None:
        raise AssertionError((reason, message))

    process_pod = await choose_kind(
        setup_of(tmp_path, annotations), was_boxed=None, on_state=print, warn=warn, stop=asyncio.Event()
    )
    assert type(process_pod) is kind
