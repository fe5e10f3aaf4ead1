"""The kubectl of PATH and those of SERVING_TEST_KUBECTLS against the API server with a memory store."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from serving.core.model.event import EventText, about, new_event
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, EVENT, NODE, POD, SERVICE, SERVING_SERVICE
from tests.integration.kubectl import Kubectl, needs_kubectl

pytestmark = needs_kubectl

MANIFEST = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec:
  template:
    spec:
      containers: [{image: gcr.io/x/hello, env: [{name: A, value: b}]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: b}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 1
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {a: b}}
spec: {containers: [{name: c, image: i}]}
"""

ONE = MANIFEST.split("---", maxsplit=1)[0]


@pytest.fixture
async def kubectl(kubectl: Kubectl, tmp_path: Path) -> Kubectl:
    (tmp_path / "all.yaml").write_text(MANIFEST, encoding="utf-8")
    return kubectl


@pytest.fixture
async def applied(kubectl: Kubectl) -> Kubectl:
    await kubectl("apply", "-f", "all.yaml")
    return kubectl


async def set_ready(cluster: MemoryCluster) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "url": "http://hello.default.localhost:8080"}
    await cluster.patch(SERVING_SERVICE, "default", "hello", patch={"status": status}, subresource="status")


async def test_apply_creates_objects_and_reports_unchanged_ones(kubectl: Kubectl) -> None:
    names = ["service.serving.knative.dev/hello", "configmap/settings", "deployment.apps/d", "pod/p"]
    assert (await kubectl("apply", "-f", "all.yaml")).splitlines() == [f"{name} created" for name in names]
    before = await kubectl.cluster.get(SERVING_SERVICE, "default", "hello")
    again = (await kubectl("apply", "-f", "all.yaml")).splitlines()
    # kubectl prints "configured" for the custom resource, whose list of containers has the server's defaults.
    assert again == [f"{names[0]} configured", *[f"{name} unchanged" for name in names[1:]]]
    assert await kubectl.cluster.get(SERVING_SERVICE, "default", "hello") == before


async def test_apply_of_changed_manifest_increments_generation(applied: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(MANIFEST.replace("value: b", "value: c"), encoding="utf-8")
    await applied("apply", "-f", "all.yaml")
    service = await applied.cluster.get(SERVING_SERVICE, "default", "hello")
    assert service["metadata"]["generation"] == 2
    assert service["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "c"}]


async def test_invalid_manifest_is_reported(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(ONE.replace("image: gcr.io/x/hello, ", ""), encoding="utf-8")
    code, printed = await kubectl.tried("apply", "-f", "bad.yaml")
    assert code != 0
    assert (
        'The Service "hello" is invalid: spec.template.spec.containers[0].image: Required value: missing field(s)'
        in printed
    )


async def test_unknown_field_is_rejected_or_reported(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(ONE.replace("env:", "evn:"), encoding="utf-8")
    _, printed = await kubectl.tried("apply", "-f", "bad.yaml")
    # kubectl validates strictly since 1.25; with older versions, the server warns.
    assert "unknown field" in printed
    assert "spec.template.spec.containers[0].evn" in printed


@pytest.mark.parametrize("output", [(), ("-o", "wide")])
async def test_get_prints_the_columns(applied: Kubectl, output: tuple[str, ...]) -> None:
    await set_ready(applied.cluster)
    header, row = (await applied("get", "ksvc", *output)).splitlines()
    assert header.split() == ["NAME", "URL", "LATESTCREATED", "LATESTREADY", "READY", "REASON"]
    assert row.split() == ["hello", "http://hello.default.localhost:8080", "True"]


async def test_get_prints_json_and_yaml(applied: Kubectl) -> None:
    document = msgspec.json.decode(await applied("get", "ksvc", "hello", "-o", "json"))
    assert document["metadata"]["name"] == "hello"
    assert "name: hello" in await applied("get", "ksvc", "hello", "-o", "yaml")


async def test_get_all_lists_kinds_of_category_all(applied: Kubectl) -> None:
    printed = await applied("get", "all")
    for name in ("pod/p", "deployment.apps/d", "service.serving.knative.dev/hello"):
        assert name in printed


async def test_get_filters_by_selectors_and_pages(applied: Kubectl) -> None:
    assert await applied("get", "pods", "-l", "a=b", "-o", "name") == "pod/p\n"
    assert await applied("get", "pods", "--field-selector", "metadata.name=q", "-o", "name") == ""
    assert "p " in await applied("get", "pods", "-A", "--chunk-size=1")


async def test_get_watch_prints_changes(applied: Kubectl) -> None:
    process = await applied.start("get", "ksvc", "--watch", "--no-headers")
    assert process.stdout is not None
    assert (await process.stdout.readline()).split() == [b"hello"]
    await set_ready(applied.cluster)
    assert (await process.stdout.readline()).split()[-1] == b"True"
    process.terminate()
    await process.wait()


async def test_wait_for_condition_returns_when_condition_is_true(applied: Kubectl) -> None:
    process = await applied.start("wait", "--for=condition=Ready", "ksvc/hello", "--timeout=2m")
    await asyncio.wait_for(applied.cluster.watched.wait(), 60)
    await set_ready(applied.cluster)
    printed, _ = await process.communicate()
    assert (process.returncode, printed) == (0, b"service.serving.knative.dev/hello condition met\n")


async def test_wait_for_delete_returns_when_object_is_deleted(applied: Kubectl) -> None:
    process = await applied.start("wait", "--for=delete", "configmap/settings", "--timeout=2m")
    # Older versions fail if the object is deleted before they read it.
    await asyncio.wait_for(applied.cluster.watched.wait(), 60)
    await applied("delete", "configmap", "settings")
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed


async def test_describe_prints_details(applied: Kubectl) -> None:
    assert "Container Concurrency:  0" in await applied("describe", "ksvc", "hello")
    assert "Image:" in await applied("describe", "pod", "p")
    assert "Replicas:" in await applied("describe", "deployment", "d")


async def test_patch_supports_merge_json_and_strategic_types(applied: Kubectl) -> None:
    await applied("patch", "ksvc", "hello", "--type=merge", "-p", '{"spec":{"template":{"spec":{"timeoutSeconds":9}}}}')
    await applied("patch", "configmap", "settings", "--type=json", "-p", '[{"op":"add","path":"/data/c","value":"d"}]')
    await applied("patch", "deployment", "d", "-p", '{"spec":{"template":{"spec":{"containers":[{"name":"e"}]}}}}')
    names = await applied("get", "deployment", "d", "-o", "jsonpath={.spec.template.spec.containers[*].name}")
    assert sorted(names.split()) == ["c", "e"]


async def test_scale_sets_replicas(applied: Kubectl) -> None:
    await applied("scale", "deployment", "d", "--replicas=3")
    assert await applied("get", "deployment", "d", "-o", "jsonpath={.spec.replicas}") == "3"


async def test_label_and_annotate_change_metadata(applied: Kubectl) -> None:
    await applied("label", "ksvc", "hello", "team=a")
    await applied("annotate", "ksvc", "hello", "why=not")
    assert await applied("get", "ksvc", "-l", "team=a", "-o", "name") == "service.serving.knative.dev/hello\n"


async def test_logs_are_printed_and_followed(applied: Kubectl) -> None:
    assert await applied("logs", "p") == "default/p/c\n"
    assert await applied("logs", "-f", "p") == "default/p/c\nmore\n"


async def test_get_events_lists_events(applied: Kubectl) -> None:
    assert "No resources found" in await applied("get", "events")
    service = await applied.cluster.get(SERVING_SERVICE, "default", "hello")
    words = EventText(reason="Created", message="the service is created", is_warning=False)
    event = new_event(about(service), words, suffix="1", component="controller", now="2026-01-01T00:00:00Z")
    await applied.cluster.create(EVENT, event)
    header, row = (await applied("get", "events")).splitlines()
    assert header.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert row.split()[1:] == ["Normal", "Created", "service/hello", "the", "service", "is", "created"]


async def test_create_commands_send_protobuf_bodies(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "x")
    await kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "x")
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "x")
    assert await kubectl("get", "secret", "s", "-n", "x", "-o", "jsonpath={.data.a}") == "Yg=="
    await kubectl("create", "deployment", "d", "--image=i:1", "--replicas=0", "--port=80", "-n", "x", "--", "run", "")
    deployment = await kubectl.cluster.get(DEPLOYMENT, "x", "d")
    assert (deployment["spec"]["replicas"], deployment["spec"]["selector"]) == (0, {"matchLabels": {"app": "d"}})
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"], container["ports"]) == (
        "i:1",
        ["run", ""],
        [{"containerPort": 80}],
    )
    await kubectl("create", "service", "clusterip", "c", "--tcp=80:8080", "-n", "x")
    (port,) = (await kubectl.cluster.get(SERVICE, "x", "c"))["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, 8080)
    await kubectl("create", "pdb", "b", "--selector=app=d", "--min-available=50%", "-n", "x")
    assert await kubectl("get", "pdb", "b", "-n", "x", "-o", "jsonpath={.spec.minAvailable}") == "50%"


async def test_delete_removes_objects_of_manifest(applied: Kubectl) -> None:
    printed = await applied("delete", "-f", "all.yaml", "--wait=false")
    assert 'service.serving.knative.dev "hello" deleted' in printed
    assert await applied("get", "ksvc", "-o", "name") == ""


async def test_exec_without_running_pods_is_reported(applied: Kubectl) -> None:
    code, printed = await applied.tried("exec", "p", "--", "ls")
    assert code != 0
    assert "this server runs no pods" in printed


async def test_api_resources_and_version_are_printed(kubectl: Kubectl) -> None:
    printed = await kubectl("api-resources")
    for word in ("kservice,ksvc", "scalingpolicies", "deployments"):
        assert word in printed
    assert "Server Version" in await kubectl("version")


async def test_drain_cordons_a_node_and_evicts_its_pods(kubectl: Kubectl) -> None:
    await kubectl.cluster.create(NODE, {"metadata": {"name": "one"}})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    metadata = {"name": "p", "namespace": "default", "ownerReferences": [owner]}
    spec = {"nodeName": "one", "containers": [{"name": "a", "image": "b"}]}
    await kubectl.cluster.create(POD, {"metadata": metadata, "spec": spec})
    await kubectl.cluster.patch(POD, "default", "p", patch={"status": {"phase": "Succeeded"}}, subresource="status")
    printed = await kubectl("drain", "one", "--force", "--timeout=60s")
    assert "node/one cordoned" in printed
    assert "pod/p evicted" in printed
    assert (await kubectl.cluster.get(NODE, "", "one"))["spec"]["unschedulable"] is True
    assert (await kubectl.cluster.list(POD)).items == []
    await kubectl("uncordon", "one")
    assert not (await kubectl.cluster.get(NODE, "", "one"))["spec"].get("unschedulable")


async def test_prune_deletes_objects_removed_from_manifest(kubectl: Kubectl, tmp_path: Path) -> None:
    first, two = (f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{app: x}}}}\n" for name in "ab")
    (tmp_path / "maps.yaml").write_text(f"{first}---\n{two}", encoding="utf-8")
    await kubectl("apply", "-f", "maps.yaml", "--prune", "-l", "app=x")
    (tmp_path / "maps.yaml").write_text(first, encoding="utf-8")
    assert "configmap/b pruned" in await kubectl("apply", "-f", "maps.yaml", "--prune", "-l", "app=x")
    assert await kubectl("get", "configmaps", "-o", "name") == "configmap/a\n"


async def test_unsupported_kind_can_be_listed_but_not_created(kubectl: Kubectl, tmp_path: Path) -> None:
    assert "No resources found" in await kubectl("get", "statefulsets")
    (tmp_path / "set.yaml").write_text(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\n", encoding="utf-8"
    )
    code, printed = await kubectl.tried("create", "-f", "set.yaml")
    assert code != 0
    assert "statefulsets.apps are not supported here" in printed


@pytest.mark.parametrize(
    ("path", "phrase"),
    [
        ("pod.spec.containers", "Environment variables, merged by name."),
        ("deployment.spec.template.spec.containers.resources.limits", "The most that it may use"),
        ("ksvc.spec.template.spec.containers.env", "FIELD: env"),
        ("node.spec.unschedulable", "kubectl cordon"),
    ],
)
async def test_explain_describes_fields_at_any_depth(kubectl: Kubectl, path: str, phrase: str) -> None:
    assert phrase in await kubectl("explain", path)


async def test_auth_commands_report_permissions_and_user(kubectl: Kubectl) -> None:
    assert "*.*" in await kubectl("auth", "can-i", "--list")
    code, printed = await kubectl.tried("auth", "whoami")
    # The command exists since 1.28.
    assert (code == 0 and "serving-admin" in printed) or "unknown command" in printed


async def test_unknown_key_of_settings_config_map_causes_warning(kubectl: Kubectl, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-autoscaler, namespace: knative-serving}\n"
    (tmp_path / "map.yaml").write_text(text + "data: {stabel-window: 30s}\n", encoding="utf-8")
    printed = await kubectl("apply", "-f", "map.yaml")
    assert "configmap/config-autoscaler created" in printed
    assert "config-autoscaler has no key stabel-window" in printed
