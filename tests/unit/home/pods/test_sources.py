import base64

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.home.pods.sources import (
    TOKEN,
    ByteBudget,
    PodFacts,
    Reference,
    VolumeFile,
    container_environment,
    data_of,
    expanded,
    references,
    volume_files,
)

CONFIG, SECRET = Reference(kind="ConfigMap", name="c"), Reference(kind="Secret", name="s")
SOURCES = {CONFIG: {"A": b"1", "B": b"2"}, SECRET: {"K": b"hush"}}

RESOURCES = {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "0.25"}}
DOUBLED = [{"name": "A0", "value": "x"}, *({"name": f"A{n + 1}", "value": f"$(A{n})$(A{n})"} for n in range(40))]
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


def new_pod(container: Object, *volumes: Object) -> Object:
    return {
        "metadata": {"name": "p", "namespace": "n", "labels": {"l": "v"}},
        "spec": {"containers": [container], "volumes": volumes},
    }


def environment(**container: object) -> dict[str, str]:
    facts = PodFacts(pod=new_pod(container), address="127.64.0.1")
    return container_environment(facts, container, sources=SOURCES)


def plain(content: bytes) -> VolumeFile:
    return VolumeFile(content=content, mode=0o644)


@pytest.mark.parametrize(
    "container",
    [
        {"env": DOUBLED},
        {"env": [{"name": f"V{n}", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "BIG"}}} for n in range(9)]},
        {"envFrom": [{"prefix": f"P{n}_", "configMapRef": {"name": "c"}} for n in range(9)]},
    ],
)
def test_environment_above_1_mib_is_rejected(container: Object) -> None:
    sources = {CONFIG: {"BIG": b"x" * 200_000}}
    with pytest.raises(InvalidValue, match=r"the environment of container app.*at most 1048576 bytes"):
        container_environment(FACTS, {"name": "app", **container}, sources=sources)


def test_repeated_env_from_source_is_read_once_at_last_position() -> None:
    first, second = {"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}
    sources = {CONFIG: {f"K{n}": b"1" for n in range(9000)}, SECRET: {"K0": b"2", "K1": b"2"}}
    variables = container_environment(FACTS, {"envFrom": [*[first] * 2000, second]}, sources=sources)
    assert (len(variables), variables["K0"], variables["K2"]) == (9000, "2", "1")
    again = container_environment(FACTS, {"envFrom": [first, second, first]}, sources=sources)
    assert again["K0"] == "1"
    optional = {"configMapRef": {"name": "gone", "optional": True}}
    with pytest.raises(InvalidValue, match="gone"):
        container_environment(FACTS, {"envFrom": [{"configMapRef": {"name": "gone"}}, optional]}, sources=sources)


def test_volume_files_above_the_byte_budget_are_rejected() -> None:
    sources = {CONFIG: {"BIG": b"x" * 900_000}}
    items = [{"key": "BIG", "path": f"f{n}"} for n in range(1000)]
    volumes: list[Object] = [
        {"name": "v", "projected": {"sources": [{"configMap": {"name": "c", "items": items}}]}},
        {
            "name": "v",
            "downwardAPI": {
                "items": [{"path": f"f{n}", "fieldRef": {"fieldPath": "metadata.annotations"}} for n in range(9)]
            },
        },
    ]
    for volume, bytes_max in zip(volumes, (64 * 2**20, 30), strict=True):
        with pytest.raises(InvalidValue, match=f"the files.*at most {bytes_max} bytes"):
            volume_files(FACTS, volume, sources, budget=ByteBudget("the files", bytes_max))


def test_references_of_env_and_volumes_are_collected() -> None:
    container = {
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "K"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
    }
    volume = {"name": "v", "projected": {"sources": [{"secret": {"name": "other"}}]}}
    assert references(new_pod(container, volume)) == {CONFIG, SECRET, Reference(kind="Secret", name="other")}


def test_config_map_and_secret_data_are_decoded() -> None:
    encoded = base64.b64encode(b"x").decode()
    assert data_of("ConfigMap", {"data": {"a": "1"}, "binaryData": {"b": encoded}}) == {"a": b"1", "b": b"x"}
    assert data_of("Secret", {"data": {"a": encoded, "b": "no base64!"}}) == {"a": b"x"}


def test_env_from_prefixes_all_keys() -> None:
    assert environment(envFrom=[{"prefix": "P_", "configMapRef": {"name": "c"}}]) == {"P_A": "1", "P_B": "2"}


def test_variable_from_secret_key_is_expanded_in_later_variables() -> None:
    env = [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "K"}}},
        {"name": "Y", "value": "say $(X)"},
    ]
    assert environment(env=env) == {"X": "hush", "Y": "say hush"}


def test_field_ref_variables_have_pod_name_and_ip() -> None:
    env = [
        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "I", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    assert environment(env=env) == {"N": "p", "I": "127.64.0.1"}


@pytest.mark.parametrize(
    "env_from", [{"configMapRef": {"name": "none"}}, {"secretRef": {"name": "none", "optional": False}}]
)
def test_missing_source_is_named_in_error(env_from: Object) -> None:
    with pytest.raises(InvalidValue, match="none"):
        environment(envFrom=[env_from])


def test_optional_sources_and_keys_may_be_missing() -> None:
    absent = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no", "optional": True}}}
    assert environment(envFrom=[{"configMapRef": {"name": "none", "optional": True}}], env=[absent]) == {}


def test_missing_key_is_named_in_error() -> None:
    with pytest.raises(InvalidValue, match="a key of ConfigMap c"):
        environment(env=[{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no"}}}])


def test_config_map_volume_has_all_or_selected_files() -> None:
    pod_facts = PodFacts(pod=new_pod({}))
    assert volume_files(pod_facts, {"name": "v", "emptyDir": {}}, SOURCES) == {}
    assert volume_files(pod_facts, {"name": "v", "configMap": {"name": "c"}}, SOURCES) == {
        "A": plain(b"1"),
        "B": plain(b"2"),
    }
    chosen = {"name": "c", "items": [{"key": "A", "path": "deep/a"}]}
    assert volume_files(pod_facts, {"name": "v", "configMap": chosen}, SOURCES) == {"deep/a": plain(b"1")}


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/../../b"])
def test_item_path_outside_volume_is_rejected(path: str) -> None:
    volume = {"name": "v", "configMap": {"name": "c", "items": [{"key": "A", "path": path}]}}
    with pytest.raises(InvalidValue, match="file name"):
        volume_files(PodFacts(pod=new_pod({})), volume, SOURCES)


def test_projected_volume_has_files_of_all_sources() -> None:
    volume = {
        "name": "v",
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"configMap": {"name": "c", "items": [{"key": "A", "path": "run.sh", "mode": 0o755}]}},
                {"secret": {"name": "s"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"serviceAccountToken": {"path": "token", "audience": "me", "expirationSeconds": 600}},
            ],
        },
    }
    token = Reference(kind=TOKEN, name="me", lifetime_s=600)
    pod = new_pod({}, volume)
    assert references(pod) == {CONFIG, SECRET, token}
    assert volume_files(PodFacts(pod=pod), volume, {**SOURCES, token: {"": b"signed"}}) == {
        "run.sh": VolumeFile(content=b"1", mode=0o755),
        "K": VolumeFile(content=b"hush", mode=0o440),
        "name": VolumeFile(content=b"p", mode=0o440),
        "token": VolumeFile(content=b"signed", mode=0o440),
    }


def test_resource_field_ref_variable_has_container_limit() -> None:
    env = [{"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}]
    assert environment(name="app", resources={"limits": {"memory": "1Gi"}}, env=env) == {"M": "1024"}


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
def test_pod_field_is_resolved(path: str, text: str) -> None:
    assert FACTS.field(path) == text


def test_unknown_pod_field_is_named_in_error() -> None:
    with pytest.raises(InvalidValue, match=r"spec\.color"):
        FACTS.field("spec.color")


def test_labels_and_annotations_are_files_not_variables() -> None:
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
def test_resource_is_in_units_of_the_divisor(container: str, selector: Object, text: str) -> None:
    assert FACTS.resource(selector, container=container) == text
    assert FACTS.file({"resourceFieldRef": {**selector, "containerName": container}}) == text


@pytest.mark.parametrize(
    ("container", "resource", "message"), [("app", "limits.gpu", "limits.gpu"), ("none", "limits.cpu", "none")]
)
def test_unknown_resource_or_container_is_named_in_error(container: str, resource: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        FACTS.resource({"resource": resource}, container=container)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("plain", "plain"),
        ("$(A)-$(B)", "1-$(A)"),
        ("$(NONE) $(A", "$(NONE) $(A"),
        ("$$(A) $$", "$(A) $"),
        ("$($(A)", "$(1"),
        ("$(x.y-z)", "dotted"),
    ],
)
def test_variable_references_are_expanded_once(word: str, text: str) -> None:
    assert expanded(word, {"A": "1", "B": "$(A)", "x.y-z": "dotted"}, ByteBudget("a test")) == text


def test_expansion_above_1_mib_is_rejected() -> None:
    budget, value = ByteBudget("the environment of container c"), "x" * 1000
    for _ in range(10):
        value = expanded("$(A)$(A)", {"A": value}, budget) if len(value) < 500_000 else value
    with pytest.raises(InvalidValue, match=r"the environment of container c.*at most 1048576 bytes"):
        expanded("$(A)" * 100_000, {"A": value}, budget)


def test_unclosed_references_are_copied_unchanged() -> None:
    word = "$(" * 200_000
    assert expanded(word, {}, ByteBudget("a test")) == word
