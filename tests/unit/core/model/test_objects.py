"""Reading resources."""

from typing import Any

import pytest

from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    generation_of,
    is_being_deleted,
    is_controlled_by,
    is_dns_label,
    is_older_version,
    is_true,
    key_of,
    kubelet_decides,
    labels_of,
    meant,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    object_at,
    objects_at,
    owner_reference,
    runs_in_queue_proxy,
    timestamp_s,
    uid_of,
    version_of,
    with_kubernetes_scheme,
    with_transition_time,
)

SERVICE: Object = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "hello", "namespace": "default", "uid": "u-1", "generation": 3},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "RoutesReady", "status": "False"}]},
}

PORTS = [{"containerPort": 8080}]


def child(**metadata: object) -> Object:
    return {"metadata": {"name": "hello", "ownerReferences": [owner_reference(SERVICE)], **metadata}}


def test_object_key_is_namespace_and_name() -> None:
    assert (key_of(SERVICE), key_of({"metadata": {"name": "node"}})) == (("default", "hello"), ("", "node"))


@pytest.mark.parametrize(
    ("version", "other", "is_older"),
    [("9", "10", True), ("10", "9", False), ("9", "9", False), ("", "9", False), ("9", "", False), ("a", "b", False)],
)
def test_resource_versions_are_compared_as_numbers(version: str, other: str, is_older: bool) -> None:
    assert is_older_version(version, other) is is_older


def test_field_of_other_type_reads_as_absent() -> None:
    assert (object_at({"a": {"b": 1}}, "a"), object_at({"a": [1]}, "a"), object_at({}, "a")) == ({"b": 1}, {}, {})
    assert (objects_at({"a": [{}, 1]}, "a"), objects_at({"a": {}}, "a"), objects_at({}, "a")) == ([{}], [], [])


def test_absent_fields_read_as_empty() -> None:
    assert (name_of({}), namespace_of({}), uid_of({}), version_of({})) == ("", "", "", "")
    assert (labels_of({}), annotations_of({}), condition_of({}, "Ready"), condition_of(None, "Ready")) == (
        {},
        {},
        {},
        {},
    )
    assert not is_being_deleted({})


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("a", "b"), 1),
        (("a", "c"), None),
        (("a", "b", "c"), None),
        (("l", 0, "n"), 2),
        (("l", -1, "n"), 2),
        (("l", 1), None),
        (("l", "n"), None),
    ],
)
def test_nested_resolves_keys_and_indexes(path: tuple[str | int, ...], field: object) -> None:
    assert nested({"a": {"b": 1}, "l": [{"n": 2}]}, *path) == field


@pytest.mark.parametrize(
    ("text", "is_label"),
    [("a", True), ("a-1", True), ("a" * 63, True), ("a" * 64, False), ("-a", False), ("a\n", False)],
)
def test_dns_label_has_1_to_63_characters(text: str, is_label: bool) -> None:
    assert is_dns_label(text) is is_label


def test_nested_without_path_returns_object() -> None:
    assert nested({"a": 1}) == {"a": 1}


def test_only_controlling_owner_controls_child() -> None:
    assert is_controlled_by(child(), SERVICE)
    assert not is_controlled_by(child(ownerReferences=[]), SERVICE)
    assert not is_controlled_by(child(ownerReferences=[{**owner_reference(SERVICE), "controller": False}]), SERVICE)


def test_absent_generation_is_zero() -> None:
    assert (generation_of(SERVICE), generation_of({}), generation_of(None)) == (3, 0, 0)


def test_missing_condition_is_not_true() -> None:
    assert [condition["type"] for condition in conditions_of(SERVICE)] == ["Ready", "RoutesReady"]
    assert [is_true(SERVICE, of) for of in ("Ready", "RoutesReady", "Other")] == [True, False, False]


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4, "d": 3}}, {"a": None, "b": {"c": 4}}),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, {}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_merge_difference_is_smallest_patch(old: Object, new: Object, patch: Object) -> None:
    assert merge_difference(old, new) == patch


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("1970-01-02T00:00:00Z", 86400.0),
        ("2026-11-21T04:30:00Z", 1795235400.0),
        ("1970-01-01T00:00:00.25Z", 0.25),
        ("yesterday", None),
        (None, None),
    ],
)
def test_timestamp_converts_to_seconds_since_epoch(stamp: object, seconds: float | None) -> None:
    assert timestamp_s(stamp) == seconds


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"resources": {"limits": {}}, "env": [], "image": "x"}, {"image": "x"}),
        ({"a": None, "b": "", "c": 0, "d": False}, {"b": "", "c": 0, "d": False}),
        ({"annotations": {"a": ""}}, {"annotations": {"a": ""}}),
        ([{}, {"a": {}}, {"b": 1}], [{}, {}, {"b": 1}]),
        ({"name": "cache", "emptyDir": {}}, {"name": "cache", "emptyDir": {}}),
        ({"httpGet": {"httpHeaders": []}}, {"httpGet": {}}),
        ({"exec": []}, {}),
    ],
)
def test_meant_drops_empty_fields(field: object, expected: object) -> None:
    assert meant(field) == expected


@pytest.mark.parametrize(
    ("probe", "runs"),
    [
        ({"httpGet": {"path": "/"}}, True),
        ({"httpGet": {"path": "/", "scheme": "HTTP"}}, True),
        ({"httpGet": {"path": "/", "scheme": "http"}}, True),
        ({"httpGet": {"path": "/", "scheme": "HTTPS"}}, False),
        ({"httpGet": {"path": "/", "host": "other"}}, False),
        ({"tcpSocket": {}}, True),
        ({"tcpSocket": {"host": "other"}}, False),
        ({"exec": {"command": ["true"]}}, False),
        ({"grpc": {"port": 1}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_queue_proxy_runs_plain_http_and_tcp_probes(probe: dict[str, Any] | None, runs: bool) -> None:
    assert runs_in_queue_proxy(probe) is runs


@pytest.mark.parametrize(
    ("probe", "scheme"),
    [
        ({"httpGet": {"scheme": "http"}}, "HTTP"),
        ({"httpGet": {"scheme": "https"}}, "https"),
        ({"httpGet": {"path": "/"}}, None),
        ({"tcpSocket": {"port": 0}}, None),
    ],
)
def test_scheme_http_of_probe_is_upper_cased(probe: dict[str, Any], scheme: str | None) -> None:
    assert with_kubernetes_scheme(probe).get("httpGet", {}).get("scheme") == scheme


@pytest.mark.parametrize(
    ("containers", "decides"),
    [
        ([], False),
        ([{}], False),
        ([{"ports": PORTS}], False),
        ([{"ports": PORTS, "readinessProbe": {"tcpSocket": {}}}], False),
        ([{"ports": PORTS, "readinessProbe": {"exec": {}}}], True),
        ([{"ports": PORTS}, {"readinessProbe": {"tcpSocket": {}}}], True),
        ([{"ports": PORTS}, {}], False),
        # As a real API server stores a revision that names no port.
        ([{"readinessProbe": {"tcpSocket": {"port": 0}}}], False),
        ([{"readinessProbe": {"exec": {}}}], True),
    ],
)
def test_kubelet_decides_readiness_when_it_runs_a_probe(containers: list[dict[str, Any]], decides: bool) -> None:
    assert kubelet_decides(containers) is decides


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ({}, "now"),
        ({"status": "False", "lastTransitionTime": "then"}, "now"),
        ({"status": "True"}, "now"),
        ({"status": "True", "reason": "Other", "lastTransitionTime": "then"}, "then"),
    ],
)
def test_transition_time_changes_with_status_only(before: dict[str, Any], since: str) -> None:
    condition = {"type": "Ready", "status": "True"}
    assert with_transition_time(condition, before, now="now") == {**condition, "lastTransitionTime": since}
