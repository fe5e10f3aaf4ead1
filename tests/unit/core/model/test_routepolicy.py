"""A route's policy for the activator, read from annotations."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import Problem
from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    AFFINITY_ANNOTATION,
    ALLOW_FROM_ANNOTATION,
    JWT_ANNOTATION,
    NAMED_PORT_ANNOTATION,
    PATHS_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROLLOUT_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
    TCP_ANNOTATION,
)
from serving.core.model.rollout import ConfigurationRollout, RevisionShare, Rollout, write_rollout
from serving.core.model.routepolicy import (
    OPEN_POLICY,
    TCP_PORTS_MAX,
    HeaderRule,
    SessionAffinity,
    SharedHost,
    TcpPort,
    read_tcp_ports,
    route_digest,
    route_policy,
)
from serving.core.settings.controller import ControllerSettings

_ALL = (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
)

RULES = ControllerSettings().host_rules

SPLIT = write_rollout(
    Rollout(
        configurations=(
            ConfigurationRollout(
                configuration_name="hello",
                tag="new",
                percent=100,
                revisions=(
                    RevisionShare(revision_name="hello-00001", percent=99),
                    RevisionShare(revision_name="hello-00002", percent=1),
                ),
            ),
        )
    )
)

ROUTE: dict[str, Any] = {
    "metadata": {
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"networking.knative.dev/visibility": "cluster-local", "team": "a"},
        "annotations": {"serving.dev/claimed-tags": '{"new": "2026-01-01T00:00:00Z"}'},
    },
    "status": {
        "url": "http://hello.default.example.com",
        "address": {"url": "http://hello.default.svc.cluster.local"},
        "traffic": [{"revisionName": "hello-00001", "percent": 100, "latestRevision": True}],
        "conditions": [{"type": "Ready", "status": "Unknown"}],
    },
}


def test_route_without_annotations_has_open_policy() -> None:
    assert route_policy({"other": "x"}) is OPEN_POLICY
    assert not OPEN_POLICY.needs_activator


def test_annotations_set_access_placeholder_affinity_and_header_rules() -> None:
    policy = route_policy(
        {
            ACCESS_ANNOTATION: "private",
            ACCESS_TOKEN_VERSION_ANNOTATION: "2",
            PLACEHOLDER_PAGE_ANNOTATION: "true",
            ROUTE_BY_HEADER_ANNOTATION: "X-Beta=yes:candidate, X-Tier=*:gold,",
            SESSION_AFFINITY_ANNOTATION: "header:X-User",
        }
    )
    assert policy.is_private
    assert policy.token_version == "2"  # noqa: S105 - not a secret
    assert policy.has_placeholder
    assert policy.affinity == SessionAffinity(header="x-user")
    assert policy.header_rules == (
        HeaderRule(header="x-beta", value="yes", tag="candidate"),
        HeaderRule(header="x-tier", value="*", tag="gold"),
    )
    assert policy.chooses
    assert policy.needs_activator
    assert policy.problems == ()


@pytest.mark.parametrize(
    ("text", "affinity"),
    [("cookie", SessionAffinity()), ("prefix", SessionAffinity(by_prefix=True)), ("none", None), ("", None)],
)
def test_affinity_kinds_are_parsed(text: str, affinity: SessionAffinity | None) -> None:
    for key in (AFFINITY_ANNOTATION, SESSION_AFFINITY_ANNOTATION):
        assert route_policy({key: text}).affinity == affinity


def test_affinity_annotation_overrides_session_affinity_and_reports_a_difference() -> None:
    both = {AFFINITY_ANNOTATION: "prefix", SESSION_AFFINITY_ANNOTATION: "cookie"}
    policy = route_policy(both)
    assert policy.affinity == SessionAffinity(by_prefix=True)
    assert policy.needs_activator
    assert policy.problems == ("annotation serving.dev/session-affinity has no effect beside serving.dev/affinity",)
    assert route_policy({**both, SESSION_AFFINITY_ANNOTATION: "prefix"}).problems == ()


def test_private_route_needs_activator_without_header_rules() -> None:
    policy = route_policy({ACCESS_ANNOTATION: "private"})
    assert policy.needs_activator
    assert not policy.chooses


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (ACCESS_ANNOTATION, "secret", '"public" or "private"'),
        (ACCESS_TOKEN_VERSION_ANNOTATION, "a/b", "1 to 63 letters"),
        (PLACEHOLDER_PAGE_ANNOTATION, "yes", '"true" or "false"'),
        (TCP_ANNOTATION, "0", "a port from 1 to 65535"),
        (TCP_ANNOTATION, "65536", "a port from 1 to 65535"),
        (TCP_ANNOTATION, "postgres", "a port from 1 to 65535"),
        (SESSION_AFFINITY_ANNOTATION, "sticky", '"cookie", "header:NAME", "prefix" or "none"'),
        (AFFINITY_ANNOTATION, "sticky", '"cookie", "header:NAME", "prefix" or "none"'),
        (SESSION_AFFINITY_ANNOTATION, "header:a b", '"cookie", "header:NAME", "prefix" or "none"'),
        (ALLOW_FROM_ANNOTATION, "shop", "namespace/NS"),
        (JWT_ANNOTATION, "issuer=https://x", "audience=NAME is needed"),
        (ROUTE_BY_HEADER_ANNOTATION, "X-Beta", "HEADER=VALUE:TAG"),
        (ROUTE_BY_HEADER_ANNOTATION, "X[]=1:beta", "HEADER=VALUE:TAG"),
        (ROUTE_BY_HEADER_ANNOTATION, ",".join(f"x=1:t{number}" for number in range(17)), "at most 16 rules"),
    ],
)
def test_invalid_annotation_is_reported_with_expected_form(key: str, text: str, expected: str) -> None:
    (problem,) = route_policy({key: text}).problems
    assert key in problem
    assert expected in problem


@pytest.mark.parametrize("broken", [{ACCESS_ANNOTATION: "Public"}, {ACCESS_TOKEN_VERSION_ANNOTATION: "?"}])
def test_invalid_access_annotation_makes_route_private(broken: dict[str, str]) -> None:
    assert route_policy(broken).is_private


@pytest.mark.parametrize(("text", "is_guarded"), [("namespace/a", True), ("", True), ("oops", True), ("*", False)])
def test_limited_callers_make_route_guarded(text: str, is_guarded: bool) -> None:
    policy = route_policy({ALLOW_FROM_ANNOTATION: text})
    assert policy.callers is not None
    assert (policy.is_guarded, policy.needs_activator) == (is_guarded, is_guarded)


def test_named_port_must_be_a_number() -> None:
    assert route_policy({NAMED_PORT_ANNOTATION: "8080"}).named_port == 8080
    wrong = route_policy({NAMED_PORT_ANNOTATION: "http"})
    assert wrong.named_port == 0
    assert wrong.problems == (
        f'annotation {NAMED_PORT_ANNOTATION} is "http", expected a port from 1 to 65535, as in "8080"',
    )


def test_paths_annotation_lists_up_to_16_valid_shared_hosts() -> None:
    policy = route_policy({PATHS_ANNOTATION: "shop.example.com/api/v1, *.example.com,"})
    shared = (SharedHost(host="shop.example.com", path="/api/v1"), SharedHost(host="*.example.com", path="/"))
    assert (policy.shared_hosts, policy.problems) == (shared, ())
    wrong = route_policy({PATHS_ANNOTATION: "Shop.example.com, a.com/x?y" + ", b.com" * 17})
    assert wrong.shared_hosts == (SharedHost(host="b.com"),) * 16
    assert [problem.partition(" is ")[2].partition(",")[0] for problem in wrong.problems] == [
        '"Shop.example.com"',
        '"a.com/x?y"',
        '"b.com"',
    ]


def test_tcp_port_requires_route_without_access_rules() -> None:
    assert route_policy({TCP_ANNOTATION: "5432"}).tcp_ports == (TcpPort(number=5432),)
    for guard in (
        {ACCESS_ANNOTATION: "private"},
        {ALLOW_FROM_ANNOTATION: "namespace/a"},
        {JWT_ANNOTATION: "issuer=https://x, audience=a"},
    ):
        guarded = route_policy({TCP_ANNOTATION: "5432", **guard})
        assert guarded.tcp_ports == ()
        assert "carries no token" in guarded.problems[0]


@pytest.mark.parametrize(
    ("text", "numbers"), [("", []), ("5432", [5432]), ("5432,1883", [5432, 1883]), (" 1 , 65535 ", [1, 65535])]
)
def test_tcp_ports_are_separated_by_commas(text: str, numbers: list[int]) -> None:
    assert read_tcp_ports(text) == tuple(TcpPort(number=number) for number in numbers)


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ("mqtt", '"mqtt" in "mqtt" is not right', "a port from 1 to 65535"),
        ("5432,0", '"0" in "5432,0" is not right', "a port from 1 to 65535"),
        ("65536", '"65536" in "65536" is not right', "a port from 1 to 65535"),
        ("5432/ssl", '"5432/ssl" in "5432/ssl" is not right', "a port from 1 to 65535"),
        ("5432/", '"5432/" in "5432/" is not right', "a port from 1 to 65535"),
        ("5432,", '"" in "5432," is not right', "a port from 1 to 65535"),
        ("\u0665", '"\u0665" in "\u0665" is not right', "a port from 1 to 65535"),
        ("1,2,01", 'port 01 is repeated in "1,2,01"', "each port once"),
        (",".join(str(number) for number in range(1, TCP_PORTS_MAX + 2)), "17 ports are too many", "at most 16"),
    ],
)
def test_invalid_tcp_port_is_reported_with_expected_form(text: str, what: str, expected: str) -> None:
    tcp_ports = read_tcp_ports(text)
    assert isinstance(tcp_ports, Problem)
    assert (tcp_ports.where, tcp_ports.what) == (f"annotation {TCP_ANNOTATION}", what)
    assert tcp_ports.expected.startswith(expected)


def test_tcp_port_suffix_tls_enables_tls() -> None:
    assert read_tcp_ports("5432/tls, 1883") == (TcpPort(number=5432, is_tls=True), TcpPort(number=1883))


@given(st.text(alphabet="0123456789, /tls", max_size=30))
def test_arbitrary_tcp_ports_raise_no_error(text: str) -> None:
    tcp_ports = read_tcp_ports(text)
    assert isinstance(tcp_ports, Problem) or all(0 < port.number < 65536 for port in tcp_ports)


def test_jwt_rule_makes_route_guarded() -> None:
    policy = route_policy({JWT_ANNOTATION: "issuer=https://x, audience=a"})
    assert policy.jwt is not None
    assert policy.is_guarded


@given(st.dictionaries(st.sampled_from(_ALL), st.text(max_size=40)))
def test_arbitrary_annotations_raise_no_error_and_fail_closed(annotations: dict[str, str]) -> None:
    policy = route_policy(annotations)
    assert policy.is_private or annotations.get(ACCESS_ANNOTATION, "public") == "public"


def test_header_rule_matches_equal_value_or_any() -> None:
    assert HeaderRule(header="x", value="1", tag="t").matches("1")
    assert not HeaderRule(header="x", value="1", tag="t").matches("2")
    assert HeaderRule(header="x", value="*", tag="t").matches("2")


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    route = copy.deepcopy(ROUTE)
    change(route)
    return route_digest(route, RULES)


@pytest.mark.parametrize(
    "change",
    [
        lambda route: route["metadata"].update(uid="v"),
        lambda route: route["metadata"].pop("labels"),
        lambda route: route["metadata"].pop("annotations"),
        lambda route: route["metadata"]["annotations"].update({ROLLOUT_ANNOTATION: SPLIT}),
        lambda route: route["status"].update(url="http://other.example.com"),
        lambda route: route["status"].pop("address"),
        lambda route: route["status"]["traffic"][0].update(percent=90),
        lambda route: route["status"]["traffic"][0].update(tag="new"),
        lambda route: route["status"]["traffic"].append({"revisionName": "hello-00002", "percent": 0}),
    ],
)
def test_routing_change_changes_digest(change: Callable[[dict[str, Any]], None]) -> None:
    assert changed(change) != route_digest(ROUTE, RULES)


@pytest.mark.parametrize(
    "change",
    [
        lambda route: route["metadata"].update(resourceVersion="8"),
        lambda route: route["metadata"]["labels"].update(team="b"),
        lambda route: route["metadata"]["annotations"].update({ROLLOUT_ANNOTATION: "{}"}),
        lambda route: route["status"].update(observedGeneration=3, conditions=[]),
        lambda route: route["status"]["traffic"][0].pop("latestRevision"),
    ],
)
def test_change_without_effect_on_routing_retains_digest(change: Callable[[dict[str, Any]], None]) -> None:
    assert changed(change) == route_digest(ROUTE, RULES)


def test_route_without_status_has_digest() -> None:
    assert len(route_digest({}, RULES)) == 16


def test_access_change_changes_digest() -> None:
    private = copy.deepcopy(ROUTE)
    private["metadata"]["annotations"][ACCESS_ANNOTATION] = "private"
    public = copy.deepcopy(ROUTE)
    public["metadata"]["annotations"][ACCESS_ANNOTATION] = "public"
    assert route_digest(private, RULES) != route_digest(ROUTE, RULES)
    assert route_digest(public, RULES) == route_digest(ROUTE, RULES)
