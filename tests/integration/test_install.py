"""``serving install`` against a server with the part of a cluster's API that it uses."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from serving import __version__
from serving.core.settings.parse import EXAMPLE_KEY
from serving.home.store.memory import MemoryCluster
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.tree import InstallOptions, component_names, objects_of, path_of, tree_folder
from serving.tools.cli.main import main
from serving.tools.cli.system.availability import until_available
from tests.integration.api_server import served
from tests.integration.bare_cluster import BareCluster

OBJECTS = objects_of(tree_folder(), InstallOptions())
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETTINGS = "/api/v1/namespaces/knative-serving/configmaps/config-autoscaler"
ROUTES = "/api/v1/namespaces/knative-serving/configmaps/config-controller"


@pytest.fixture
def cluster() -> Iterator[BareCluster]:
    with BareCluster() as bare_cluster:
        yield bare_cluster


def install(cluster: BareCluster, folder: Path, *arguments: str) -> Result:
    """Run ``serving install``, with an image of a registry unless the arguments name one."""
    named = () if {"--image", "--registry"} & {*arguments} else ("--image", "registry.example/serving:1")
    return CliRunner().invoke(main, ["install", "--kubeconfig", str(cluster.kubeconfig(folder)), *named, *arguments])


def fill(cluster: BareCluster) -> None:
    """Create the objects of an installation."""
    for resource in OBJECTS:
        cluster.apply(path_of(resource), resource, manager="serving-install")


def results(done: Result) -> list[str]:
    return [line.rpartition(" ")[2] for line in done.stdout.splitlines()]


def test_install_creates_objects_in_order_and_repeated_install_changes_nothing(
    cluster: BareCluster, tmp_path: Path
) -> None:
    done = install(cluster, tmp_path)
    assert done.exit_code == 0, done.output
    assert results(done) == ["created"] * len(OBJECTS)
    assert "deployment/activator created" in done.stdout
    assert cluster.objects.keys() == {path_of(resource) for resource in OBJECTS}
    order = [path.split("/")[-2] for _, path in cluster.calls]
    kinds = list(dict.fromkeys(order))
    assert kinds[:2] == ["namespaces", "customresourcedefinitions"]
    assert kinds.index("configmaps") < kinds.index("deployments")
    assert kinds.index("rolebindings") < kinds.index("deployments")
    assert set(results(install(cluster, tmp_path))) == {"unchanged"}


def test_older_installation_prints_steps_to_enable_inner_tls(cluster: BareCluster, tmp_path: Path) -> None:
    assert "Permissive" not in install(cluster, tmp_path).stderr
    metadata = {"name": "serving-key", "namespace": "knative-serving"}
    network = next(resource for resource in OBJECTS if resource["metadata"]["name"] == "config-network")
    cases: list[tuple[dict[str, str], dict[str, str], bool]] = [
        ({"key": "aGVsbG8="}, {}, True),
        ({"key": "aGVsbG8=", "inner-tls": "RW5hYmxlZA=="}, {}, False),
        ({"key": "aGVsbG8="}, {"system-internal-tls": "Enabled"}, False),
    ]
    for data, settings, is_older in cases:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        cluster.put(path_of(secret), secret)
        cluster.apply(path_of(network), {**network, "data": settings}, manager="kubectl")
        stderr = install(cluster, tmp_path).stderr
        assert ("docs/inner-tls.md has the two steps to Enabled" in stderr) is is_older, (data, settings)


def test_new_image_changes_only_deployments(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    done = install(cluster, tmp_path, "--image", "registry.example/serving:2")
    changed = {
        line.split("/")[0] for line in done.stdout.splitlines() if line.endswith("changed") and "unch" not in line
    }
    assert changed == {"deployment"}


def data_of(cluster: BareCluster, path: str) -> dict[str, str]:
    data: dict[str, str] = cluster.objects[path]["data"]
    return {key: value for key, value in data.items() if key != EXAMPLE_KEY}


def test_changed_setting_of_user_is_preserved(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    cluster.merge(SETTINGS, {"data": {"stable-window": "90s"}}, manager="kubectl-edit")
    done = install(cluster, tmp_path)
    assert "configmap/config-autoscaler kept" in done.stdout
    assert data_of(cluster, SETTINGS) == {"stable-window": "90s"}


def test_domain_is_preserved_by_later_installations(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path, "--domain", "apps.example.org")
    assert data_of(cluster, ROUTES) == {"domain": "apps.example.org"}
    done = install(cluster, tmp_path, "--image", "registry.example/serving:2")
    assert "configmap/config-controller kept" in done.stdout
    assert data_of(cluster, ROUTES) == {"domain": "apps.example.org"}
    install(cluster, tmp_path, "--domain", "other.example.org")
    assert data_of(cluster, ROUTES) == {"domain": "other.example.org"}


def test_settings_survive_upgrade_from_config_maps_with_every_key(cluster: BareCluster, tmp_path: Path) -> None:
    (shipped,) = (resource for resource in OBJECTS if path_of(resource) == ROUTES)
    defaults = yaml.safe_load(shipped["data"][EXAMPLE_KEY])
    cluster.apply(ROUTES, {**shipped, "data": {**defaults, "domain": "apps.example.org"}}, manager="serving-install")
    seen: list[dict[str, str]] = []
    put = cluster.put

    def recording_put(path: str, resource: dict[str, Any]) -> dict[str, Any]:
        if path == ROUTES:
            seen.append(resource["data"])
        return put(path, resource)

    cluster.put = recording_put  # type: ignore[method-assign]
    install(cluster, tmp_path)
    assert data_of(cluster, ROUTES) == {"domain": "apps.example.org"}
    assert {data["domain"] for data in seen} == {"apps.example.org"}, "the setting is never missing"


def test_queue_proxy_image_is_stored_as_setting(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path, "--queue-proxy-image", "registry.example/queue-proxy:2")
    path = "/api/v1/namespaces/knative-serving/configmaps/config-deployment"
    assert data_of(cluster, path) == {"queue-sidecar-image": "registry.example/queue-proxy:2"}


@pytest.mark.parametrize("name", ["services.serving.knative.dev", "podautoscalers.autoscaling.internal.knative.dev"])
def test_install_and_uninstall_change_nothing_where_knative_is_installed(
    cluster: BareCluster, tmp_path: Path, name: str
) -> None:
    labels = {"app.kubernetes.io/name": "knative-serving"}
    cluster.put(f"{CRDS}/{name}", {"kind": "CustomResourceDefinition", "metadata": {"name": name, "labels": labels}})
    for option in ([], ["--uninstall"]):
        done = install(cluster, tmp_path, *option)
        assert done.exit_code == 1
        assert f"{name} exists and belongs to another system: Knative Serving" in done.stderr
    assert cluster.calls == []


def test_install_rejects_server_without_custom_resource_definitions(cluster: BareCluster, tmp_path: Path) -> None:
    cluster.has_definitions = False
    done = install(cluster, tmp_path)
    assert (done.exit_code, "no cluster" in done.stderr) == (1, True)


async def test_install_rejects_api_of_serving_up(tmp_path: Path) -> None:
    store = MemoryCluster()
    async with served(store, tmp_path) as api:
        command = ["install", "--kubeconfig", str(api.kubeconfig)]
        done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert "`serving up` needs no installation" in done.stderr
    await store.close()


def test_install_continues_without_mutating_admission_policies(cluster: BareCluster, tmp_path: Path) -> None:
    cluster.not_served = "/mutatingadmissionpolic"
    done = install(cluster, tmp_path)
    assert done.exit_code == 0, done.output
    assert sorted(set(results(done))) == ["created", "served"]
    assert "mutatingadmissionpolicy/serving-user-info not served" in done.stdout
    assert "validatingadmissionpolicy/serving-user-info created" in done.stdout
    cluster.not_served = "/validatingadmissionpolic"
    assert install(cluster, tmp_path).exit_code != 0


def test_prerequisites_are_checked_before_the_first_write(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path, "--component", "tls")
    cluster.calls.clear()
    for arguments, not_served, code, message in (
        (["--component", "gateway"], "/gateways", 1, "this server has no Gateway of gateway.networking.k8s.io/v1"),
        (["--component", "monitoring"], "/podmonitors", 1, "this server has no PodMonitor of monitoring.coreos.com/v1"),
        (["--component", "activator-hpa"], "/metrics.k8s.io", 1, "this server has no metrics.k8s.io/v1beta1"),
        (["--component", "placement"], "", 2, "placement has no image: set --registry PREFIX for all images"),
        (["--image", "serving:2"], "", 2, "'serving:2' has no registry"),
        (["--image", ""], "", 2, "it is empty; expected a value"),
    ):
        cluster.not_served = not_served
        done = install(cluster, tmp_path, *arguments)
        assert (done.exit_code, cluster.calls) == (code, [])
        assert message in done.stderr
    cluster.not_served = ""
    assert set(results(install(cluster, tmp_path))) == {"unchanged"}, "failed installations changed nothing"


def test_activator_replicas_set_by_autoscaler_are_preserved(cluster: BareCluster, tmp_path: Path) -> None:
    path = "/apis/apps/v1/namespaces/knative-serving/deployments/activator"
    install(cluster, tmp_path)
    assert cluster.objects[path]["spec"]["replicas"] == 2
    install(cluster, tmp_path, "--component", "activator-hpa")
    assert cluster.objects[path]["spec"]["replicas"] == 2
    cluster.objects[path]["spec"]["replicas"] = 5
    install(cluster, tmp_path)
    assert cluster.objects[path]["spec"]["replicas"] == 5
    install(cluster, tmp_path, "--component", "none")
    assert cluster.objects[path]["spec"]["replicas"] == 2
    assert not any("horizontalpodautoscalers" in place for place in cluster.objects)


def test_components_are_recorded_by_the_last_write(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    cluster.calls.clear()
    install(cluster, tmp_path, "--component", "tls")
    assert cluster.calls[-1] == ("PATCH", "/api/v1/namespaces/knative-serving")
    assert cluster.calls.count(cluster.calls[-1]) == 1


def test_registry_option_sets_all_images(cluster: BareCluster, tmp_path: Path) -> None:
    arguments = ("--component", "placement", "--priority-class", "high", "--registry", "registry.example/x/")
    assert install(cluster, tmp_path, *arguments).exit_code == 0
    pods = {
        path.rpartition("/")[2]: resource["spec"]["template"]["spec"]
        for path, resource in cluster.objects.items()
        if resource["kind"] == "Deployment"
    }
    assert pods["activator"]["containers"][0]["image"] == f"registry.example/x/serving:{__version__}"
    assert pods["placement"]["containers"][0]["image"] == f"registry.example/x/serving-placement:{__version__}"
    assert {pod["containers"][0]["imagePullPolicy"] for pod in pods.values()} == {"IfNotPresent"}
    assert {pod["priorityClassName"] for pod in pods.values()} == {"high"}
    path = "/api/v1/namespaces/knative-serving/configmaps/config-deployment"
    assert data_of(cluster, path) == {"queue-sidecar-image": f"registry.example/x/serving-queue-proxy:{__version__}"}


def names(done: Result, result: str) -> set[str]:
    return {line.partition(" ")[0] for line in done.stdout.splitlines() if line.endswith(f" {result}")}


def environment_of(cluster: BareCluster, name: str) -> set[str]:
    deployment = cluster.objects[f"/apis/apps/v1/namespaces/knative-serving/deployments/{name}"]
    return {variable["name"] for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_components_are_retained_by_upgrade_that_names_none(cluster: BareCluster, tmp_path: Path) -> None:
    done = install(cluster, tmp_path, "--component", "tls", "--component", "nodegroup")
    assert done.exit_code == 0, done.output
    assert {"deployment/nodegroup", "clusterrole/serving-nodegroup", "role/serving-activator-tls"} <= names(
        done, "created"
    )
    assert "SERVING_ACTIVATOR_TLS_ADDRESS" in environment_of(cluster, "activator")
    assert set(results(install(cluster, tmp_path))) == {"unchanged"}
    again = install(cluster, tmp_path, "--image", "registry.example/serving:2")
    assert "deployment/nodegroup" in names(again, "changed")
    assert "SERVING_ACTIVATOR_TLS_ADDRESS" in environment_of(cluster, "activator")


def test_named_components_replace_previous_components(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path, "--component", "tls", "--component", "nodegroup")
    done = install(cluster, tmp_path, "--component", "tls")
    assert "clusterrole/serving-nodegroup" in names(done, "deleted"), "it may delete nodes"
    assert not [path for path in cluster.objects if "nodegroup" in path.rpartition("/")[2] and "crd" in path]
    done = install(cluster, tmp_path, "--component", "none")
    assert names(done, "deleted") == {
        "networkpolicy/serving-tls",
        "rolebinding/serving-activator-tls",
        "role/serving-activator-tls",
    }
    assert "SERVING_ACTIVATOR_TLS_ADDRESS" not in environment_of(cluster, "activator")
    assert cluster.objects.keys() == {path_of(resource) for resource in OBJECTS}


def test_upgrade_deletes_objects_of_older_installation_that_are_unmodified(
    cluster: BareCluster, tmp_path: Path
) -> None:
    fill(cluster)
    labels = {"app.kubernetes.io/part-of": "serving"}

    def older(kind: str, version: str, name: str, manager: str, **fields: object) -> str:
        metadata = {"name": name, "namespace": "knative-serving", "labels": labels}
        result: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        cluster.apply(path_of(result), result, manager=manager)
        return path_of(result)

    job = older("Job", "batch/v1", "makekey", "serving-install", spec={})
    gone = older("ClusterRole", "rbac.authorization.k8s.io/v1", "serving-old", "serving-install")
    settings = older("ConfigMap", "v1", "config-old", "serving-install", data={"_example": "a: 1"})
    changed = older("ConfigMap", "v1", "config-mine", "serving-install", data={"_example": "a: 1"})
    cluster.merge(changed, {"data": {"a": "2"}}, manager="kubectl-edit")
    applied = older("Role", "rbac.authorization.k8s.io/v1", "by-kubectl", "kubectl")
    done = install(cluster, tmp_path)
    assert names(done, "deleted") == {"clusterrole/serving-old", "configmap/config-old", "job/makekey"}
    assert not {gone, settings, job} & cluster.objects.keys()
    assert {changed, applied} <= cluster.objects.keys(), "other managers have fields in these objects"


@pytest.mark.parametrize("earlier", [[], ["--component", "nodegroup", "--component", "nodegroup-cluster-api"]])
def test_uninstall_removes_components_applied_by_install_or_kubectl(
    cluster: BareCluster, tmp_path: Path, earlier: list[str]
) -> None:
    install(cluster, tmp_path, *earlier)
    if not earlier:
        options = InstallOptions(components=tuple(component_names(tree_folder())))
        for resource in objects_of(tree_folder(), options):
            cluster.apply(path_of(resource), resource, manager="kubectl")
    done = install(cluster, tmp_path, "--uninstall")
    assert done.exit_code == 0, done.output
    assert "clusterrole/serving-nodegroup" in names(done, "deleted")
    assert set(results(done)) == {"deleted"}
    assert cluster.objects == {}
    assert results(install(cluster, tmp_path, "--uninstall")) == []


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["nodegroups"], "--component: unknown component 'nodegroups'; expected one of activator-hpa, cert-manager, "),
        (["nodegroup-cluster-api"], "needs the component nodegroup too, for its ServiceAccount nodegroup"),
        (["none", "tls"], "--component none excludes other components"),
    ],
)
def test_invalid_component_is_rejected_before_the_first_request(
    cluster: BareCluster, tmp_path: Path, options: list[str], reported: str
) -> None:
    done = install(cluster, tmp_path, *(part for name in options for part in ("--component", name)))
    assert (done.exit_code, cluster.calls) == (2, [])
    assert reported in " ".join(done.stderr.split())


def test_uninstall_deletes_role_bindings_of_scaled_workloads(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    binding = {"metadata": {"name": "serving-scaled-workloads", "namespace": "shops"}}
    cluster.put("/apis/rbac.authorization.k8s.io/v1/rolebindings/of-shops", binding)
    assert install(cluster, tmp_path, "--uninstall").exit_code == 0
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/shops/rolebindings/serving-scaled-workloads"
    assert cluster.calls[-1] == ("DELETE", path)


def test_uninstall_deletes_services_only_if_requested(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    text = "/apis/serving.knative.dev/v1/services/hello"
    cluster.put(text, {"kind": "Service", "metadata": {"name": "hello"}})
    cluster.calls.clear()
    done = install(cluster, tmp_path, "--uninstall")
    assert (done.exit_code, cluster.calls) == (1, [])
    assert "these objects would be deleted with their definitions: service hello; delete them first" in done.stderr
    assert install(cluster, tmp_path, "--uninstall", "--with-services").exit_code == 0


def test_dry_run_prints_the_objects_to_apply() -> None:
    done = CliRunner().invoke(main, ["install", "--dry-run", "-n", "mine", "--domain", "apps.example.org"])
    safe_load_alls = list(yaml.safe_load_all(done.stdout))
    assert safe_load_alls == objects_of(tree_folder(), InstallOptions(namespace="mine", domain="apps.example.org"))
    (settings,) = (resource for resource in safe_load_alls if resource["metadata"]["name"] == "config-controller")
    assert (settings["data"]["domain"], settings["metadata"]["namespace"]) == ("apps.example.org", "mine")


def rolled_out(resource: dict[str, Any], *, available_count: int | None = None) -> dict[str, Any]:
    """A Deployment whose rollout is complete."""
    count = resource["spec"]["replicas"]
    status = {"observedGeneration": 1, "replicas": count, "updatedReplicas": count}
    status["availableReplicas"] = count if available_count is None else available_count
    return {**resource, "metadata": {**resource["metadata"], "generation": 1}, "status": status}


def test_wait_returns_when_every_deployment_is_available(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    deployments = [resource for resource in OBJECTS if resource["kind"] == "Deployment"]
    *first, last = deployments
    for deployment in first:
        cluster.put(path_of(deployment), rolled_out(deployment))
    is_polled = threading.Event()
    cluster.on_get = lambda path: is_polled.set() if path == path_of(last) else None

    def roll_out() -> None:
        assert is_polled.wait(60)
        cluster.put(path_of(last), rolled_out(last))

    rolling = threading.Thread(target=roll_out)
    rolling.start()
    until_available(ApiClient(kubeconfig=cluster.kubeconfig(tmp_path)), OBJECTS, timeout_s=60)
    assert is_polled.is_set()
    rolling.join()


def test_wait_timeout_reports_the_pods_that_are_not_available(
    cluster: BareCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(cluster)
    for resource in OBJECTS:
        if resource["kind"] == "Deployment":
            cluster.put(path_of(resource), rolled_out(resource, available_count=0))
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "serving:0.2.0"'}
    status = {"containerStatuses": [{"name": "controller", "state": {"waiting": waiting}}]}
    path = "/api/v1/namespaces/knative-serving/pods/controller-x"
    cluster.put(path, {"kind": "Pod", "metadata": {"name": "controller-x"}, "status": status})
    with pytest.raises(SystemExit) as ended:
        until_available(ApiClient(kubeconfig=cluster.kubeconfig(tmp_path)), OBJECTS, timeout_s=0)
    assert ended.value.code == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "not available after 0 s" in message
    assert "controller has 0 of 2 pods available" in message
    assert 'controller-x: ImagePullBackOff: Back-off pulling image "serving:0.2.0"' in message


def test_uninstall_with_wait_removes_all_objects(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    done = install(cluster, tmp_path, "--uninstall", "--wait", "--timeout", "30s")
    assert (done.exit_code, cluster.objects) == (0, {})


def test_invalid_timeout_is_rejected(cluster: BareCluster, tmp_path: Path) -> None:
    done = install(cluster, tmp_path, "--wait", "--timeout", "soon")
    assert (done.exit_code, "--timeout" in done.stderr) == (2, True)
    assert cluster.calls == []
