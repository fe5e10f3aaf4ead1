import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.tools.cli.services.update import ServiceUpdate, updated

SERVICE: Object = {
    "metadata": {"name": "s"},
    "spec": {
        "template": {
            "metadata": {"name": "s-fixed", "annotations": {"autoscaling.knative.dev/min-scale": "1", "k": "v"}},
            "spec": {"containers": [{"image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]},
        },
        "traffic": [{"revisionName": "s-fixed", "percent": 100}],
    },
}


def test_update_retains_unspecified_fields() -> None:
    changed = updated(
        SERVICE, ServiceUpdate(environment={"B": "3", "C": "4"}, limits={"memory": "1Gi"}, h2c=True, concurrency=2)
    )
    template = changed["spec"]["template"]
    container = template["spec"]["containers"][0]
    assert [(variable["name"], variable["value"]) for variable in container["env"]] == [
        ("A", "1"),
        ("B", "3"),
        ("C", "4"),
    ]
    assert container["ports"] == [{"name": "h2c", "containerPort": 8080}]
    assert (container["image"], container["resources"]) == ("i", {"limits": {"memory": "1Gi"}})
    assert template["spec"]["containerConcurrency"] == 2
    assert template["metadata"]["annotations"] == SERVICE["spec"]["template"]["metadata"]["annotations"]
    # A revision name is not reused, and the argument is not mutated.
    assert "name" not in template["metadata"]
    assert changed["spec"]["traffic"] == SERVICE["spec"]["traffic"]
    assert SERVICE["spec"]["template"]["metadata"]["name"] == "s-fixed"


def test_variables_and_annotations_are_removed() -> None:
    changed = updated(SERVICE, ServiceUpdate(removed=("A",), annotations={"k": ""}, scaling={"max-scale": "3"}))
    template = changed["spec"]["template"]
    assert [variable["name"] for variable in template["spec"]["containers"][0]["env"]] == ["B"]
    assert template["metadata"]["annotations"] == {
        "autoscaling.knative.dev/min-scale": "1",
        "autoscaling.knative.dev/max-scale": "3",
    }
    cleared = updated(SERVICE, ServiceUpdate(clear_env=True, environment={"C": "1"}))
    assert [variable["name"] for variable in cleared["spec"]["template"]["spec"]["containers"][0]["env"]] == ["C"]


def test_scaling_option_replaces_the_other_spelling_of_its_annotation() -> None:
    before = updated(SERVICE, ServiceUpdate(annotations={"autoscaling.knative.dev/maxScale": "9"}))
    changed = updated(before, ServiceUpdate(scaling={"max-scale": "3", "window": "30s"}))
    assert changed["spec"]["template"]["metadata"]["annotations"] == {
        "autoscaling.knative.dev/min-scale": "1",
        "autoscaling.knative.dev/max-scale": "3",
        "autoscaling.knative.dev/window": "30s",
        "k": "v",
    }


def test_route_policy_annotations_are_set_on_the_service() -> None:
    before = updated(SERVICE, ServiceUpdate(policy={"serving.dev/access": "private", "serving.dev/tcp": "5432"}))
    assert before["spec"]["template"]["metadata"]["annotations"] == template_annotations()
    changed = updated(before, ServiceUpdate(policy={"serving.dev/tcp": ""}))
    assert changed["metadata"] == {"name": "s", "annotations": {"serving.dev/access": "private"}}


def template_annotations() -> Object:
    annotations: Object = SERVICE["spec"]["template"]["metadata"]["annotations"]
    return annotations


def test_removal_of_an_unknown_variable_is_rejected_with_known_names() -> None:
    with pytest.raises(InvalidValue, match="A, B"):
        updated(SERVICE, ServiceUpdate(removed=("Z",)))


def a_command(**container: object) -> Object:
    annotations = {
        "serving.dev/command": "python3 app.py",
        "serving.dev/dir": "/app",
        "serving.dev/snapshot": "d",
        "k": "v",
    }
    env = [{"name": "VIRTUAL_ENV", "value": "/v"}, {"name": "PATH", "value": "/v/bin"}, {"name": "A", "value": "1"}]
    spec = {"containers": [{"image": "i", "env": env, **container}]}
    return {"metadata": {"name": "s"}, "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}}}


def test_empty_command_runs_the_image_and_removes_command_fields() -> None:
    template = updated(a_command(), ServiceUpdate(command="", image="j"))["spec"]["template"]
    assert template["metadata"]["annotations"] == {"k": "v"}
    assert template["spec"]["containers"] == [{"image": "j", "env": [{"name": "A", "value": "1"}]}]


def test_new_command_removes_command_and_args_of_the_container() -> None:
    template = updated(a_command(command=["old"], args=["x"]), ServiceUpdate(command="new"))["spec"]["template"]
    assert template["metadata"]["annotations"]["serving.dev/command"] == "new"
    assert template["spec"]["containers"][0].keys() == {"image", "env"}
