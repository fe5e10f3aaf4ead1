"""Invariants of the controllers' decisions for any input: differences, claims, collection, traffic."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.revisions.configuration import collectable
from serving.controller.routes.hosts import Claims
from serving.controller.routes.rollout import RouteTargets, assign
from serving.controller.values.naming import child_name
from serving.core.model.knative import ROUTING_STATE_LABEL, ROUTING_STATE_MODIFIED_ANNOTATION
from serving.core.model.objects import Key, Object, merge_difference, name_of
from serving.core.settings.controller import DISABLED
from tests.invariants import validate
from tests.unit.controller.builders import SETTINGS, a_configuration, a_revision, merged, stored, with_ready

NAMES = st.sampled_from("abcd")
LEAVES = st.one_of(st.integers(0, 3), st.text("xy", max_size=2), st.lists(st.integers(0, 2), max_size=2))
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(LEAVES, inner), max_size=3),
    max_leaves=12,
)

HOSTS = st.dictionaries(st.sampled_from(["h1", "h2", "h3"]), st.sampled_from(["2025", "2026", "~"]), max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), HOSTS), max_size=20)
AGES = st.lists(st.integers(1, 28), max_size=12)
TARGETS = st.lists(
    st.one_of(
        st.builds(lambda percent: {"configurationName": "hello", "percent": percent}, st.integers(0, 100)),
        st.builds(
            lambda name, percent: {"revisionName": name, "percent": percent},
            st.sampled_from(["hello-00001", "hello-00002", "gone"]),
            st.integers(0, 100),
        ),
    ),
    max_size=4,
)


@given(TREES, TREES)
def test_merge_difference_turns_one_object_into_the_other(old: Object, new: Object) -> None:
    assert merged(old, merge_difference(old, new)) == new


@given(TREES)
def test_equal_objects_have_no_difference(resource: Object) -> None:
    assert merge_difference(resource, resource) == {}


@given(st.text("abc-", min_size=1, max_size=80), st.sampled_from(["-00001", "-deployment", "-private"]))
def test_child_name_has_at_most_63_characters_and_its_suffix(parent: str, suffix: str) -> None:
    name = child_name(parent, suffix)
    assert len(name) <= 63
    assert name.endswith(suffix)


@given(STEPS)
def test_host_is_owned_by_its_oldest_claim_after_any_history(steps: list[tuple[str, dict[str, str]]]) -> None:
    claims = Claims()
    wanted: dict[Key, dict[str, str]] = {}
    for name, hosts in steps:
        claims.put(("default", name), hosts)
        wanted["default", name] = hosts
        validate(claims)
    for host in ("h1", "h2", "h3"):
        holders = sorted((hosts[host], key) for key, hosts in wanted.items() if host in hosts)
        assert claims.holder(host) == (holders[0][1] if holders else None)


@given(AGES, st.integers(0, 5), st.one_of(st.just(DISABLED), st.integers(5, 8)))
def test_garbage_collection_respects_minimum_and_maximum_revisions(days: list[int], least: int, most: int) -> None:
    settings = msgspec.structs.replace(SETTINGS, min_non_active_revisions=least, max_non_active_revisions=most)
    revisions = [
        stored(
            a_revision(),
            name=f"r{index}",
            labels={ROUTING_STATE_LABEL: "reserve"},
            annotations={ROUTING_STATE_MODIFIED_ANNOTATION: f"2026-11-{day:02d}T00:00:00Z"},
            creationTimestamp=f"2026-11-{day:02d}T00:00:00Z",
        )
        for index, day in enumerate(days)
    ]
    gone = {
        name_of(resource)
        for resource in collectable(a_configuration(), revisions, settings, now="2026-11-21T00:00:00Z")
    }
    remaining = [day for index, day in enumerate(days) if f"r{index}" not in gone]
    collected = [day for index, day in enumerate(days) if f"r{index}" in gone]
    assert len(remaining) >= min(least, len(days))
    assert most == DISABLED or len(remaining) <= most
    assert not collected or not remaining or max(collected) <= min(remaining)


@given(TARGETS, st.booleans())
def test_traffic_is_assigned_only_if_all_targets_are_ready(targets: list[Object], has_latest: bool) -> None:
    status = {"latestReadyRevisionName": "hello-00001"} if has_latest else {}
    known = RouteTargets(
        configurations={"hello": {**a_configuration(), "status": status}},
        revisions={"hello-00001": with_ready(a_revision(), "True"), "hello-00002": a_revision(generation=2)},
    )
    assignment = assign(targets, known)
    assert (assignment.targets is None) is (assignment.condition.status != "True")
    if assignment.targets is not None:
        assert [target["percent"] for target in assignment.targets] == [target["percent"] for target in targets]
        assert {target["revisionName"] for target in assignment.targets} <= {"hello-00001"}
