from collections.abc import Iterator

import msgspec
import pytest
import yaml

from serving.home.apiserver.content import (
    YAML_BYTES_MAX,
    YAML_EVENTS_MAX,
    Shape,
    WantedShape,
    check_yaml,
    decode_body,
    duplicate_fields,
    json_response,
    wanted,
)
from serving.home.apiserver.requests import Fault
from serving.home.schemas.schema import DEPTH_MAX

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
def test_first_supported_accept_type_is_selected(accept: str, expected: WantedShape) -> None:
    assert wanted(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kubernetes.protobuf", "application/json;as=Chair"])
def test_unsupported_accept_type_is_rejected_with_406(accept: str) -> None:
    with pytest.raises(Fault) as caught:
        wanted(accept)
    assert caught.value.code == 406


@pytest.mark.parametrize("content_type", ["", "application/json", "application/merge-patch+json; charset=utf-8"])
def test_body_is_decoded_as_json(content_type: str) -> None:
    assert decode_body(b'{"a": [1, 2.5, null]}', content_type) == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("content_type", ["application/yaml", "application/apply-patch+yaml"])
def test_body_is_decoded_as_yaml(content_type: str) -> None:
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
        (b"[" * 100_000, "application/json", 413),
        (b'{"a": ' + b"9" * 5_000 + b"}", "application/json", 400),
        (b"[" * 100_000, "application/yaml", 413),
        (b"a: " + b"x" * YAML_BYTES_MAX, "application/yaml", 413),
        (b"a: " + b"1:" * 100_000 + b"1", "application/yaml", 400),
        (b"a: 0x" + b"f" * 100_000, "application/yaml", 400),
        (b"- a\n" * YAML_EVENTS_MAX, "application/apply-patch+yaml", 413),
        (b"[" + b"[]," * 70_000 + b"[]]", "application/json", 413),
        (b'{"a":[' + b'{"b":""},' * 10_000 + b"{}]}", "application/json", 413),
        (b'{"a":[' + b'"",' * 20_000 + b'""]}', "application/json", 413),
        (b'{"a":[' + b'"",' * 20_000 + b'""]}', "application/apply-patch+yaml", 413),
        (b'[{"a":1' + b"0" * 100 + b"}]", "application/json", 400),
        (
            b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap" + b"\x12\x00" * 20_001,
            "application/vnd.kubernetes.protobuf",
            413,
        ),
        # An unterminated string: the check must not backtrack.
        (b"[" * 70_000 + b'"' + b"a" * 60, "application/json", 413),
        (b"[" + b"1," * 60_001 + b"1]", "application/json", 413),
        (b"{}", "text/plain", 415),
        (b"{}", "application/vnd.kubernetes.protobuf", 400),
    ],
)
def test_invalid_or_oversized_body_is_rejected(data: bytes, content_type: str, code: int) -> None:
    with pytest.raises(Fault) as caught:
        decode_body(data, content_type)
    assert caught.value.code == code


@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_json_nested_above_200_levels_is_rejected(opening: bytes, closing: bytes) -> None:
    right = opening * DEPTH_MAX + b"1" + closing * DEPTH_MAX
    decode_body(right, "application/json")
    decode_body(b'["' + b"[" * 1000 + b'"]', "application/json")
    for depth in (DEPTH_MAX + 1, 9000):
        with pytest.raises(Fault, match="nested too deep: expected at most 200 levels"):
            decode_body(opening * depth, "application/json")


def test_brackets_and_digits_in_strings_are_not_limited() -> None:
    sent = {"data": {"a": '[{",' * 40_000, "b": "1" * 200}}
    assert decode_body(msgspec.json.encode(sent), "application/json") == sent


@pytest.mark.parametrize("text", ["\\", '"', '\\"', "\\\\", 'a\\\\"[1,', "\n", "\u4e2d", ""])
def test_value_counter_handles_escapes_in_strings(text: str) -> None:
    inside = text + "[," * 40_000 + "9" * 200
    for sent in ({text: inside, "b": [text, {inside: 1}]}, [inside, text, inside]):
        assert decode_body(msgspec.json.encode(sent), "application/json") == sent
        with pytest.raises(Fault, match="values"):
            decode_body(msgspec.json.encode([sent, [1] * 60_001]), "application/json")


def test_warning_headers_are_limited_to_50() -> None:
    response = json_response({}, warnings=map(str, range(1000)))
    assert len(response.headers.getall("Warning")) == 50


def test_yaml_keys_are_converted_to_strings() -> None:
    body = decode_body(b"data: {true: a, 3: b, 1.5: c, x: [{2: d}]}", "application/yaml")
    assert body == {"data": {"true": "a", "3": "b", "1.5": "c", "x": [{"2": "d"}]}}
    with pytest.raises(Fault, match="unsupported map key None; expected a text"):
        decode_body(b"data: {null: a}", "application/yaml")


def test_same_field_in_two_objects_is_not_a_duplicate() -> None:
    assert duplicate_fields(b'[{"a": 1}, {"a": 2}]') == []


@pytest.mark.parametrize(
    ("data", "content_type", "fields"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', "application/json", ["c", "a"]),
        (b"a: 1\nb:\n- {c: 1, c: 2}\na: 3\n", "application/yaml", ["c", "a"]),
        (b"a: 1\nb: 2\n", "application/apply-patch+yaml", []),
        (b"", "application/yaml", []),
        (b"k8s\x00", "application/vnd.kubernetes.protobuf", []),
    ],
)
def test_duplicate_fields_are_found_in_json_and_yaml(data: bytes, content_type: str, fields: list[str]) -> None:
    assert duplicate_fields(data, content_type) == fields


def test_yaml_parser_stops_at_the_event_limit() -> None:
    read = 0

    def events() -> Iterator[yaml.Event]:
        nonlocal read
        while True:
            read += 1
            yield yaml.ScalarEvent(None, None, (True, False), "a")

    with pytest.raises(Fault, match="send JSON") as caught:
        check_yaml(events())
    assert (caught.value.code, read) == (413, YAML_EVENTS_MAX + 1)


def test_json_sent_as_yaml_has_json_limits() -> None:
    sent = {"items": [{"a": "1", "b": str(number)} for number in range(YAML_EVENTS_MAX // 2)]}
    data = msgspec.json.encode(sent)
    assert decode_body(data, "application/apply-patch+yaml") == sent
    assert duplicate_fields(data.replace(b'"b":"0"', b'"a":"0"'), "application/apply-patch+yaml") == ["a"]


def test_long_yaml_strings_of_digits_are_not_parsed_as_numbers() -> None:
    text = "1 long text " * 50
    assert decode_body(f"a: {text}\nb: '{'1' * 200}'".encode(), "application/yaml") == {
        "a": text.strip(),
        "b": "1" * 200,
    }
