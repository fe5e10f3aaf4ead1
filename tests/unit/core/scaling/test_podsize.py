from typing import Any

import msgspec
import pytest

from serving.core.model.knative import AWAKE_RESOURCES_ANNOTATION
from serving.core.model.quantity import Resources
from serving.core.scaling.podsize import awake_resources, resize_of, resources_patch, start_resources, started_resources

Json = dict[str, Any]
APP: Json = {"name": "app", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}}
PROXY: Json = {"name": "queue-proxy", "resources": {"requests": {"cpu": "25m"}}}
NONE: dict[str, Resources] = {}


def pod(*containers: Json, awake: object = None) -> Json:
    annotations = {} if awake is None else {AWAKE_RESOURCES_ANNOTATION: msgspec.json.encode(awake).decode()}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [*containers, PROXY]}}


def after(resource: Json, patch: Json | None) -> Json:
    """The pod after a patch, as the server merges it."""
    assert patch is not None
    (change,) = patch["spec"]["containers"]
    containers = []
    for container in resource["spec"]["containers"]:
        resources = container["resources"]
        if container["name"] == change["name"]:
            resources = {kind: {**resources.get(kind, {}), **change["resources"].get(kind, {})} for kind in resources}
        containers.append({**container, "resources": resources})
    return {**resource, "spec": {"containers": containers}}


def with_awake_annotation(fields: Json) -> Json:
    patch = resources_patch(fields)
    assert patch is not None
    return {**fields, **patch}


def test_requests_are_minimal_while_dormant_and_restored_afterwards() -> None:
    first = with_awake_annotation(pod(APP))
    used = {"app": Resources(memory_bytes=100 * 2**20)}
    down = resize_of(first, is_dormant=True, used=used)
    assert down == {
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m", "memory": "118Mi"}}}]}
    }
    small = after(first, down)
    assert resize_of(small, is_dormant=True, used=used) is None
    up = resize_of(small, is_dormant=False, used=NONE)
    assert up == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}
    assert resize_of(after(small, up), is_dormant=False, used=NONE) is None
    assert resources_patch(first) is None


@pytest.mark.parametrize("used_bytes", [None, 2**30])
def test_memory_request_is_unchanged_without_savings_or_measurement(used_bytes: int | None) -> None:
    patch = resize_of(pod(APP), is_dormant=True, used={"app": Resources(memory_bytes=used_bytes)})
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}


def test_pod_without_cpu_or_memory_requests_is_not_resized() -> None:
    for bare in ({"name": "app"}, {"name": "app", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}):
        assert resources_patch(pod(bare)) is None
        assert resize_of(pod(bare), is_dormant=True, used=NONE) is None


def test_resource_with_restart_policy_is_not_resized() -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}, {"resourceName": "memory"}]
    used = {"app": Resources(memory_bytes=2**20)}
    patch = resize_of(pod({**APP, "resizePolicy": policy}), is_dormant=True, used=used)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"memory": "10Mi"}}}]}}


@pytest.mark.parametrize("text", ["", "no JSON", '{"app": 1}'])
def test_invalid_awake_annotation_is_ignored(text: str) -> None:
    odd = pod(APP)
    odd["metadata"]["annotations"] = {AWAKE_RESOURCES_ANNOTATION: text}
    assert awake_resources(odd) == {"app": {"requests": {"cpu": "1", "memory": "1Gi"}}}


def test_removed_container_of_annotation_gets_its_former_resources() -> None:
    patch = resize_of(pod(awake={"app": {"requests": {"cpu": "1"}}}), is_dormant=False, used=NONE)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}


@pytest.mark.parametrize(
    ("resources", "starting", "started"),
    [
        (None, {"requests": {"cpu": "2"}}, {"requests": {"cpu": "1m"}}),
        (
            {"requests": {"cpu": "100m", "memory": "1Gi"}},
            {"requests": {"cpu": "2", "memory": "1Gi"}},
            {"requests": {"cpu": "100m"}},
        ),
        (
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
            {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
        ),
        (
            {"limits": {"cpu": "4", "memory": "1Gi"}},
            {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}},
            {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}},
        ),
        ({"requests": {"cpu": "3"}}, {"requests": {"cpu": "3"}}, {"requests": {"cpu": "3"}}),
    ],
)
def test_starting_container_gets_more_cpu_until_started(resources: Json | None, starting: Json, started: Json) -> None:
    container = {"name": "app"} if resources is None else {"name": "app", "resources": resources}
    assert start_resources(container, "2") == starting
    assert started_resources(container) == started


def test_containers_without_change_are_omitted_from_patch() -> None:
    sidecar: Json = {"name": "sidecar", "resources": {"requests": {"memory": "64Mi"}}}
    patch = resize_of(pod(APP, sidecar), is_dormant=True, used=NONE)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}
    assert resize_of(pod(sidecar), is_dormant=True, used=NONE) is None


def test_pod_with_only_cpu_request_is_resized() -> None:
    patch = resize_of(pod({"name": "app", "resources": {"requests": {"cpu": "500m"}}}), is_dormant=True, used=NONE)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}
