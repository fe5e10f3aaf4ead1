"""Manifests of users with silent faults.

Each was accepted without effect, rejected without a reason, or lost fields.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from serving.core.model.errors import Invalid, InvalidValue
from serving.home.admission.admission import admit
from serving.home.apiserver.effects import unrunnable
from serving.home.pods.podplan import app_plan
from serving.home.store.requester import ADMIN_USER, acting_as
from serving.net.cluster.kinds import DEPLOYMENT, SERVICE, SERVING_SERVICE
from serving.tools.cli.main import main
from serving.tools.cli.services.apply import patch_between, with_last_applied
from serving.tools.cli.services.cloudrun import without_cloud_run
from tests.unit.config.policies import refusals

INPUTS = Path(__file__).with_name("inputs")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((INPUTS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    "service", documents("keys_in_the_wrong_place"), ids=lambda service: service["metadata"]["name"]
)
def test_ineffective_annotation_is_rejected_by_admission_and_cluster_policy(service: Any) -> None:  # noqa: ANN401 - JSON
    with pytest.raises(Invalid, match=r"invalid (key name|value)") as caught:
        admit(SERVING_SERVICE, service, is_one_machine=True)
    stored = {**service, "metadata": {**service["metadata"], "generation": 1}}
    assert [str(caught.value).partition(" is invalid: ")[2]] == list(refusals("annotations", stored))


def test_cloud_run_export_is_applied_idempotently() -> None:
    (export,) = documents("export_of_cloud_run")
    portable = without_cloud_run(export)
    assert len(portable.left_out) == 4
    wanted = with_last_applied(portable.body)
    with acting_as(ADMIN_USER, manager="serving"):
        live = admit(SERVING_SERVICE, wanted, is_one_machine=True)
        assert live["metadata"]["annotations"]["serving.knative.dev/creator"] == ADMIN_USER
        assert "metadata" not in patch_between(wanted, live)
        assert admit(SERVING_SERVICE, wanted, live, is_one_machine=True)["spec"] == live["spec"]


@pytest.mark.parametrize("service", documents("commands_of_images"), ids=lambda service: service["metadata"]["name"])
def test_image_command_without_a_runtime_is_reported_and_rejected(service: Any) -> None:  # noqa: ANN401 - JSON
    (warning,) = unrunnable(SERVING_SERVICE, service)
    assert "no container runtime runs images here" in warning
    pod = {"metadata": {"name": "p"}, "spec": service["spec"]["template"]["spec"]}
    with pytest.raises(InvalidValue, match="there is none here"):
        app_plan(pod, pod["spec"]["containers"][0], port=1, home="/", variables={})


def test_deployment_and_service_get_the_server_defaults() -> None:
    deployment, service = documents("defaults")
    with acting_as(ADMIN_USER, manager="kubectl"):
        spec = admit(DEPLOYMENT, deployment, is_one_machine=True)["spec"]
        ports = admit(SERVICE, service, is_one_machine=True)["spec"]["ports"]
    assert (spec["replicas"], spec["template"]["spec"]["restartPolicy"]) == (1, "Always")
    assert ports == [{"port": 80, "protocol": "TCP", "targetPort": 80}]


def test_compose_conversion_reports_every_unconverted_field() -> None:
    done = CliRunner().invoke(main, ["convert", str(INPUTS / "compose.yaml"), "--no-build"])
    shop, claim, data = yaml.safe_load_all(done.stdout)
    assert shop["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 3000}]
    assert (claim["kind"], claim["metadata"]["name"]) == ("PersistentVolumeClaim", "shopdata")
    assert data["metadata"]["annotations"] == {"serving.dev/tcp": "3306", "serving.dev/named-port": "3306"}
    fields = ("labels", "deploy.replicas", "deploy.restart_policy", "depends_on")
    notes = [f"shop: {field} is not converted" for field in fields]
    notes += ["include is not converted", "fill: not converted", "shop: port 53/udp", "shop: port 53 is left out"]
    assert [note for note in notes if f"note: {note}" not in done.stderr] == []


def test_http_scaled_object_conversion_retains_all_fields() -> None:
    done = CliRunner().invoke(main, ["convert", str(INPUTS / "http_scaled_object.yaml")])
    (workload,) = yaml.safe_load_all(done.stdout)
    spec = workload["spec"]
    assert (spec["hosts"], spec["headers"]) == (
        ["tickets.example.com", "*.tickets.example.com"],
        [{"name": "X-Preview", "value": "1"}],
    )
    assert spec["scaling"] == {"min": 0, "max": 4, "target": 25, "metric": "concurrency"}
    assert (spec["responseStartTimeoutSeconds"], spec["waitTimeoutSeconds"]) == (20, 3)
    assert spec["coldStart"] == {"fallback": {"name": "waiting-room", "port": 8080}}
    assert "note: Deployment tickets stays as it is" in done.stderr
    assert "initialCooldownPeriod" not in done.stderr, "it is within the window"
