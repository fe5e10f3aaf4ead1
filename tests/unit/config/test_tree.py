"""``config/`` for clusters: it builds, every field exists, and its permissions are minimal."""

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import __version__
from serving.controller.io.makekey import AUTHORITY_SECRET
from serving.core.model.knative import COMPONENTS_ANNOTATION, OWN_GROUP, SERVING_GROUP
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.election import ElectionSettings
from serving.core.settings.load import load
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import KINDS, POD_AUTOSCALER, SERVERLESS_SERVICE
from serving.net.cluster.leases.shards import shard_name
from serving.net.metrics.queries import QUERY_TOKEN_SECRET
from serving.net.wire.tokens import KEY_SECRET
from serving.tools.cli.client.tree import OPTIONAL_KINDS, OUR_LABEL, InstallOptions, objects_of, tree_folder
from tests.unit.config.strict import faults, model_of

CONFIG = tree_folder()
OBJECTS = objects_of(CONFIG, InstallOptions())
COMPONENTS = sorted(path.name for path in (CONFIG / "components").iterdir())
WORKLOADS = [resource for resource in OBJECTS if resource["kind"] in {"Deployment", "Job"}]
# The C implementation, if PyYAML has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OVERLAY = "resources: [../config]\n"
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")


def named(resource: dict[str, Any]) -> tuple[str, str, str]:
    return resource["kind"], resource["metadata"].get("namespace", ""), resource["metadata"]["name"]


def pod_of(resource: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = resource["spec"]["template"]["spec"]
    return spec


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [resource for resource in OBJECTS if resource["kind"] in kinds]


def built(folder: Path) -> dict[tuple[str, str, str], Any]:
    kubectl = shutil.which("kubectl")
    assert kubectl
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True)
    results = list(yaml.load_all(done.stdout, Loader=LOADER))
    for resource in results:
        if "AdmissionPolicy" in resource["kind"]:
            # kustomize adds a namespace to these cluster-scoped kinds; kubectl ignores it.
            assert resource["metadata"].pop("namespace")
    return {named(resource): resource for resource in results}


def overlaid(folder: Path, overlay: str) -> dict[tuple[str, str, str], Any]:
    """The output of an overlay next to a copy of the tree."""
    shutil.copytree(CONFIG, folder / "config")
    (folder / "mine").mkdir()
    (folder / "mine" / "kustomization.yaml").write_text(overlay)
    return built(folder / "mine")


def documented_overlays() -> list[Any]:
    """The overlays in the docs."""
    pages = sorted((CONFIG.parent / "docs").glob("*.md"))
    blocks = (
        (page.name, block) for page in pages for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL)
    )
    return [pytest.param(result, id=name) for name, result in blocks if "config/components/" in result]


def overlay_for_older_servers() -> str:
    """The documented overlay for servers without ``OPTIONAL_KINDS``."""
    page = (CONFIG.parent / "docs" / "kubernetes-install.md").read_text()
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "$patch: delete" in block)
    return f"{OVERLAY}{block}"


@needs_kubectl
def test_overlay_for_older_servers_omits_optional_kinds(tmp_path: Path) -> None:
    expected = {named(resource) for resource in OBJECTS if resource["kind"] not in OPTIONAL_KINDS}
    assert overlaid(tmp_path, overlay_for_older_servers()).keys() == expected


def undefined_kinds(fields: dict[tuple[str, str, str], Any]) -> set[str]:
    """Kinds of ``config/crd`` that a role of the output names, but whose CRD it lacks."""
    definitions = {f"{kind.plural}.{kind.group}" for kind in crds()}
    roles = [value for (kind, _, _), value in fields.items() if kind in {"Role", "ClusterRole"}]
    named = {
        f"{resource.partition('/')[0]}.{group}"
        for role in roles
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    return (named & definitions) - {name for kind, _, name in fields if kind == "CustomResourceDefinition"}


def component_files() -> list[Path]:
    files = (CONFIG / "components").rglob("*.yaml")
    return sorted(path for path in files if path.name != "kustomization.yaml")


@needs_kubectl
def test_kubectl_kustomize_builds_the_installed_objects() -> None:
    assert built(CONFIG) == {named(resource): resource for resource in OBJECTS}


@needs_kubectl
def test_overlay_with_all_components_builds(tmp_path: Path) -> None:
    overlay = {
        "namespace": "elsewhere",
        "resources": ["../config"],
        "components": [f"../config/components/{name}" for name in COMPONENTS],
        "images": [
            {"name": f"localhost/{name}", "newName": f"registry.example/{name}", "newTag": "9"}
            for name in ("serving", "serving-placement")
        ],
        # As documented: kustomize does not change this reference.
        "patches": [
            {
                "target": {"kind": "ValidatingAdmissionPolicyBinding", "name": f"serving-{name}"},
                "patch": '[{"op": "replace", "path": "/spec/paramRef/namespace", "value": "elsewhere"}]',
            }
            for name in ("annotations", "pods")
        ],
    }
    result = overlaid(tmp_path, yaml.safe_dump(overlay))
    wanted = InstallOptions(image="registry.example/serving:9", namespace="elsewhere")
    for resource in objects_of(CONFIG, wanted):
        if named(resource) == ("Service", "elsewhere", "activator"):
            assert result[named(resource)]["spec"]["type"] == "ClusterIP", (
                "the Service must be internal behind a Gateway"
            )
        elif resource["kind"] == "Deployment" and resource["metadata"]["name"] in {
            "activator",
            "controller",
            "dashboard",
        }:
            assert_environment_is_understood(result[named(resource)])
        else:
            assert result[named(resource)] == resource
    assert {"Gateway", "PodMonitor"} <= {kind for kind, _, _ in result}
    assert result["Deployment", "elsewhere", "placement"]["spec"]["template"]["spec"]["containers"][0]["image"] == (
        "registry.example/serving-placement:9"
    )


def by_name(resource: dict[str, Any]) -> dict[str, Any]:
    """A workload whose named lists are objects: kustomize puts patched elements first."""
    if resource["kind"] != "Deployment":
        return resource
    result = copy.deepcopy(resource)
    for lists in (pod_of(result), *pod_of(result)["containers"]):
        for field in ("env", "ports", "volumes", "volumeMounts"):
            if field in lists:
                lists[field] = {entry["name"]: entry for entry in lists[field]}
    return result


@needs_kubectl
def test_install_and_kubectl_build_equal_components(tmp_path: Path) -> None:
    overlay = {
        "resources": ["../config"],
        "components": [f"../config/components/{name}" for name in COMPONENTS],
        "images": [{"name": f"localhost/{name}", "newTag": __version__} for name in ("serving", "serving-placement")],
    }
    objects = objects_of(CONFIG, InstallOptions(components=tuple(COMPONENTS)))
    assert objects[0]["metadata"].pop("annotations") == {COMPONENTS_ANNOTATION: ",".join(COMPONENTS)}
    result = overlaid(tmp_path, yaml.safe_dump(overlay))
    assert {name: by_name(value) for name, value in result.items()} == {
        named(resource): by_name(resource) for resource in objects
    }


@needs_kubectl
@pytest.mark.parametrize("overlay", documented_overlays())
def test_documented_overlay_builds_with_required_crds(overlay: str, tmp_path: Path) -> None:
    result = overlaid(tmp_path, overlay)
    assert ("Deployment", "knative-serving", "activator") in result
    assert undefined_kinds(result) == set()


def with_components(*components: str) -> dict[tuple[str, str, str], Any]:
    """The objects that ``serving install`` applies with some components."""
    return {named(resource): resource for resource in objects_of(CONFIG, InstallOptions(components=components))}


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_builds_with_required_crds(component: str) -> None:
    required = {"nodegroup-cluster-api": ("nodegroup",), "placement-binder": ("placement",)}.get(component, ())
    assert undefined_kinds(with_components(*required, component)) == set()


def test_tls_component_adds_a_port_and_a_secret() -> None:
    result = with_components("tls")
    before = {named(resource): resource for resource in OBJECTS}
    changed = {name for name, value in result.items() if before.get(name) != value}
    space = "knative-serving"
    assert changed == {
        ("Namespace", "", space),  # its annotation lists the components
        *{(kind, space, "activator") for kind in ("Deployment", "Service")},
        *{(kind, space, "serving-activator-tls") for kind in ("Role", "RoleBinding")},
        ("NetworkPolicy", space, "serving-tls"),
    }
    container = pod_of(result["Deployment", space, "activator"])["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    (rule,) = result["Role", space, "serving-activator-tls"]["rules"]
    assert rule["verbs"] == ["get"]
    assert ",".join(rule["resourceNames"]) == environment["SERVING_ACTIVATOR_TLS_SECRETS"]
    assert {"name": "tls", "containerPort": 8443} in container["ports"]
    assert result["Service", space, "activator"]["spec"]["ports"] == [
        {"name": "http", "port": 80, "targetPort": "public"},
        {"name": "https", "port": 443, "targetPort": "tls"},
    ]


def test_dashboard_mounts_the_controllers_actions_token() -> None:
    result = with_components("dashboard-actions")
    volumes = pod_of(result["Deployment", "knative-serving", "dashboard"])["volumes"]
    mounted = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    actions = environment_of(result["Deployment", "knative-serving", "controller"])["SERVING_ACTIONS_TOKEN_SECRET"]
    assert mounted == {QUERY_TOKEN_SECRET, AUTHORITY_SECRET, actions}


def test_activator_probes_tolerate_slow_responses() -> None:
    """On two busy nodes at 500 requests/s, /healthz took more than 1 s, and the last activator was removed."""
    (result,) = (resource for resource in of_kind("Deployment") if resource["metadata"]["name"] == "activator")
    container = pod_of(result)["containers"][0]
    for name, tolerated_s in (("readinessProbe", 12), ("livenessProbe", 60)):
        probe = container[name]
        assert probe["timeoutSeconds"] >= 3, name
        assert probe["failureThreshold"] * max(probe["periodSeconds"], probe["timeoutSeconds"]) >= tolerated_s, name


@needs_kubectl
def test_gateway_component_adds_settings_and_controller_rights(tmp_path: Path) -> None:
    result = overlaid(tmp_path, f"namespace: elsewhere\n{OVERLAY}components: [../config/components/gateway]")
    before = {named(resource): resource for resource in objects_of(CONFIG, InstallOptions(namespace="elsewhere"))}
    assert {name for name, value in result.items() if before.get(name) != value} == {
        ("Deployment", "elsewhere", "controller"),
        ("Service", "elsewhere", "activator"),
        ("Gateway", "elsewhere", "serving"),
        # An overlay must patch them, as documented.
        *{("ValidatingAdmissionPolicyBinding", "", f"serving-{name}") for name in ("annotations", "pods")},
        *{(kind, "", "serving-controller-gateway") for kind in ("ClusterRole", "ClusterRoleBinding")},
    }
    controller = result["Deployment", "elsewhere", "controller"]
    environment = environment_of(controller)
    assert environment["SERVING_CONTROLLER_GATEWAY"] == "x/serving", "the namespace must be that of the pod"
    assert environment["SERVING_CONTROLLER_PUBLIC_SERVICES"] == "true"
    (rule,) = result["ClusterRole", "", "serving-controller-gateway"]["rules"]
    assert rule["resources"] == ["httproutes"]
    binding = result["ClusterRoleBinding", "", "serving-controller-gateway"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "controller", "namespace": "elsewhere"}]
    assert "gateway.networking.k8s.io" not in {
        group
        for entry in of_kind("Role", "ClusterRole")
        for rule in entry.get("rules", ())
        for group in rule["apiGroups"]
    }


@pytest.mark.parametrize("resource", OBJECTS, ids=lambda resource: "/".join(named(resource)))
def test_every_field_exists_in_kubernetes(resource: dict[str, Any]) -> None:
    assert faults(resource) == []


@pytest.mark.parametrize("path", component_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_field_of_a_component_exists_in_kubernetes(path: Path) -> None:
    for resource in yaml.safe_load_all(path.read_text()):
        if resource["apiVersion"].startswith(("gateway.networking.k8s.io/", "monitoring.coreos.com/")):
            assert model_of(resource) is None, "third-party kinds are not checked here"
        else:
            assert faults(resource) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "replica"), 2, ".spec.replica: no such field in V1DeploymentSpec"),
        (("spec", "replicas"), "2", ".spec.replicas: '2' is not a int"),
        (("spec", "template", "spec", "containers"), {}, ".spec.template.spec.containers: {} is not a list"),
        (("metadata", "labels"), {"a": 1}, ".metadata.labels.a: 1 is not a str"),
    ],
)
def test_faults_reports_unknown_fields_and_wrong_types(path: tuple[str, ...], value: object, message: str) -> None:
    result = copy.deepcopy(of_kind("Deployment")[0])
    place = result
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert message in faults(result)


def test_faults_treats_null_as_absent() -> None:
    assert (
        faults({"apiVersion": "v1", "kind": "ConfigMap", "data": None, "metadata": {"name": "a", "labels": None}}) == []
    )


def test_faults_reports_missing_required_fields() -> None:
    resource = copy.deepcopy(of_kind("Deployment")[0])
    del resource["spec"]["selector"]
    assert [text for text in faults(resource) if "selector" in text]


def test_admission_policies_use_config_maps_of_their_namespace() -> None:
    for space in ("knative-serving", "elsewhere"):
        objects = objects_of(CONFIG, InstallOptions(namespace=space))
        params = [resource["spec"]["paramRef"] for resource in objects if "paramRef" in resource.get("spec", {})]
        names = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "ConfigMap"}
        assert {parameter["namespace"] for parameter in params} == {space}
        assert {parameter["name"] for parameter in params} <= names


def test_every_installed_object_has_the_part_of_label() -> None:
    label, value = OUR_LABEL
    others = [
        named(resource)
        for resource in OBJECTS
        if resource["metadata"].get("labels", {}).get(label) != value and resource["kind"] != "ConfigMap"
    ]
    assert others == []


def test_workload_images_have_the_version_of_the_code() -> None:
    images = {container["image"] for workload in WORKLOADS for container in pod_of(workload)["containers"]}
    assert images == {f"localhost/serving:{__version__}"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda resource: resource["metadata"]["name"])
def test_workload_pods_meet_the_restricted_standard(workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert all("hostPath" not in volume for volume in pod.get("volumes", ()))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda resource: resource["metadata"]["name"])
def test_workload_pods_have_their_service_account_and_module(workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    assert pod["serviceAccountName"] == workload["metadata"]["name"]
    assert ("ServiceAccount", "knative-serving", pod["serviceAccountName"]) in {named(resource) for resource in OBJECTS}
    python, flag, module = pod["containers"][0]["command"]
    assert (python, flag) == ("python", "-m")
    assert (CONFIG.parent / f"{module.replace('.', '/')}.py").exists()


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda resource: resource["metadata"]["name"])
def test_daemon_environment_has_only_known_settings(deployment: dict[str, Any]) -> None:
    assert_environment_is_understood(deployment)


def environment_of(fields: dict[str, Any]) -> dict[str, str]:
    """The environment as a kubelet expands it: a value may refer to previous variables."""
    result: dict[str, str] = {}
    for entry in pod_of(fields)["containers"][0]["env"]:
        result[entry["name"]] = re.sub(
            r"\$\((\w+)\)", lambda match: result.get(match[1], match[0]), entry.get("value", "x")
        )
    return result


def assert_environment_is_understood(resource: dict[str, Any]) -> None:
    name = resource["metadata"]["name"]
    (daemon,) = (each_daemon for each_daemon in DAEMONS if each_daemon.name == name)
    environment = environment_of(resource)
    prefix = f"SERVING_{name.upper()}_"
    known = {field.variable.lower() for field in daemon.fields()}
    lowers = {variable.removeprefix(prefix).lower() for variable in environment if variable.startswith(prefix)}
    assert lowers <= known
    load(daemon, registry=DAEMONS, environment=environment)


def test_replicated_daemons_have_disruption_budgets_and_spread() -> None:
    # activator-hpa sets a minimum instead of the number of activators.
    objects = objects_of(
        CONFIG, InstallOptions(components=tuple(name for name in COMPONENTS if name != "activator-hpa"))
    )
    deployments = [resource for resource in objects if resource["kind"] == "Deployment"]
    several = {resource["metadata"]["name"] for resource in deployments if resource["spec"]["replicas"] > 1}
    assert several == {resource["metadata"]["name"] for resource in deployments} - {"dashboard"}
    budgets = {
        resource["metadata"]["name"]: resource["spec"]
        for resource in objects
        if resource["kind"] == "PodDisruptionBudget"
    }
    assert several == budgets.keys()
    assert {spec["maxUnavailable"] for spec in budgets.values()} <= {1}
    for deployment in deployments:
        if deployment["metadata"]["name"] in several:
            (spread,) = pod_of(deployment)["topologySpreadConstraints"]
            assert spread["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": deployment["metadata"]["name"]}
            assert spread["matchLabelKeys"] == ["pod-template-hash"]


def test_service_target_ports_exist_in_selected_pods() -> None:
    pods = {
        resource["metadata"]["name"]: pod_of(resource)["containers"][0]["ports"] for resource in of_kind("Deployment")
    }
    for service in of_kind("Service"):
        ports = {port["name"] for port in pods[service["spec"]["selector"]["app.kubernetes.io/name"]]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_deployments_mount_exactly_the_generated_secrets() -> None:
    mounted = {
        volume["secret"]["secretName"]
        for deployment in of_kind("Deployment")
        for volume in pod_of(deployment)["volumes"]
        if "secret" in volume
    }
    assert mounted == {KEY_SECRET, QUERY_TOKEN_SECRET, AUTHORITY_SECRET}


def test_no_role_has_wildcards_or_lists_secrets() -> None:
    for resource in of_kind("Role", "ClusterRole"):
        for rule in resource.get("rules", ()):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                assert resource["kind"] == "Role"
                assert not {"list", "watch"} & set(rule["verbs"])
                assert "get" not in rule["verbs"] or rule["resourceNames"]


def test_aggregated_roles_cover_namespaced_kinds_without_status() -> None:
    """ClusterRoles that are aggregated to Kubernetes' view, edit and admin."""
    added = {
        role: {
            (group, resource): set(rule["verbs"])
            for cluster_role in of_kind("ClusterRole")
            if cluster_role["metadata"]["labels"].get(f"rbac.authorization.k8s.io/aggregate-to-{role}") == "true"
            for rule in cluster_role.get("rules", ())
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        for role in ("view", "edit", "admin")
    }
    theirs = {
        (kind.group, kind.plural) for kind in KINDS if kind.namespaced and kind.group in {SERVING_GROUP, OWN_GROUP}
    }
    views = {(kind.group, kind.plural) for kind in (POD_AUTOSCALER, SERVERLESS_SERVICE)}
    assert added["edit"] == {key: {"create", "update", "patch", "delete", "deletecollection"} for key in theirs}
    assert added["view"] == {key: {"get", "list", "watch"} for key in theirs | views}
    # Kubernetes' admin includes edit; ClusterDomainClaims are cluster-scoped.
    assert added["admin"] == {}


def test_daemons_can_write_only_their_own_leases() -> None:
    shards = ElectionSettings().shard_count
    own = {
        "controller": ["controller"],
        "autoscaler": [shard_name("autoscaler", index, shards) for index in range(shards)],
    }
    written = {
        resource["metadata"]["name"].removeprefix("serving-"): rule.get("resourceNames", ())
        for resource in of_kind("Role", "ClusterRole")
        for rule in resource.get("rules", ())
        if "leases" in rule["resources"] and {"update", "patch", "delete"} & set(rule["verbs"])
    }
    assert written == own


def test_dashboard_role_is_read_only() -> None:
    verbs = {
        verb
        for resource in of_kind("Role", "ClusterRole")
        if "dashboard" in resource["metadata"]["name"]
        for rule in resource.get("rules", ())
        for verb in rule["verbs"]
    }
    assert verbs <= {"get", "list", "watch"}


def test_network_policies_deny_ingress_by_default() -> None:
    closed, *opened = of_kind("NetworkPolicy")
    assert closed["spec"]["podSelector"]["matchLabels"] == dict([OUR_LABEL])
    assert "ingress" not in closed["spec"]
    assert all(
        "from" in rule or rule["ports"] == [{"protocol": "TCP", "port": 8080}]
        for resource in opened
        for rule in resource["spec"]["ingress"]
    )
