import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import POLICY_ANNOTATION
from serving.core.model.objects import Object, annotations_of, nested
from serving.home.admission.admission import admit
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.tools.cli.services.deployment import (
    Deployment,
    asgi_command,
    check_name,
    dropped_options,
    environment_of,
    find_virtualenv,
    manifest_of,
    merged,
    retained_options,
)


def new_deployment(**arguments: Any) -> Deployment:  # noqa: ANN401 - fields of the record
    return Deployment(**{"name": "shout", "folder": Path("/app"), "command": "python app.py", **arguments})


def template_of(service: Object) -> Object:
    template: Object = service["spec"]["template"]
    return template


def test_command_deployment_is_accepted_by_admission() -> None:
    annotations = {"autoscaling.knative.dev/max-scale": "3"}
    manifest = manifest_of(
        new_deployment(environment={"A": "b=c"}, concurrency=10, annotations=annotations, snapshot="12")
    )
    template = template_of(manifest)
    assert template["metadata"]["annotations"] == {
        "serving.dev/command": "python app.py",
        "serving.dev/dir": "/app",
        "serving.dev/snapshot": "12",
        "autoscaling.knative.dev/max-scale": "3",
    }
    assert template["spec"]["containers"] == [{"image": "shout", "env": [{"name": "A", "value": "b=c"}]}]
    manifest["metadata"]["namespace"] = "default"
    assert admit(SERVING_SERVICE, manifest)["spec"]["template"]["spec"]["containerConcurrency"] == 10


def test_limits_secrets_and_ports_are_merged_with_existing_ones() -> None:
    reference = {"name": "db", "key": "password"}
    before = manifest_of(new_deployment(secrets={"P": reference}, limits={"memory": "1Gi"}, port=9000, h2c=True))
    container = template_of(before)["spec"]["containers"][0]
    assert container == {
        "image": "shout",
        "env": [{"name": "P", "valueFrom": {"secretKeyRef": reference}}],
        "ports": [{"name": "h2c", "containerPort": 9000}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    after = merged(before, new_deployment(environment={"P": "plain"}, limits={"cpu": "1"}, h2c=False), replace=False)
    container = template_of(after)["spec"]["containers"][0]
    assert (container["env"], container["ports"]) == ([{"name": "P", "value": "plain"}], [{"containerPort": 9000}])
    assert container["resources"] == {"limits": {"memory": "1Gi", "cpu": "1"}}
    assert retained_options(before, new_deployment(secrets={"P": reference})) == []
    assert retained_options(before, new_deployment()) == ["-e P"]


def test_queue_proxy_option_is_not_retained_by_the_next_deploy() -> None:
    before = manifest_of(new_deployment(is_own_proxy=True))
    assert template_of(before)["metadata"]["annotations"]["serving.dev/queue-proxy"] == "in-process"
    after = merged(before, new_deployment(), replace=False)
    assert "serving.dev/queue-proxy" not in template_of(after)["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["", "héllo", "Hello", "1a", "a-", "a.b", "a" * 64])
def test_service_name_that_is_no_dns_label_is_rejected(name: str) -> None:
    with pytest.raises(InvalidValue, match="a service's name"):
        check_name(name)
    check_name("a" * 63)


def test_manifest_contains_only_requested_options() -> None:
    assert template_of(manifest_of(new_deployment()))["spec"] == {"containers": [{"image": "shout", "env": []}]}
    full = new_deployment(
        image="registry/x", port=9000, concurrency=0, timeout=5, scaling={"min-scale": "1", "window": "6s"}
    )
    template = template_of(manifest_of(full))
    assert template["spec"] == {
        "containers": [{"image": "registry/x", "env": [], "ports": [{"containerPort": 9000}]}],
        "containerConcurrency": 0,
        "timeoutSeconds": 5,
    }
    annotations = template["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == "1"
    assert annotations["autoscaling.knative.dev/window"] == "6s"


@pytest.mark.parametrize(("port", "expected"), [(None, 8080), (9000, 9000)])
def test_h2c_app_has_a_port_named_h2c(port: int | None, expected: int) -> None:
    (container,) = template_of(manifest_of(new_deployment(h2c=True, port=port)))["spec"]["containers"]
    assert container["ports"] == [{"name": "h2c", "containerPort": expected}]


def existing() -> Object:
    first = new_deployment(
        environment={"A": "1", "B": "2"}, scaling={"min-scale": "2"}, concurrency=5, image="registry/x", snapshot="1"
    )
    service = manifest_of(first)
    service["metadata"]["resourceVersion"] = "7"
    service["spec"]["traffic"] = [{"revisionName": "shout-00001", "percent": 100}]
    template_of(service)["metadata"]["name"] = "shout-first"
    return service


def test_second_deploy_retains_options_not_specified_again() -> None:
    before, second = existing(), new_deployment(environment={"B": "3"}, snapshot="2", timeout=9)
    after = merged(before, second, replace=False)
    template = template_of(after)
    assert after["metadata"] == before["metadata"]
    assert after["spec"]["traffic"] == before["spec"]["traffic"]
    assert template["spec"]["containers"] == [
        {"image": "registry/x", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]}
    ]
    assert (template["spec"]["containerConcurrency"], template["spec"]["timeoutSeconds"]) == (5, 9)
    annotations = template["metadata"]["annotations"]
    assert annotations["serving.dev/snapshot"] == "2"
    assert annotations["autoscaling.knative.dev/min-scale"] == "2"
    assert "name" not in template["metadata"]
    assert retained_options(before, second) == ["-e A", "--min-scale 2"]


def test_an_option_replaces_the_other_spelling_of_its_annotation() -> None:
    before = manifest_of(
        new_deployment(annotations={f"autoscaling.knative.dev/{key}": "2" for key in ("minScale", "metric")})
    )
    assert retained_options(before, new_deployment()) == [
        "--annotate autoscaling.knative.dev/minScale=2",
        "--annotate autoscaling.knative.dev/metric=2",
    ]
    second = new_deployment(scaling={"min-scale": "1"})
    assert retained_options(before, second) == ["--annotate autoscaling.knative.dev/metric=2"]
    annotations = template_of(merged(before, second, replace=False))["metadata"]["annotations"]
    assert {key: text for key, text in annotations.items() if key.startswith("autoscaling")} == {
        "autoscaling.knative.dev/min-scale": "1",
        "autoscaling.knative.dev/metric": "2",
    }


def test_snapshot_is_removed_by_a_deploy_without_it() -> None:
    annotations = template_of(merged(existing(), new_deployment(), replace=False))["metadata"]["annotations"]
    assert "serving.dev/snapshot" not in annotations


def test_replace_retains_only_the_traffic() -> None:
    after = merged(existing(), new_deployment(), replace=True)
    assert template_of(after) == template_of(manifest_of(new_deployment()))
    assert after["spec"]["traffic"] == existing()["spec"]["traffic"]


def test_virtual_environment_variables_are_not_retained() -> None:
    before = manifest_of(new_deployment(environment={"VIRTUAL_ENV": "/v", "PATH": "/v/bin:/bin", "A": "1"}))
    after = template_of(merged(before, new_deployment(), replace=False))
    assert after["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert retained_options(before, new_deployment()) == ["-e A"]


def test_request_policy_annotations_are_on_the_service_and_retained() -> None:
    first = manifest_of(new_deployment(policy={"serving.dev/access": "private"}))
    assert first["metadata"]["annotations"] == {"serving.dev/access": "private"}
    resource = merged(first, new_deployment(), replace=False)
    assert resource["metadata"] == first["metadata"]
    more = merged(resource, new_deployment(policy={"serving.dev/placeholder-page": "true"}), replace=False)
    assert more["metadata"]["annotations"] == {"serving.dev/access": "private", "serving.dev/placeholder-page": "true"}


def test_fixed_port_command_has_a_pod_network() -> None:
    template = manifest_of(Deployment(name="a", folder=Path(), command="run", fixed_port=3000))["spec"]["template"]
    assert template["metadata"]["annotations"]["serving.dev/network"] == "pod"
    assert template["spec"]["containers"][0]["ports"] == [{"containerPort": 3000}]
    image = manifest_of(Deployment(name="a", folder=Path(), image="i", fixed_port=3000))["spec"]["template"]
    assert "serving.dev/network" not in image["metadata"]["annotations"]
    assert image["spec"]["containers"][0]["ports"] == [{"containerPort": 3000}]


def test_policy_annotation_is_accepted_by_admission() -> None:
    manifest = manifest_of(new_deployment(annotations={POLICY_ANNOTATION: "adaptive"}))
    manifest["metadata"]["namespace"] = "default"
    annotations = template_of(admit(SERVING_SERVICE, manifest))["metadata"]["annotations"]
    assert annotations["autoscaling.serving.dev/policy"] == "adaptive"


def make_virtualenv(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "pyvenv.cfg").touch()
    return path


def test_virtualenv_of_the_folder_precedes_the_active_one(tmp_path: Path) -> None:
    active = make_virtualenv(tmp_path / "active")
    environment = {"VIRTUAL_ENV": str(active)}
    assert find_virtualenv(tmp_path / "app", environment) == active
    own = make_virtualenv(tmp_path / "app" / ".venv")
    assert find_virtualenv(tmp_path / "app", environment) == own


def test_folder_named_venv_without_pyvenv_cfg_is_no_virtualenv(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    assert find_virtualenv(tmp_path, {"VIRTUAL_ENV": str(tmp_path / "gone")}) is None


def test_virtualenv_programs_precede_others_in_path() -> None:
    environment = environment_of(Path("/v"))
    assert environment["VIRTUAL_ENV"] == "/v"
    assert environment["PATH"].startswith("/v/bin:/usr/local/sbin:")


def test_asgi_command_without_virtualenv_uses_the_running_interpreter() -> None:
    assert asgi_command("app.main:make.app", None) == f"{sys.executable} -m serving.asgi app.main:make.app"


@pytest.mark.parametrize("app", ["app", "app.py", "a:b:c", "app:", "a b:c", "-m:a"])
def test_invalid_asgi_app_name_is_rejected(app: str) -> None:
    with pytest.raises(InvalidValue, match="as in --asgi app:app"):
        asgi_command(app, None)


def test_virtualenv_without_asgi_packages_is_rejected_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "v", with_pip=False)
    with pytest.raises(
        InvalidValue, match=r"serving and uvicorn in the environment of .*/v/bin/python: .* pip install"
    ):
        asgi_command("app:app", tmp_path / "v")


def test_virtualenv_without_a_python_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a Python that starts"):
        asgi_command("app:app", tmp_path)


def test_image_deploy_removes_command_annotations_and_reports_them() -> None:
    deployment = Deployment(
        name="hello", folder=Path("/app"), command="python3 app.py", fixed_port=80, preload=True, snapshot="d"
    )
    before = manifest_of(deployment)
    wanted = Deployment(name="hello", folder=Path("/app"), image="registry.example.com/hello:1")
    template = merged(before, wanted, replace=False)["spec"]["template"]
    assert template["metadata"]["annotations"] == {}
    assert dropped_options(before, wanted) == ["the command 'python3 app.py'"]
    assert dropped_options(before, deployment) == []


@pytest.mark.parametrize("wanted", [{"image": "other"}, {"command": "python3 new.py"}])
def test_deploy_removes_command_and_args_of_the_container(wanted: dict[str, Any]) -> None:
    before = manifest_of(Deployment(name="hello", folder=Path("/app"), image="i"))
    before["spec"]["template"]["spec"]["containers"][0] |= {"command": ["sh", "-c"], "args": ["exec old"]}
    deployment = Deployment(name="hello", folder=Path("/app"), **wanted)
    (container,) = merged(before, deployment, replace=False)["spec"]["template"]["spec"]["containers"]
    assert not container.keys() & {"command", "args"}
    assert dropped_options(before, deployment) == ["the container's command \"sh -c 'exec old'\""]


def variables_after(before: dict[str, str], after: dict[str, str], *, replace: bool) -> list[str]:
    service = {**manifest_of(new_deployment(environment=before)), "metadata": {"name": "shout"}}
    template = template_of(merged(service, new_deployment(environment=after), replace=replace))
    return [variable["name"] for variable in template["spec"]["containers"][0]["env"]]


@pytest.mark.parametrize("replace", [False, True])
def test_reordered_equal_variables_retain_their_order_unless_dependent(*, replace: bool) -> None:
    before = {"VIRTUAL_ENV": "/venv", "PATH": "/venv/bin", "A": "1", "B": "2"}
    assert variables_after(before, dict(reversed(before.items())), replace=replace) == list(before)
    assert variables_after({"A": "1", "B": "$(A)"}, {"B": "$(A)", "A": "1"}, replace=True) == ["B", "A"]


def test_image_deployment_has_no_command_annotations() -> None:
    manifest = manifest_of(Deployment(name="a", folder=Path("/x"), image="r.example/a:1"))
    template = manifest["spec"]["template"]
    assert annotations_of(template) == {}
    assert nested(template, "spec", "containers", 0)["image"] == "r.example/a:1"
