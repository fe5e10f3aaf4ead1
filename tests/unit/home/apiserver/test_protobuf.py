import base64
import json
from pathlib import Path
from typing import Any

import pytest

from serving.home.apiserver.protobuf import decode_protobuf
from serving.home.apiserver.requests import Fault

EXPECTED = {"name": "a", "namespace": "ns", "generation": 5, "labels": {"k": "v"}}
# Objects with a value in every field, encoded by Kubernetes' codecs; from the test data of k8s.io/api.
CASES = Path(__file__).with_name("protobuf_cases.jsonl").read_text().splitlines()


def field(number: int, data: bytes | int) -> bytes:
    """An encoded protobuf field of at most 16 KiB."""
    if isinstance(data, int):
        return bytes([number << 3, data])
    size = [len(data)] if len(data) < 128 else [len(data) & 0x7F | 0x80, len(data) >> 7]
    return bytes([number << 3 | 2, *size]) + data


def entry(key: str, value: bytes) -> bytes:
    return field(1, key.encode()) + field(2, value)


def body(kind: str, *fields: bytes, version: str = "v1") -> bytes:
    meta = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, meta) + field(2, b"".join(fields)) + field(3, b"") + field(4, b"")


METADATA = field(1, field(1, b"a") + field(2, b"") + field(3, b"ns") + field(7, 5) + field(11, entry("k", b"v")))


@pytest.mark.parametrize("case", [json.loads(line) for line in CASES], ids=lambda case: case["name"])
def test_objects_with_all_fields_are_decoded_as_by_kubernetes(case: dict[str, Any]) -> None:
    assert decode_protobuf(base64.b64decode(case["protobuf"])) == case["object"]


def test_namespace_is_decoded() -> None:
    sent = body("Namespace", METADATA, field(2, b""), field(3, b""))
    assert decode_protobuf(sent) == {"apiVersion": "v1", "kind": "Namespace", "metadata": EXPECTED}


def test_config_map_is_decoded() -> None:
    sent = body("ConfigMap", METADATA, field(2, entry("x", b"y" * 200)), field(3, entry("b", b"\xff")), field(4, 1))
    assert decode_protobuf(sent) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": EXPECTED,
        "data": {"x": "y" * 200},
        "binaryData": {"b": "/w=="},
        "immutable": True,
    }


def test_secret_is_decoded() -> None:
    sent = body("Secret", METADATA, field(2, entry("x", b"y")), field(3, b"Opaque"), field(4, entry("t", b"u")))
    protobuf = decode_protobuf(sent)
    assert (protobuf["data"], protobuf["type"], protobuf["stringData"]) == ({"x": "eQ=="}, "Opaque", {"t": "u"})


def test_zero_is_kept_only_for_pointer_fields() -> None:
    spec = (
        field(1, 0)
        + field(5, 0)
        + field(2, b"")
        + field(4, field(1, b"") + field(2, field(1, field(1, 0) + field(2, 0))))
    )
    protobuf = decode_protobuf(body("Deployment", METADATA, field(2, spec), version="apps/v1"))
    assert protobuf["spec"] == {
        "replicas": 0,
        "selector": {},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0}},
    }


def test_unset_time_is_omitted() -> None:
    protobuf = decode_protobuf(body("Namespace", field(1, field(1, b"a") + field(8, b""))))
    assert protobuf["metadata"] == {"name": "a"}


def test_repeated_finalizers_are_decoded_as_list() -> None:
    sent = body("Namespace", field(1, field(1, b"a") + field(14, b"x") + field(14, b"y")))
    assert decode_protobuf(sent)["metadata"]["finalizers"] == ["x", "y"]


def test_fixed_width_fields_are_skipped() -> None:
    sent = body("Namespace", METADATA, b"\x79" + bytes(8), b"\x7d" + bytes(4))
    assert decode_protobuf(sent)["metadata"] == EXPECTED


@pytest.mark.parametrize("version", ["v1", "apps/v1", "meta.k8s.io/v1"])
def test_delete_options_are_decoded_with_any_group_version(version: str) -> None:
    preconditions = field(2, field(1, b"u-1") + field(2, b"7"))
    sent = body("DeleteOptions", field(1, 0), preconditions, field(4, b"Orphan"), field(5, b"All"), version=version)
    assert decode_protobuf(sent) == {
        "apiVersion": version,
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u-1", "resourceVersion": "7"},
        "propagationPolicy": "Orphan",
        "dryRun": ["All"],
    }


def test_unset_delete_options_are_omitted() -> None:
    assert decode_protobuf(body("DeleteOptions")) == {"apiVersion": "v1", "kind": "DeleteOptions"}


def test_negative_varint_is_decoded() -> None:
    sent = body("DeleteOptions", b"\x08" + b"\xff" * 9 + b"\x01")
    assert decode_protobuf(sent)["gracePeriodSeconds"] == -1


def test_eviction_has_delete_options() -> None:
    sent = body("Eviction", METADATA, field(2, field(1, 0)), version="policy/v1")
    assert decode_protobuf(sent)["deleteOptions"] == {"gracePeriodSeconds": 0}


def test_unsupported_kind_is_rejected_with_advice() -> None:
    with pytest.raises(Fault, match=r"Job is accepted as JSON or YAML only.*kubectl apply -f") as caught:
        decode_protobuf(body("Job", version="batch/v1"))
    assert caught.value.code == 415


def test_object_without_kind_is_rejected() -> None:
    with pytest.raises(Fault, match="the object is accepted as JSON"):
        decode_protobuf(b"k8s\x00")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        b"k8s\x00\x0a\x7f",
        b"k8s\x00\x0a",
        b"k8s\x00\x0b",
        b"k8s\x00" + b"\xff" * 11,
        body("Namespace", field(1, field(1, b"\xff"))),
        body("ConfigMap", field(2, 5)),
        body("Secret", field(3, 5)),
        body("DeleteOptions", field(1, b"0")),
        body("DeleteOptions", field(2, 1)),
    ],
)
def test_invalid_protobuf_is_rejected(sent: bytes) -> None:
    with pytest.raises(Fault) as caught:
        decode_protobuf(sent)
    assert caught.value.code == 400
