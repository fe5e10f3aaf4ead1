"""``serving install`` as a user has it, against as much of a cluster's API as it meets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from serving.cli.main import main
from serving.cli.tree import Wanted, objects_of, path_of, tree_folder
from serving.cluster.memory import MemoryCluster
from tests.integration.api_server import served
from tests.integration.bare_cluster import BareCluster

OBJECTS = objects_of(tree_folder(), Wanted())
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETTINGS = "/api/v1/namespaces/knative-serving/configmaps/config-autoscaler"


@pytest.fixture
def cluster() -> Iterator[BareCluster]:
    with BareCluster() as one:
        yield one


def install(cluster: BareCluster, folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["install", "--kubeconfig", str(cluster.kubeconfig(folder)), *arguments])


def fill(cluster: BareCluster) -> None:
    """As an installation leaves it."""
    for one in OBJECTS:
        cluster.put(path_of(one), one)


def results(done: Result) -> list[str]:
    return [line.rpartition(" ")[2] for line in done.stdout.splitlines()]


def test_everything_is_made_and_each_object_is_told(cluster: BareCluster, tmp_path: Path) -> None:
    done = install(cluster, tmp_path)
    assert done.exit_code == 0, done.output
    assert results(done) == ["created"] * len(OBJECTS)
    assert "deployment/activator created" in done.stdout
    assert cluster.objects.keys() == {path_of(one) for one in OBJECTS}


def test_what_others_need_is_there_before_them(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    order = [path.split("/")[-2] for _, path in cluster.calls]
    kinds = list(dict.fromkeys(order))
    assert kinds[:2] == ["namespaces", "customresourcedefinitions"]
    assert kinds.index("configmaps") < kinds.index("deployments")
    assert kinds.index("rolebindings") < kinds.index("jobs") < kinds.index("deployments")


def test_a_second_time_changes_nothing(cluster: BareCluster, tmp_path: Path) -> None:
    install(cluster, tmp_path)
    assert set(results(install(cluster, tmp_path))) == {"unchanged"}


def test_another_image_changes_the_daemons_and_nothing_else(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    done = install(cluster, tmp_path, "--image", "registry.example/serving:2")
    changed = {
        line.split("/")[0] for line in done.stdout.splitlines() if line.endswith("changed") and "unch" not in line
    }
    assert changed == {"deployment", "job"}, "a job is made anew, because it cannot be changed"
    assert ("DELETE", "/apis/batch/v1/namespaces/knative-serving/jobs/makekey") in cluster.calls


def test_settings_that_somebody_has_changed_are_kept(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    theirs = {"stable-window": "90s"}
    cluster.theirs[SETTINGS] = theirs
    before = cluster.objects[SETTINGS]
    cluster.put(SETTINGS, {**before, "data": {**before["data"], **theirs}})
    done = install(cluster, tmp_path)
    assert "configmap/config-autoscaler kept" in done.stdout
    assert cluster.objects[SETTINGS]["data"]["stable-window"] == "90s"


@pytest.mark.parametrize("name", ["services.serving.knative.dev", "podautoscalers.autoscaling.internal.knative.dev"])
def test_beside_knative_nothing_is_touched(cluster: BareCluster, tmp_path: Path, name: str) -> None:
    labels = {"app.kubernetes.io/name": "knative-serving"}
    cluster.put(f"{CRDS}/{name}", {"kind": "CustomResourceDefinition", "metadata": {"name": name, "labels": labels}})
    for option in ([], ["--uninstall"]):
        done = install(cluster, tmp_path, *option)
        assert done.exit_code == 1
        assert f"{name} is there and is not ours: Knative Serving" in done.stderr
    assert cluster.calls == []


def test_a_server_without_definitions_is_no_cluster(cluster: BareCluster, tmp_path: Path) -> None:
    cluster.has_definitions = False
    done = install(cluster, tmp_path)
    assert (done.exit_code, "no cluster" in done.stderr) == (1, True)


async def test_our_own_api_is_no_cluster(tmp_path: Path) -> None:
    store = MemoryCluster()
    async with served(store, tmp_path) as api:
        command = ["install", "--kubeconfig", str(api.kubeconfig)]
        done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert "`serving up` needs no installation" in done.stderr
    await store.close()


def test_uninstalled_nothing_is_left(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    done = install(cluster, tmp_path, "--uninstall")
    assert set(results(done)) == {"deleted"}
    assert cluster.objects == {}
    assert results(install(cluster, tmp_path, "--uninstall")) == []


def test_services_are_not_deleted_unless_that_is_said(cluster: BareCluster, tmp_path: Path) -> None:
    fill(cluster)
    one = "/apis/serving.knative.dev/v1/services/hello"
    cluster.put(one, {"kind": "Service", "metadata": {"name": "hello"}})
    cluster.calls.clear()
    done = install(cluster, tmp_path, "--uninstall")
    assert (done.exit_code, cluster.calls) == (1, [])
    assert "there are 1 services" in done.stderr
    assert install(cluster, tmp_path, "--uninstall", "--with-services").exit_code == 0


def test_a_dry_run_asks_nobody_and_prints_what_would_be_applied() -> None:
    done = CliRunner().invoke(main, ["install", "--dry-run", "-n", "mine", "--domain", "apps.example.org"])
    found = list(yaml.safe_load_all(done.stdout))
    assert found == objects_of(tree_folder(), Wanted(namespace="mine", domain="apps.example.org"))
    (settings,) = (one for one in found if one["metadata"]["name"] == "config-controller")
    assert (settings["data"]["domain"], settings["metadata"]["namespace"]) == ("apps.example.org", "mine")
