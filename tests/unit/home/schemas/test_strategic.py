import time
from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.schemas.strategic import strategic_merge
from serving.net.cluster.kinds import DEPLOYMENT, INGRESS, POD, SERVICE


def pod_spec(patch: dict[str, Any], **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    result: dict[str, Any] = strategic_merge(POD, {"spec": spec}, {"spec": patch})["spec"]
    return result


def test_objects_are_merged_and_null_removes_fields() -> None:
    assert pod_spec({"b": None, "c": {"d": None, "e": 1}}, a=1, b=2) == {"a": 1, "c": {"e": 1}}


def test_null_for_a_missing_field_adds_nothing() -> None:
    assert pod_spec({"b": None}) == {}


def test_lists_without_a_merge_key_are_replaced() -> None:
    assert pod_spec({"tolerations": [{"key": "b"}]}, tolerations=[{"key": "a"}]) == {"tolerations": [{"key": "b"}]}


def test_list_elements_are_merged_by_key() -> None:
    patch = {"containers": [{"name": "new", "image": "n"}, {"name": "b", "args": ["x"]}]}
    assert pod_spec(patch, containers=[{"name": "a"}, {"name": "b", "image": "i"}])["containers"] == [
        {"name": "new", "image": "n"},
        {"name": "a"},
        {"name": "b", "image": "i", "args": ["x"]},
    ]


def test_nested_lists_are_merged_by_their_keys() -> None:
    before = [{"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]}]
    patch = {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}], "ports": [{"containerPort": 81}]}]}
    assert pod_spec(patch, containers=before)["containers"] == [
        {"name": "a", "env": [{"name": "X", "value": "2"}], "ports": [{"containerPort": 81}, {"containerPort": 80}]}
    ]


def test_elements_with_equal_merge_keys_are_preserved() -> None:
    both = [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]
    patch = {"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}]}
    entry = pod_spec(patch, containers=[{"name": "a", "ports": both}])
    assert entry["containers"][0]["ports"] == [{**both[0], "name": "dns"}, both[1]]


def test_service_ports_are_merged_by_port() -> None:
    target = {"spec": {"ports": [{"port": 80, "targetPort": 1}]}}
    merged = strategic_merge(SERVICE, target, {"spec": {"ports": [{"port": 80, "targetPort": 2}]}})
    assert merged["spec"]["ports"] == [{"port": 80, "targetPort": 2}]


def test_deletion_of_a_missing_element_is_ignored() -> None:
    assert pod_spec({"containers": [{"name": "a", "$patch": "delete"}]})["containers"] == []


def test_replace_directive_replaces_a_list() -> None:
    patch = {"containers": [{"$patch": "replace"}, {"name": "c"}]}
    assert pod_spec(patch, containers=[{"name": "a"}, {"name": "b"}])["containers"] == [{"name": "c"}]


def test_replace_directive_replaces_an_object() -> None:
    assert pod_spec({"securityContext": {"$patch": "replace", "b": 2}}, securityContext={"a": 1}) == {
        "securityContext": {"b": 2}
    }


def test_delete_directive_empties_an_object() -> None:
    assert pod_spec({"securityContext": {"$patch": "delete"}}, securityContext={"a": 1}) == {"securityContext": {}}


def test_unknown_patch_directive_is_rejected() -> None:
    with pytest.raises(Invalid, match="unknown patch type"):
        pod_spec({"$patch": "swap"})


def test_field_missing_from_retain_keys_is_rejected() -> None:
    with pytest.raises(Invalid, match="does not name it"):
        pod_spec({"strategy": {"$retainKeys": ["type"], "other": 1}})


def test_element_order_preserves_positions_of_unnamed_elements() -> None:
    before = [{"name": name} for name in "axb"]
    patch = {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "new"}, {"name": "b"}],
        "containers": [{"name": "new"}],
    }
    assert [container["name"] for container in pod_spec(patch, containers=before)["containers"]] == [
        "a",
        "new",
        "x",
        "b",
    ]


def test_element_order_without_an_added_element_is_rejected() -> None:
    with pytest.raises(Invalid, match="does not name"):
        pod_spec({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]})


def test_element_order_of_a_missing_list_is_ignored() -> None:
    assert pod_spec({"$setElementOrder/containers": [{"name": "a"}]}) == {}


def test_element_order_of_an_atomic_list_is_ignored() -> None:
    patch = {"$setElementOrder/tolerations": [{"key": "b"}]}
    assert pod_spec(patch, tolerations=[{"key": "a"}]) == {"tolerations": [{"key": "a"}]}


def finalizers(patch: dict[str, Any], *before: str) -> list[str]:
    merged = strategic_merge(DEPLOYMENT, {"metadata": {"finalizers": list(before)}}, {"metadata": patch})
    result: list[str] = merged["metadata"]["finalizers"]
    return result


def test_string_lists_are_merged_as_sets() -> None:
    assert finalizers({"finalizers": ["b", "c", "c"]}, "a", "b") == ["a", "b", "c"]


def test_non_string_element_of_a_string_list_is_rejected() -> None:
    with pytest.raises(Invalid):
        finalizers({"$setElementOrder/finalizers": ["a"], "finalizers": [{}]}, "a")


@pytest.mark.parametrize("element", [{"image": "x"}, "text", {"name": None}])
def test_element_without_merge_key_is_rejected(element: object) -> None:
    with pytest.raises(Invalid, match="merged by 'name'"):
        pod_spec({"containers": [element]})


@pytest.mark.parametrize("key", ["$retainKeys", "$setElementOrder/containers"])
def test_directive_that_is_not_a_list_is_rejected(key: str) -> None:
    with pytest.raises(Invalid, match="is a list"):
        pod_spec({key: "a"}, containers=[])


def test_value_of_another_type_is_replaced() -> None:
    assert pod_spec({"a": {"b": 1}, "containers": [{"name": "a"}], "c": 3}, a="text", containers="text", c=[]) == {
        "a": {"b": 1},
        "containers": [{"name": "a"}],
        "c": 3,
    }


def test_list_merge_takes_linear_time() -> None:
    before = [{"name": f"c{number}"} for number in range(5_000)]
    patch = [*({"name": f"c{number}", "$patch": "delete"} for number in range(5_000)), {"name": "c1", "image": "i"}]
    begun_s = time.process_time()
    assert pod_spec({"containers": patch}, containers=before) == {"containers": [{"name": "c1", "image": "i"}]}
    # A quadratic merge takes 4 s on a fast machine.
    assert time.process_time() - begun_s < 1.0


def test_ingress_rules_are_replaced_by_a_patch() -> None:
    metadata = {"labels": {"a": "b"}}
    rules = [{"host": "b.example.com"}]
    before = {"metadata": metadata, "spec": {"rules": [{"host": "a.example.com"}], "tls": []}}
    merged = {"metadata": metadata, "spec": {"rules": rules, "tls": []}}
    assert strategic_merge(INGRESS, before, {"spec": {"rules": rules}}) == merged
