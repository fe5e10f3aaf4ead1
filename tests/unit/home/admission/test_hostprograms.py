"""Users without permission to run programs of the machine cannot use its programs and folders."""

import pytest

from serving.core.model.errors import Forbidden
from serving.core.model.objects import Object
from serving.home.admission.hostprograms import without_host_programs
from serving.home.store.requester import acting_as
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, SERVING_SERVICE

IMAGE: Object = {"containers": [{"image": "x", "command": ["sh"]}]}
MARK = {"serving.dev/images-only": "true"}


def new_service(annotations: dict[str, str] | None = None, spec: Object | None = None, **more: object) -> Object:
    template = {"metadata": {"annotations": annotations or {}}, "spec": IMAGE if spec is None else spec}
    return {"metadata": {"name": "s"}, "spec": {"template": template, **more}}


def written(new: Object, old: Object | None = None, *, has_runtime: bool = True) -> Object:
    with acting_as("dee", runs_programs=False):
        return without_host_programs(SERVING_SERVICE, new, old, has_runtime=has_runtime)


def annotations_of_template(whole: Object) -> object:
    return whole["spec"]["template"]["metadata"]["annotations"]


@pytest.mark.parametrize(
    "name", ["command", "dir", "snapshot", "network", "template", "preload-modules", "queue-proxy"]
)
def test_host_program_annotations_are_forbidden(name: str) -> None:
    with pytest.raises(Forbidden, match=f'User "dee" cannot run programs .*serving.dev/{name}'):
        written(new_service({f"serving.dev/{name}": "x"}))


def test_host_path_volume_is_forbidden() -> None:
    volume = {"name": "v", "hostPath": {"path": "/root"}}
    with pytest.raises(Forbidden, match="hostPath of volume v"):
        written(new_service(spec={**IMAGE, "volumes": [volume]}))


def test_pods_are_forbidden_without_container_runtime() -> None:
    with pytest.raises(Forbidden, match="no container runtime"):
        written(new_service(), has_runtime=False)


def test_image_pods_are_annotated_as_images_only() -> None:
    assert annotations_of_template(written(new_service({"a": "b"}))) == {"a": "b", **MARK}
    # A removed mark is added again.
    assert annotations_of_template(written(new_service(), new_service(MARK))) == MARK


def test_admins_service_can_be_scaled_but_its_containers_not_changed() -> None:
    before = new_service({"serving.dev/dir": "/app", "serving.dev/command": "run"})
    scaled = new_service({**annotations_of_template(before), "autoscaling.knative.dev/min-scale": "2"})  # type: ignore[dict-item]
    split = {**before, "spec": {**before["spec"], "traffic": [{"percent": 100}]}}
    slower = new_service(annotations_of_template(before), {**IMAGE, "timeoutSeconds": 9})  # type: ignore[arg-type]
    for service in (scaled, split, slower):
        assert written(service, before) == service
    changed = {**IMAGE, "containers": [{"image": "x", "env": [{"name": "LD_PRELOAD", "value": "/x"}]}]}
    with pytest.raises(Forbidden):
        written(new_service(annotations_of_template(before), changed), before)  # type: ignore[arg-type]


def test_pods_and_deployments_with_host_programs_are_forbidden() -> None:
    with acting_as("dee", runs_programs=False):
        pod = {"metadata": {"name": "p"}, "spec": IMAGE}
        marked = without_host_programs(POD, pod, None, has_runtime=True)
        assert marked["metadata"] == {"name": "p", "annotations": MARK}
        named = {"name": "p", "annotations": {"serving.dev/command": "x"}}
        with pytest.raises(Forbidden):
            without_host_programs(POD, {**pod, "metadata": named}, None, has_runtime=True)
        with pytest.raises(Forbidden):
            without_host_programs(DEPLOYMENT, new_service({"serving.dev/dir": "/"}), None, has_runtime=True)
        assert without_host_programs(CONFIG_MAP, pod, None, has_runtime=True) is pod


def test_malformed_template_is_returned_unchanged() -> None:
    broken: list[Object] = [{"metadata": {}, "spec": {"template": 1}}, {"metadata": {}}]
    for manifest in broken:
        assert written(manifest) is manifest


def test_system_and_admins_may_run_host_programs() -> None:
    service = new_service({"serving.dev/command": "x"})
    assert without_host_programs(SERVING_SERVICE, service, None, has_runtime=False) is service
    with acting_as("op"):
        assert without_host_programs(SERVING_SERVICE, service, None, has_runtime=False) is service
