"""From desired traffic to revisions."""

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


def test_the_latest_is_what_was_ready_last() -> None:
    assignment = assigned(LATEST, configuration=with_latest("hello-00007"))
    assert assignment.targets == [{"revisionName": "hello-00007", "latestRevision": True, "percent": 100}]
    assert assignment.condition.status == "True"


def test_a_revision_by_name_gets_what_it_is_given() -> None:
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
def test_a_configuration_without_a_ready_revision_is_waited_for(
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
def test_a_revision_that_is_not_ready_gets_nothing(status: str, condition_status: str, message: str) -> None:
    condition = refusal(assigned(FIRST, revision=with_ready(a_revision(), status)))
    assert (condition.status, condition.reason, condition.message) == (condition_status, "RevisionMissing", message)


@pytest.mark.parametrize("revision", [None, a_revision(state="Retired"), stored(a_revision(), deletionTimestamp="now")])
def test_a_revision_that_goes_or_is_gone_is_missing(revision: Object | None) -> None:
    condition = refusal(assigned(FIRST, revision=revision))
    assert (condition.status, condition.reason) == ("False", "RevisionMissing")
    assert condition.message == 'Revision "hello-00001" referenced in traffic not found.'


@pytest.mark.parametrize("configuration", [None, stored(with_latest("hello-00001"), deletionTimestamp="now")])
def test_a_configuration_that_goes_or_is_gone_is_missing(configuration: Object | None) -> None:
    condition = refusal(assigned(LATEST, configuration=configuration))
    assert (condition.reason, condition.message) == (
        "ConfigurationMissing",
        'Configuration "hello" referenced in traffic not found.',
    )


def test_it_is_all_or_nothing() -> None:
    assert assigned(LATEST, FIRST, configuration=with_latest("hello-00007")).targets is None
