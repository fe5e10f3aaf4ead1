"""Assignment of desired traffic to revisions."""

import pytest

from serving.controller.routes.rollout import Assignment, RouteTargets, assign
from serving.controller.values.conditions import Condition
from serving.core.model.objects import Object
from tests.unit.controller.builders import a_configuration, a_revision, stored, with_ready

LATEST = {"configurationName": "hello", "latestRevision": True, "percent": 100}
FIRST = {"revisionName": "hello-00001", "percent": 100, "tag": "first"}


def assigned(*targets: Object, configuration: Object | None = None, revision: Object | None = None) -> Assignment:
    return assign(
        targets,
        RouteTargets(
            configurations={"hello": configuration} if configuration else {},
            revisions={"hello-00001": revision} if revision else {},
        ),
    )


def refusal(assignment: Assignment) -> Condition:
    assert assignment.targets is None
    return assignment.condition


def with_latest(name: str) -> Object:
    return {**a_configuration(), "status": {"latestReadyRevisionName": name}}


def test_latest_target_is_assigned_latest_ready_revision() -> None:
    assignment = assigned(LATEST, configuration=with_latest("hello-00007"))
    assert assignment.targets == [{"revisionName": "hello-00007", "latestRevision": True, "percent": 100}]
    assert assignment.condition.status == "True"


def test_named_revision_is_assigned_its_percent() -> None:
    assignment = assigned(FIRST, revision=with_ready(a_revision(), "True"))
    assert assignment.targets == [
        {"revisionName": "hello-00001", "latestRevision": False, "percent": 100, "tag": "first"}
    ]


@pytest.mark.parametrize(
    ("status", "condition_status", "message"),
    [
        ("False", "False", 'Configuration "hello" does not have any ready Revision.'),
        ("Unknown", "Unknown", 'Configuration "hello" is waiting for a Revision to become ready.'),
    ],
)
def test_configuration_without_ready_revision_is_revision_missing(
    status: str, condition_status: str, message: str
) -> None:
    condition = refusal(assigned(LATEST, configuration=with_ready(a_configuration(), status)))
    assert (condition.status, condition.reason, condition.message) == (condition_status, "RevisionMissing", message)


@pytest.mark.parametrize(
    ("status", "condition_status", "message"),
    [
        ("False", "False", 'Revision "hello-00001" failed to become ready.'),
        ("Unknown", "Unknown", 'Revision "hello-00001" is not yet ready.'),
    ],
)
def test_unready_revision_is_not_assigned(status: str, condition_status: str, message: str) -> None:
    condition = refusal(assigned(FIRST, revision=with_ready(a_revision(), status)))
    assert (condition.status, condition.reason, condition.message) == (condition_status, "RevisionMissing", message)


@pytest.mark.parametrize("revision", [None, a_revision(state="Retired"), stored(a_revision(), deletionTimestamp="now")])
def test_missing_or_retired_revision_is_reported(revision: Object | None) -> None:
    condition = refusal(assigned(FIRST, revision=revision))
    assert (condition.status, condition.reason) == ("False", "RevisionMissing")
    assert condition.message == 'Revision "hello-00001" referenced in traffic not found.'


@pytest.mark.parametrize("configuration", [None, stored(with_latest("hello-00001"), deletionTimestamp="now")])
def test_missing_or_terminating_configuration_is_reported(configuration: Object | None) -> None:
    condition = refusal(assigned(LATEST, configuration=configuration))
    assert (condition.reason, condition.message) == (
        "ConfigurationMissing",
        'Configuration "hello" referenced in traffic not found.',
    )


def test_assignment_fails_if_one_target_fails() -> None:
    assert assigned(LATEST, FIRST, configuration=with_latest("hello-00007")).targets is None
