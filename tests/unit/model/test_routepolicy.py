"""What a route asks of the activator, read from annotations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.model.knative import (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
)
from serving.model.routepolicy import OPEN_POLICY, HeaderRule, SessionAffinity, route_policy

_ALL = (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
)


def test_a_route_without_annotations_is_open_and_leaves_the_path_free() -> None:
    assert route_policy({"other": "x"}) is OPEN_POLICY
    assert not OPEN_POLICY.needs_activator


def test_all_that_can_be_asked_for() -> None:
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


@pytest.mark.parametrize(("text", "affinity"), [("cookie", SessionAffinity()), ("none", None), ("", None)])
def test_kinds_of_affinity(text: str, affinity: SessionAffinity | None) -> None:
    assert route_policy({SESSION_AFFINITY_ANNOTATION: text}).affinity == affinity


def test_a_private_route_needs_the_activator_though_it_chooses_nothing() -> None:
    policy = route_policy({ACCESS_ANNOTATION: "private"})
    assert policy.needs_activator
    assert not policy.chooses


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (ACCESS_ANNOTATION, "secret", '"public" or "private"'),
        (ACCESS_TOKEN_VERSION_ANNOTATION, "a/b", "1 to 63 letters"),
        (PLACEHOLDER_PAGE_ANNOTATION, "yes", '"true" or "false"'),
        (SESSION_AFFINITY_ANNOTATION, "sticky", '"cookie", "header:NAME" or "none"'),
        (SESSION_AFFINITY_ANNOTATION, "header:a b", '"cookie", "header:NAME" or "none"'),
        (ROUTE_BY_HEADER_ANNOTATION, "X-Beta", "HEADER=VALUE:TAG"),
        (ROUTE_BY_HEADER_ANNOTATION, "X[]=1:beta", "HEADER=VALUE:TAG"),
        (ROUTE_BY_HEADER_ANNOTATION, ",".join(f"x=1:t{number}" for number in range(17)), "at most 16 rules"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_is_expected(key: str, text: str, expected: str) -> None:
    (problem,) = route_policy({key: text}).problems
    assert key in problem
    assert expected in problem


@pytest.mark.parametrize("broken", [{ACCESS_ANNOTATION: "Public"}, {ACCESS_TOKEN_VERSION_ANNOTATION: "?"}])
def test_a_mistake_about_access_closes_the_service(broken: dict[str, str]) -> None:
    assert route_policy(broken).is_private


@given(st.dictionaries(st.sampled_from(_ALL), st.text(max_size=40)))
def test_any_text_is_read_without_an_error(annotations: dict[str, str]) -> None:
    policy = route_policy(annotations)
    assert policy.is_private or annotations.get(ACCESS_ANNOTATION, "public") == "public"


def test_a_rule_matches_its_value_or_any() -> None:
    assert HeaderRule(header="x", value="1", tag="t").matches("1")
    assert not HeaderRule(header="x", value="1", tag="t").matches("2")
    assert HeaderRule(header="x", value="*", tag="t").matches("2")
