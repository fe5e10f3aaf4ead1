"""Field sets, as in managedFields."""

from serving.home.schemas.ownership.fieldset import (
    FieldSet,
    common,
    difference,
    key_element,
    paths,
    union,
    value_element,
    well_formed,
)

LABELS: FieldSet = {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}


def test_union_has_the_fields_of_both_sets() -> None:
    assert union(LABELS, {"f:metadata": {"f:labels": {"f:b": {}}}}) == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}, "f:b": {}}}
    }
    assert union({"f:a": {}}, {"f:a": {"f:b": {}}}) == {"f:a": {".": {}, "f:b": {}}}


def test_difference_retains_an_element_without_its_children() -> None:
    assert difference(LABELS, {"f:metadata": {"f:labels": {"f:a": {}}}}) == {"f:metadata": {"f:labels": {}}}
    assert difference(LABELS, {"f:metadata": {"f:labels": {}}}) == {"f:metadata": {"f:labels": {"f:a": {}}}}
    assert difference(LABELS, LABELS) == {}


def test_common_returns_the_intersection() -> None:
    assert common(LABELS, {"f:metadata": {"f:labels": {"f:a": {}, "f:c": {}}}}) == {
        "f:metadata": {"f:labels": {"f:a": {}}}
    }
    assert common(LABELS, {"f:metadata": {}}) == {}


def test_paths_have_kubernetes_format() -> None:
    container = key_element({"name": "app"})
    port = key_element({"protocol": "TCP", "containerPort": 80})
    fields: FieldSet = {"f:spec": {"f:containers": {container: {"f:ports": {port: {".": {}}}, "f:image": {}}}}}
    fields["f:metadata"] = {"f:finalizers": {value_element("a/b"): {}}}
    assert list(paths(fields)) == [
        '.spec.containers[name="app"].ports[containerPort=80,protocol="TCP"]',
        '.spec.containers[name="app"].image',
        '.metadata.finalizers[="a/b"]',
    ]


def test_well_formed_accepts_only_path_elements() -> None:
    assert well_formed({"f:a": {".": {}, 'k:{"a":1}': {}, 'v:"x"': {}, "i:0": {}}})
    wrong: tuple[object, ...] = ({"a": {}}, {"f:": {}}, {"k:1": {}}, {"k:{": {}}, {"x:1": {}}, {"f:a": 1}, [])
    for fields in wrong:
        assert not well_formed(fields)
