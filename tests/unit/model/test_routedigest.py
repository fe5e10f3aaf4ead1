"""Which changes of a Route change its digest."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from serving.model.knative import ACCESS_ANNOTATION, ROLLOUT_ANNOTATION
from serving.model.rollout import ConfigurationRollout, RevisionShare, Rollout, write_rollout
from serving.model.routedigest import route_digest
from serving.settings.controller import ControllerSettings

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
def test_what_is_routed_changes_the_digest(change: Callable[[dict[str, Any]], None]) -> None:
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
def test_what_is_not_routed_does_not(change: Callable[[dict[str, Any]], None]) -> None:
    assert changed(change) == route_digest(ROUTE, RULES)


def test_a_route_without_a_status_has_a_digest() -> None:
    assert len(route_digest({}, RULES)) == 16


def test_what_the_route_asks_of_requests_changes_the_digest() -> None:
    private = copy.deepcopy(ROUTE)
    private["metadata"]["annotations"][ACCESS_ANNOTATION] = "private"
    public = copy.deepcopy(ROUTE)
    public["metadata"]["annotations"][ACCESS_ANNOTATION] = "public"
    assert route_digest(private, RULES) != route_digest(ROUTE, RULES)
    assert route_digest(public, RULES) == route_digest(ROUTE, RULES)
