import base64
import json
from pathlib import Path
from typing import Any

import pytest

from serving.home.apiserver.protobuf import decode_protobuf
from serving.home.apiserver.requests import Fault

EXPECTED = {"name": "a", "namespace": "ns", "generation": 5, "labels": {"k": "v"}}
# Objects with a value in every field, as Kubernetes' own codecs write them: from the test data of k8s.io/api.
CASES = Path(__file__).with_name("protobuf_cases.jsonl").read_text().splitlines()


def field(number: int, data: bytes | int) -> bytes:
    """A field in protobuf's form, short enough for a length of one byte."""
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
def test_every_field_of_an_object_is_read_as_kubernetes_reads_it(case: dict[str, Any]) -> None:
    assert decode_protobuf(base64.b64decode(case["protobuf"])) == case["object"]


def test_a_namespace() -> None:
    sent = body("Namespace", METADATA, field(2, b""), field(3, b""))
    assert decode_protobuf(sent) == {"apiVersion": "v1", "kind": "Namespace", "metadata": EXPECTED}


def test_a_config_map() -> None:
    sent = body("ConfigMap", METADATA, field(2, entry("x", b"y" * 200)), field(3, entry("b", b"\xff")), field(4, 1))
    assert decode_protobuf(sent) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": EXPECTED,
        "data": {"x": "y" * 200},
        "binaryData": {"b": "/w=="},
        "immutable": True,
    }


def test_a_secret() -> None:
    sent = body("Secret", METADATA, field(2, entry("x", b"y")), field(3, b"Opaque"), field(4, entry("t", b"u")))
    protobuf = decode_protobuf(sent)
    assert (protobuf["data"], protobuf["type"], protobuf["stringData"]) == ({"x": "eQ=="}, "Opaque", {"t": "u"})


def test_a_zero_counts_only_where_go_has_a_pointer() -> None:
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


def test_a_time_that_was_not_set_is_left_out() -> None:
    protobuf = decode_protobuf(body("Namespace", field(1, field(1, b"a") + field(8, b""))))
    assert protobuf["metadata"] == {"name": "a"}


def test_finalizers_are_a_list() -> None:
    sent = body("Namespace", field(1, field(1, b"a") + field(14, b"x") + field(14, b"y")))
    assert decode_protobuf(sent)["metadata"]["finalizers"] == ["x", "y"]


def test_fields_of_fixed_width_are_passed_over() -> None:
    sent = body("Namespace", METADATA, b"\x79" + bytes(8), b"\x7d" + bytes(4))
    assert decode_protobuf(sent)["metadata"] == EXPECTED


@pytest.mark.parametrize("version", ["v1", "apps/v1", "meta.k8s.io/v1"])
def test_options_of_a_deletion_come_with_the_version_of_any_group(version: str) -> None:
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


def test_options_that_are_left_out_stay_out() -> None:
    assert decode_protobuf(body("DeleteOptions")) == {"apiVersion": "v1", "kind": "DeleteOptions"}


def test_a_number_below_zero_keeps_its_sign() -> None:
    sent = body("DeleteOptions", b"\x08" + b"\xff" * 9 + b"\x01")
    assert decode_protobuf(sent)["gracePeriodSeconds"] == -1


def test_an_eviction_carries_its_options() -> None:
    sent = body("Eviction", METADATA, field(2, field(1, 0)), version="policy/v1")
    assert decode_protobuf(sent)["deleteOptions"] == {"gracePeriodSeconds": 0}


def test_other_kinds_are_refused_with_what_works() -> None:
    with pytest.raises(Fault, match=r"Job is accepted as JSON or YAML only.*kubectl apply -f") as caught:
        decode_protobuf(body("Job", version="batch/v1"))
    assert caught.value.code == 415


def test_an_object_without_a_kind_is_refused() -> None:
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
def test_what_is_broken_is_refused(sent: bytes) -> None:
    with pytest.raises(Fault) as caught:
        decode_protobuf(sent)
    assert caught.value.code == 400
