from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.schemas.records import checked_metadata, read_metadata
from serving.net.cluster.kinds import CONFIG_MAP, NAMESPACE, POD

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}


def test_valid_metadata_is_accepted() -> None:
    metadata = {
        "name": "one.two-3",
        "labels": {"example.com/a": "b", "c": ""},
        "annotations": {"example.com/A": "anything, at all\n"},
        "finalizers": ["example.com/one", "orphan"],
        "ownerReferences": [OWNER],
    }
    assert checked_metadata(CONFIG_MAP, {"metadata": metadata}).owner_references is not None


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"name": "a" * 254}, "metadata.name"),
        ({"name": ""}, "metadata.name"),
        ({"name": "a..b"}, "metadata.name"),
        ({"name": "a/b"}, "metadata.name"),
        ({"name": "a\n"}, "metadata.name"),
        ({"labels": {"a b": "c"}}, "metadata.labels"),
        ({"labels": {"a": "b" * 64}}, "metadata.labels"),
        ({"labels": {"a": "-"}}, "metadata.labels"),
        ({"annotations": {"a": "b" * 2**18}}, "metadata.annotations"),
        ({"annotations": {"a b": "c"}}, "metadata.annotations"),
        ({"finalizers": ["a b"]}, "metadata.finalizers"),
        ({"ownerReferences": [OWNER, {**OWNER, "uid": "v"}]}, "metadata.ownerReferences"),
        ({"ownerReferences": [{**OWNER, "uid": ""}]}, "metadata.ownerReferences.uid"),
    ],
)
def test_invalid_metadata_is_rejected(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(Invalid) as caught:
        checked_metadata(CONFIG_MAP, {"metadata": {"name": "one"} | changed})
    assert [problem.where for problem in caught.value.problems] == [where]


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
def test_namespace_name_must_be_a_dns_label(name: str) -> None:
    with pytest.raises(Invalid):
        checked_metadata(NAMESPACE, {"metadata": {"name": name}})


def test_all_metadata_problems_are_reported() -> None:
    with pytest.raises(Invalid) as caught:
        checked_metadata(CONFIG_MAP, {"metadata": {"name": "A", "labels": {" ": ""}, "finalizers": [""]}})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("metadata", "where"),
    [
        ([], "metadata"),
        ({"name": 1}, "metadata.name"),
        ({"labels": {"a": 1}}, "metadata.labels[...]"),
        ({"ownerReferences": ["u"]}, "metadata.ownerReferences[0]"),
    ],
)
def test_metadata_of_wrong_type_is_rejected_with_its_path(metadata: object, where: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_metadata({"metadata": metadata})
    assert caught.value.problems[0].where == where


def test_null_metadata_is_empty() -> None:
    assert read_metadata({"metadata": None}).name is None


def test_unchanged_metadata_is_not_validated_again() -> None:
    labels = {"not a label": "!"}
    old = {"metadata": {"name": "one", "labels": labels}}
    assert checked_metadata(POD, {"metadata": {"name": "one", "labels": labels}}, old).name == "one"
    with pytest.raises(Invalid, match="not a label"):
        checked_metadata(POD, {"metadata": {"name": "one", "labels": {**labels}}}, old)
    with pytest.raises(Invalid, match="annotation"):
        checked_metadata(POD, {"metadata": {"name": "one", "labels": labels, "annotations": {"no!": ""}}}, old)
