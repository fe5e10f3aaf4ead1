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


def noted(fields: Json) -> Json:
    note = resources_patch(fields)
    assert note is not None
    return {**fields, **note}


def test_a_dormant_pod_requests_the_least_and_gets_all_back() -> None:
    first = noted(pod(APP))
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
def test_memory_stays_where_nothing_is_saved_or_known(used_bytes: int | None) -> None:
    patch = resize_of(pod(APP), is_dormant=True, used={"app": Resources(memory_bytes=used_bytes)})
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}


def test_a_pod_that_requests_nothing_is_left_alone() -> None:
    for bare in ({"name": "app"}, {"name": "app", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}):
        assert resources_patch(pod(bare)) is None
        assert resize_of(pod(bare), is_dormant=True, used=NONE) is None


def test_what_is_resized_by_a_restart_stays() -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}, {"resourceName": "memory"}]
    used = {"app": Resources(memory_bytes=2**20)}
    patch = resize_of(pod({**APP, "resizePolicy": policy}), is_dormant=True, used=used)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"memory": "10Mi"}}}]}}


@pytest.mark.parametrize("text", ["", "no JSON", '{"app": 1}'])
def test_a_note_that_cannot_be_read_is_none(text: str) -> None:
    odd = pod(APP)
    odd["metadata"]["annotations"] = {AWAKE_RESOURCES_ANNOTATION: text}
    assert awake_resources(odd) == {"app": {"requests": {"cpu": "1", "memory": "1Gi"}}}


def test_a_container_of_the_note_that_is_gone_gets_what_it_had() -> None:
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
def test_a_start_gets_more_cpu_until_it_is_over(resources: Json | None, starting: Json, started: Json) -> None:
    container = {"name": "app"} if resources is None else {"name": "app", "resources": resources}
    assert start_resources(container, "2") == starting
    assert started_resources(container) == started


def test_containers_that_are_as_they_should_be_are_left_out() -> None:
    beside: Json = {"name": "beside", "resources": {"requests": {"memory": "64Mi"}}}
    patch = resize_of(pod(APP, beside), is_dormant=True, used=NONE)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}
    assert resize_of(pod(beside), is_dormant=True, used=NONE) is None


def test_a_pod_may_request_cpu_alone() -> None:
    patch = resize_of(pod({"name": "app", "resources": {"requests": {"cpu": "500m"}}}), is_dormant=True, used=NONE)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1m"}}}]}}
