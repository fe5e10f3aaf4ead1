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


def test_the_key_of_an_object_is_its_namespace_and_name() -> None:
    assert (key_of(SERVICE), key_of({"metadata": {"name": "node"}})) == (("default", "hello"), ("", "node"))


@pytest.mark.parametrize(
    ("version", "other", "is_older"),
    [("9", "10", True), ("10", "9", False), ("9", "9", False), ("", "9", False), ("9", "", False), ("a", "b", False)],
)
def test_versions_are_compared_as_numbers(version: str, other: str, is_older: bool) -> None:
    assert is_older_version(version, other) is is_older


def test_a_field_of_another_type_counts_as_absent() -> None:
    assert (object_at({"a": {"b": 1}}, "a"), object_at({"a": [1]}, "a"), object_at({}, "a")) == ({"b": 1}, {}, {})
    assert (objects_at({"a": [{}, 1]}, "a"), objects_at({"a": {}}, "a"), objects_at({}, "a")) == ([{}], [], [])


def test_what_is_not_there_is_empty() -> None:
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
def test_a_path_of_keys_and_indexes_is_followed(path: tuple[str | int, ...], field: object) -> None:
    assert nested({"a": {"b": 1}, "l": [{"n": 2}]}, *path) == field


@pytest.mark.parametrize(
    ("text", "is_one"), [("a", True), ("a-1", True), ("a" * 63, True), ("a" * 64, False), ("-a", False), ("a\n", False)]
)
def test_a_dns_label_is_what_a_namespace_may_be_called(text: str, is_one: bool) -> None:
    assert is_dns_label(text) is is_one


def test_an_empty_path_is_the_value_itself() -> None:
    assert nested({"a": 1}) == {"a": 1}


def test_only_the_controlling_owner_controls_a_child() -> None:
    assert is_controlled_by(child(), SERVICE)
    assert not is_controlled_by(child(ownerReferences=[]), SERVICE)
    assert not is_controlled_by(child(ownerReferences=[{**owner_reference(SERVICE), "controller": False}]), SERVICE)


def test_a_generation_is_zero_before_the_server_sets_it() -> None:
    assert (generation_of(SERVICE), generation_of({}), generation_of(None)) == (3, 0, 0)


def test_a_missing_condition_is_not_true() -> None:
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
def test_a_difference_is_the_smallest_patch(old: Object, new: Object, patch: Object) -> None:
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
def test_a_stamp_is_seconds_since_the_epoch(stamp: object, seconds: float | None) -> None:
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
def test_what_is_meant_has_no_empty_fields(field: object, expected: object) -> None:
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
def test_plain_http_and_tcp_run_in_the_queue_proxy(probe: dict[str, Any] | None, runs: bool) -> None:
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
def test_only_the_scheme_that_the_queue_proxy_speaks_is_respelt(probe: dict[str, Any], scheme: str | None) -> None:
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
def test_the_kubelet_decides_where_it_runs_a_probe(containers: list[dict[str, Any]], decides: bool) -> None:
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
def test_a_condition_has_the_time_of_its_status(before: dict[str, Any], since: str) -> None:
    condition = {"type": "Ready", "status": "True"}
    assert with_transition_time(condition, before, now="now") == {**condition, "lastTransitionTime": since}
