from pathlib import Path

from serving.core.model.knative import COMMAND_ANNOTATION
from serving.core.model.objects import annotations_of, nested
from serving.tools.cli.services.deployment import Deployment, manifest_of, merged


def test_a_deployed_image_names_no_command_of_this_machine() -> None:
    made = manifest_of(Deployment(name="a", folder=Path("/x"), image="r.example/a:1"))
    template = made["spec"]["template"]
    assert annotations_of(template) == {}
    assert nested(template, "spec", "containers", 0)["image"] == "r.example/a:1"


def test_an_image_replaces_the_command_of_the_revision_before() -> None:
    before = manifest_of(Deployment(name="a", folder=Path("/x"), command="run"))
    assert COMMAND_ANNOTATION in annotations_of(before["spec"]["template"])
    after = merged(before, Deployment(name="a", folder=Path("/x"), image="r.example/a:1"), replace=False)
    assert annotations_of(after["spec"]["template"]) == {}
