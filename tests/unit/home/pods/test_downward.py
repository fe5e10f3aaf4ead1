import pytest

from serving.home.pods.downward import PodFacts
from serving.model.errors import InvalidValue
from serving.model.objects import Object

RESOURCES = {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "0.25"}}
FACTS = PodFacts(
    pod={
        "metadata": {"name": "p", "namespace": "n", "labels": {"b": 'say "x"', "a": "1"}, "annotations": {"k": "v"}},
        "spec": {
            "containers": [{"name": "app", "resources": RESOURCES}, {"name": "side"}],
            "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "3"}}}],
        },
    },
    address="127.64.0.1",
    allocatable={"cpu": "2", "memory": "4Gi"},
)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a']", "1"),
        ("metadata.annotations['none']", ""),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.64.0.1"),
    ],
)
def test_a_field_of_the_pod(path: str, text: str) -> None:
    assert FACTS.field(path) == text


def test_a_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"spec\.color"):
        FACTS.field("spec.color")


def test_all_labels_are_lines_of_a_file_and_no_variable() -> None:
    assert FACTS.file({"fieldRef": {"fieldPath": "metadata.labels"}}) == 'a="1"\nb="say \\"x\\""'
    assert FACTS.file({"fieldRef": {"fieldPath": "metadata.annotations"}}) == 'k="v"'
    assert FACTS.file({"fieldRef": {"fieldPath": "metadata.name"}}) == "p"
    with pytest.raises(InvalidValue):
        FACTS.field("metadata.labels")


@pytest.mark.parametrize(
    ("container", "selector", "text"),
    [
        ("first", {"resource": "limits.cpu"}, "3"),
        # 1.5 cores are 2 whole ones, or 1500 thousandths.
        ("app", {"resource": "limits.cpu"}, "2"),
        ("app", {"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ("app", {"resource": "limits.cpu", "divisor": "0"}, "2"),
        ("app", {"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ("app", {"resource": "requests.cpu", "divisor": "1m"}, "250"),
        # A request that is not set is the limit, or nothing; a limit that is not set is the node's.
        ("app", {"resource": "requests.memory"}, "1073741824"),
        ("side", {"resource": "requests.cpu"}, "0"),
        ("side", {"resource": "limits.memory"}, "4294967296"),
    ],
)
def test_a_limit_or_request_in_units_of_the_divisor(container: str, selector: Object, text: str) -> None:
    assert FACTS.resource(selector, container=container) == text
    assert FACTS.file({"resourceFieldRef": {**selector, "containerName": container}}) == text


@pytest.mark.parametrize(
    ("container", "resource", "said"), [("app", "limits.gpu", "limits.gpu"), ("none", "limits.cpu", "none")]
)
def test_a_resource_or_a_container_that_does_not_exist_is_named(container: str, resource: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        FACTS.resource({"resource": resource}, container=container)
