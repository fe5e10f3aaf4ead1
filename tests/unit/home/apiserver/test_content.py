import pytest

from serving.home.apiserver.content import Shape, WantedShape, decode_body, duplicate_fields, wanted
from serving.home.apiserver.requests import Fault

KUBECTL = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", WantedShape(Shape.WHOLE)),
        ("*/*", WantedShape(Shape.WHOLE)),
        ("application/json", WantedShape(Shape.WHOLE)),
        (KUBECTL, WantedShape(Shape.TABLE)),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", WantedShape(Shape.TABLE, "v1beta1")),
        ("application/json; as=PartialObjectMetadata; v=v1; g=meta.k8s.io", WantedShape(Shape.METADATA)),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", WantedShape(Shape.METADATA_LIST)),
        ("application/vnd.kubernetes.protobuf,application/json", WantedShape(Shape.WHOLE)),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", WantedShape(Shape.WHOLE)),
        ("application/json;as=Chair;v=v1;g=meta.k8s.io,*/*", WantedShape(Shape.WHOLE)),
    ],
)
def test_the_first_that_can_be_given_wins(accept: str, expected: WantedShape) -> None:
    assert wanted(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kubernetes.protobuf", "application/json;as=Chair"])
def test_what_cannot_be_given_is_refused(accept: str) -> None:
    with pytest.raises(Fault) as caught:
        wanted(accept)
    assert caught.value.code == 406


@pytest.mark.parametrize("content_type", ["", "application/json", "application/merge-patch+json; charset=utf-8"])
def test_a_body_is_json(content_type: str) -> None:
    assert decode_body(b'{"a": [1, 2.5, null]}', content_type) == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("content_type", ["application/yaml", "application/apply-patch+yaml"])
def test_a_body_may_be_yaml(content_type: str) -> None:
    assert decode_body(b"a: [1, 2026-11-21, ~]", content_type) == {"a": [1, "2026-11-21", None]}


@pytest.mark.parametrize(
    ("data", "content_type", "code"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"a: [", "application/yaml", 400),
        (b"a: &x [1]\nb: *x", "application/yaml", 400),
        (b"a: !!python/object:os.system {}", "application/yaml", 400),
        (b"a: \xff", "application/yaml", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "application/vnd.kubernetes.protobuf", 400),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(data: bytes, content_type: str, code: int) -> None:
    with pytest.raises(Fault) as caught:
        decode_body(data, content_type)
    assert caught.value.code == code


def test_fields_that_stand_twice_are_named() -> None:
    assert duplicate_fields(b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}') == ["c", "a"]


def test_the_same_field_in_two_objects_is_fine() -> None:
    assert duplicate_fields(b'[{"a": 1}, {"a": 2}]') == []


@pytest.mark.parametrize(
    ("data", "content_type", "found"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', "application/json", ["c", "a"]),
        (b"a: 1\nb:\n- {c: 1, c: 2}\na: 3\n", "application/yaml", ["c", "a"]),
        (b"a: 1\nb: 2\n", "application/apply-patch+yaml", []),
        (b"", "application/yaml", []),
        (b"k8s\x00", "application/vnd.kubernetes.protobuf", []),
    ],
)
def test_duplicate_keys_are_found_in_json_and_yaml(data: bytes, content_type: str, found: list[str]) -> None:
    assert duplicate_fields(data, content_type) == found
