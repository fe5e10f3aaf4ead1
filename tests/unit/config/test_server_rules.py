"""Objects that serving creates on a cluster pass a server's validation rules."""

import pytest

from serving.controller.revisions.deployment import desired_deployment, desired_private_service
from serving.controller.revisions.hpa import hpa_writes
from serving.controller.revisions.public import PublicService, public_writes
from serving.controller.revisions.sidecar import Sidecar
from serving.core.model.objects import Object
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.sidecar import SidecarSettings
from serving.home.admission.kuberules.rules import kube_problems
from serving.net.cluster.kinds import kind_of
from serving.net.cluster.port import Create
from serving.tools.cli.client.tree import InstallOptions, objects_of, tree_folder
from tests.unit.controller.builders import a_revision

SIDECAR = Sidecar(
    settings=SidecarSettings(stats_audience="serving-stats"),
    image="registry.example/serving:1",
    stats_url="ws://autoscaler:6081/stats",
    secret_of=lambda namespace, uid: f"{namespace}/{uid}",
    token_of=lambda namespace, name: f"{namespace}/{name}",
)
HPA = {"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev", "autoscaling.knative.dev/window": "1h"}


def problems(resource: Object) -> list[str]:
    kind = kind_of(resource["apiVersion"], resource["kind"])
    return [] if kind is None else [str(problem) for problem in kube_problems(kind, resource)]


def with_uid(resource: Object) -> Object:
    """The object with a uid, as set by a server."""
    return {**resource, "metadata": {**resource["metadata"], "uid": "5bc5eb9a-8e50-4b91-a01d-3a0a0a3b4a4c"}}


def test_installed_objects_have_no_validation_problems() -> None:
    objects = objects_of(tree_folder(), InstallOptions())
    assert {resource["kind"] for resource in objects} >= {"Deployment", "Service", "ConfigMap"}
    assert [problem for resource in objects for problem in problems(resource)] == []


@pytest.mark.parametrize("name", ["a", "hello", "n" * 63])
def test_children_of_a_revision_have_no_validation_problems(name: str) -> None:
    revision = with_uid(a_revision(name))
    scaled = with_uid(a_revision(name, metadata={"annotations": HPA}))
    public = public_writes(revision, PublicService(service=None, slices=(), activators={}))
    writes = (*public, *hpa_writes(scaled, None, AutoscalerSettings()))
    bodies = [dict(write.body) for write in writes if isinstance(write, Create)]
    assert {resource["kind"] for resource in bodies} == {"Service", "HorizontalPodAutoscaler"}
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600, sidecar=SIDECAR)
    assert [
        problem
        for manifest in (deployment, desired_private_service(revision), *bodies)
        for problem in problems(manifest)
    ] == []
    deployment["spec"]["template"]["spec"]["containers"][0]["name"] = "a.b"
    assert problems(deployment)
