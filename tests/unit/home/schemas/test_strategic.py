import time
from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.schemas.strategic import strategic_merge
from serving.net.cluster.kinds import DEPLOYMENT, INGRESS, POD, SERVICE


def pod_spec(patch: dict[str, Any], **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    result: dict[str, Any] = strategic_merge(POD, {"spec": spec}, {"spec": patch})["spec"]
    return result


def test_objects_are_merged_and_null_removes() -> None:
    assert pod_spec({"b": None, "c": {"d": None, "e": 1}}, a=1, b=2) == {"a": 1, "c": {"e": 1}}


def test_null_for_what_is_not_there_leaves_nothing() -> None:
    assert pod_spec({"b": None}) == {}


def test_lists_without_a_merge_key_are_replaced() -> None:
    assert pod_spec({"tolerations": [{"key": "b"}]}, tolerations=[{"key": "a"}]) == {"tolerations": [{"key": "b"}]}


def test_elements_are_merged_by_key_in_the_order_of_the_patch() -> None:
    patch = {"containers": [{"name": "new", "image": "n"}, {"name": "b", "args": ["x"]}]}
    assert pod_spec(patch, containers=[{"name": "a"}, {"name": "b", "image": "i"}])["containers"] == [
        {"name": "new", "image": "n"},
        {"name": "a"},
        {"name": "b", "image": "i", "args": ["x"]},
    ]


def test_lists_inside_of_elements_have_their_own_key() -> None:
    before = [{"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]}]
    patch = {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}], "ports": [{"containerPort": 81}]}]}
    assert pod_spec(patch, containers=before)["containers"] == [
        {"name": "a", "env": [{"name": "X", "value": "2"}], "ports": [{"containerPort": 81}, {"containerPort": 80}]}
    ]


def test_of_two_elements_with_one_key_none_is_lost() -> None:
    both = [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]
    patch = {"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}]}
    entry = pod_spec(patch, containers=[{"name": "a", "ports": both}])
    assert entry["containers"][0]["ports"] == [{**both[0], "name": "dns"}, both[1]]


def test_ports_of_a_service_are_merged_by_port() -> None:
    target = {"spec": {"ports": [{"port": 80, "targetPort": 1}]}}
    merged = strategic_merge(SERVICE, target, {"spec": {"ports": [{"port": 80, "targetPort": 2}]}})
    assert merged["spec"]["ports"] == [{"port": 80, "targetPort": 2}]


def test_deleting_an_element_that_is_not_there_is_nothing() -> None:
    assert pod_spec({"containers": [{"name": "a", "$patch": "delete"}]})["containers"] == []


def test_a_list_is_replaced_as_a_whole() -> None:
    patch = {"containers": [{"$patch": "replace"}, {"name": "c"}]}
    assert pod_spec(patch, containers=[{"name": "a"}, {"name": "b"}])["containers"] == [{"name": "c"}]


def test_an_object_is_replaced_as_a_whole() -> None:
    assert pod_spec({"securityContext": {"$patch": "replace", "b": 2}}, securityContext={"a": 1}) == {
        "securityContext": {"b": 2}
    }


def test_an_object_is_emptied() -> None:
    assert pod_spec({"securityContext": {"$patch": "delete"}}, securityContext={"a": 1}) == {"securityContext": {}}


def test_an_unknown_directive_is_refused() -> None:
    with pytest.raises(Invalid, match="unknown patch type"):
        pod_spec({"$patch": "swap"})


def test_a_key_that_is_set_must_be_retained() -> None:
    with pytest.raises(Invalid, match="does not name it"):
        pod_spec({"strategy": {"$retainKeys": ["type"], "other": 1}})


def test_an_order_leaves_elements_it_does_not_name_where_they_were() -> None:
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


def test_an_order_must_name_what_the_patch_adds() -> None:
    with pytest.raises(Invalid, match="does not name"):
        pod_spec({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]})


def test_an_order_of_what_is_not_there_is_nothing() -> None:
    assert pod_spec({"$setElementOrder/containers": [{"name": "a"}]}) == {}


def test_an_order_of_a_list_that_is_replaced_is_nothing() -> None:
    patch = {"$setElementOrder/tolerations": [{"key": "b"}]}
    assert pod_spec(patch, tolerations=[{"key": "a"}]) == {"tolerations": [{"key": "a"}]}


def finalizers(patch: dict[str, Any], *before: str) -> list[str]:
    merged = strategic_merge(DEPLOYMENT, {"metadata": {"finalizers": list(before)}}, {"metadata": patch})
    result: list[str] = merged["metadata"]["finalizers"]
    return result


def test_lists_of_texts_are_united() -> None:
    assert finalizers({"finalizers": ["b", "c", "c"]}, "a", "b") == ["a", "b", "c"]


def test_texts_must_be_texts() -> None:
    with pytest.raises(Invalid):
        finalizers({"$setElementOrder/finalizers": ["a"], "finalizers": [{}]}, "a")


@pytest.mark.parametrize("element", [{"image": "x"}, "text", {"name": None}])
def test_an_element_without_its_key_is_refused(element: object) -> None:
    with pytest.raises(Invalid, match="merged by 'name'"):
        pod_spec({"containers": [element]})


@pytest.mark.parametrize("key", ["$retainKeys", "$setElementOrder/containers"])
def test_a_directive_that_is_no_list_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="is a list"):
        pod_spec({key: "a"}, containers=[])


def test_another_type_replaces() -> None:
    assert pod_spec({"a": {"b": 1}, "containers": [{"name": "a"}], "c": 3}, a="text", containers="text", c=[]) == {
        "a": {"b": 1},
        "containers": [{"name": "a"}],
        "c": 3,
    }


def test_elements_are_added_changed_and_deleted_in_linear_time() -> None:
    before = [{"name": f"c{number}"} for number in range(5_000)]
    patch = [*({"name": f"c{number}", "$patch": "delete"} for number in range(5_000)), {"name": "c1", "image": "i"}]
    begun_s = time.process_time()
    assert pod_spec({"containers": patch}, containers=before) == {"containers": [{"name": "c1", "image": "i"}]}
    # Quadratic, it takes 4 s on a fast machine.
    assert time.process_time() - begun_s < 1.0


def test_an_ingress_takes_the_patches_of_kubectl_apply() -> None:
    metadata = {"labels": {"a": "b"}}
    rules = [{"host": "b.example.com"}]
    before = {"metadata": metadata, "spec": {"rules": [{"host": "a.example.com"}], "tls": []}}
    merged = {"metadata": metadata, "spec": {"rules": rules, "tls": []}}
    assert strategic_merge(INGRESS, before, {"spec": {"rules": rules}}) == merged
