"""The command line with a cluster in which the system is installed or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serving.tools.cli.main import main
from tests.integration.bare_cluster import BareCluster, Object

CONFIG = "/api/v1/namespaces/knative-serving/configmaps/config-network"


@pytest.fixture
def cluster() -> Iterator[BareCluster]:
    with BareCluster() as bare_cluster:
        yield bare_cluster


def serving(cluster: BareCluster, folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], env={"KUBECONFIG": str(cluster.kubeconfig(folder))})


def install(cluster: BareCluster, folder: Path, *arguments: str) -> None:
    done = serving(cluster, folder, "install", "--image", "registry.example/serving:1", *arguments)
    assert done.exit_code == 0, done.output


def findings(cluster: BareCluster, folder: Path, name: str) -> list[Object]:
    """The results of a check of ``serving doctor``."""
    output = json.loads(serving(cluster, folder, "doctor", "-o", "json").stdout)
    return [finding for finding in output if finding["name"] == name]


@pytest.mark.parametrize(
    "command", ["get", "describe hello", "scale hello 2", "deploy hello --image registry.example/hello:1"]
)
def test_commands_report_that_the_system_is_not_installed(cluster: BareCluster, tmp_path: Path, command: str) -> None:
    cluster.has_definitions = False
    cluster.put("/api/v1/namespaces/default", {"kind": "Namespace", "metadata": {"name": "default"}})
    done = serving(cluster, tmp_path, *command.split())
    assert done.exit_code == 1
    assert done.stderr == "this server has no serving.knative.dev/v1; `serving install` installs the system\n"


def test_doctor_requires_definitions_of_installed_components(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    assert [finding["state"] for finding in findings(cluster, tmp_path, "definitions")] == ["ok"]
    install(cluster, tmp_path, "--component", "keda-http")
    assert [finding["state"] for finding in findings(cluster, tmp_path, "definitions")] == ["ok"]
    for path in [path for path in cluster.objects if path.endswith("keda.sh")]:
        del cluster.objects[path]
    assert [finding["state"] for finding in findings(cluster, tmp_path, "definitions")] == ["fail"]


def test_unused_key_in_config_map_is_a_warning_not_an_error(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    cluster.merge(CONFIG, {"data": {"ingress-class": "istio", "system-internal-tls": "Disabled"}}, manager="kubectl")
    (finding,) = findings(cluster, tmp_path, "settings")
    assert (finding["state"], finding["advice"]) == ("warn", "delete the key")
    done = serving(cluster, tmp_path, "config", "show", "controller", "-o", "json")
    assert "not in force" in done.stderr
    written = {row["key"]: row["layer"] for row in json.loads(done.stdout) if row["config_map"] == "config-network"}
    assert written["system-internal-tls"] == "file", "other keys of the ConfigMap apply"


def test_config_show_reads_settings_of_deployments(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    rows = json.loads(serving(cluster, tmp_path, "config", "show", "-o", "json").stdout)
    values = {(row["daemon"], row["field"]): row["value"] for row in rows}
    assert values["activator", "public_address"] == "0.0.0.0:8080"
    assert values["election", "enabled"] is True


@pytest.mark.parametrize("command", ["create ann --role view", "list", "revoke ann"])
def test_token_command_in_cluster_refers_to_kubectl_create_token(
    cluster: BareCluster, tmp_path: Path, command: str
) -> None:
    done = serving(cluster, tmp_path, "token", *command.split())
    assert (done.exit_code, cluster.calls) == (1, [])
    assert "kubectl create token" in done.stderr


def test_url_command_prints_only_the_localhost_url_for_a_cluster(cluster: BareCluster, tmp_path: Path) -> None:
    url = "http://hello.default.localhost"
    service = {"kind": "Service", "metadata": {"name": "hello", "namespace": "default"}, "status": {"url": url}}
    cluster.put("/apis/serving.knative.dev/v1/namespaces/default/services/hello", service)
    done = serving(cluster, tmp_path, "url", "hello")
    assert done.stdout == f"{url}\n", "no command that connects to this machine"
    assert "`serving invoke hello` calls it" in done.stderr


def test_adopt_rejects_workload_without_service(cluster: BareCluster, tmp_path: Path) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments/web"
    cluster.put(path, {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {}})
    cluster.put(f"{path}/scale", {"kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 1}})
    done = serving(cluster, tmp_path, "adopt", "deployment/web", "--host", "web.example.org")
    assert (done.exit_code, done.stderr) == (
        1,
        "no Service selects the pods of deployment/web; create one, such as by `kubectl expose`\n",
    )
