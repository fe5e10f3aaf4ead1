"""Conditions: their causes, and their times of change."""

import pytest

from serving.controller.values.conditions import Condition, mirrored, ready_of, updated_conditions
from serving.core.model.knative import ConditionStatus

TRUE = Condition(type="A", status=ConditionStatus.TRUE)
UNKNOWN = Condition(type="B", status=ConditionStatus.UNKNOWN, reason="Deploying")
FALSE = Condition(type="C", status=ConditionStatus.FALSE, reason="ExitCode1", message="boom")


@pytest.mark.parametrize(
    ("dependencies", "ready"),
    [
        ([TRUE], Condition(type="Ready", status=ConditionStatus.TRUE)),
        ([TRUE, UNKNOWN], Condition(type="Ready", status=ConditionStatus.UNKNOWN, reason="Deploying")),
        ([UNKNOWN, FALSE], Condition(type="Ready", status=ConditionStatus.FALSE, reason="ExitCode1", message="boom")),
        ([], Condition(type="Ready", status=ConditionStatus.TRUE)),
    ],
)
def test_ready_is_the_worst_of_its_dependencies(dependencies: list[Condition], ready: Condition) -> None:
    assert ready_of(dependencies) == ready


def test_conditions_are_sorted_without_empty_fields() -> None:
    assert updated_conditions([FALSE, TRUE], before=[], now="now") == [
        {"type": "A", "status": "True", "lastTransitionTime": "now"},
        {"type": "C", "status": "False", "reason": "ExitCode1", "message": "boom", "lastTransitionTime": "now"},
    ]


def test_transition_time_changes_only_with_condition() -> None:
    before = updated_conditions([TRUE, FALSE], before=[], now="then")
    after = updated_conditions(
        [TRUE, Condition(type="C", status=ConditionStatus.FALSE, reason="ExitCode2", message="boom")],
        before=before,
        now="now",
    )
    assert [entry["lastTransitionTime"] for entry in after] == ["then", "now"]


def test_condition_without_transition_time_gets_one() -> None:
    assert (
        updated_conditions([TRUE], before=[{"type": "A", "status": "True"}], now="now")[0]["lastTransitionTime"]
        == "now"
    )


def test_informative_condition_has_severity_info() -> None:
    assert Condition(type="Active", status=ConditionStatus.TRUE, informative=True).written()["severity"] == "Info"


@pytest.mark.parametrize(
    ("source", "reason"),
    [({"status": "False", "reason": "R", "message": "m"}, "R"), ({"status": "True", "reason": "TLSNotEnabled"}, "")],
)
def test_mirrored_condition_has_reason_unless_true(source: dict[str, str], reason: str) -> None:
    assert mirrored(source, "RoutesReady").reason == reason


def test_mirrored_missing_condition_is_unknown() -> None:
    assert mirrored({}, "RoutesReady") == Condition(type="RoutesReady", status=ConditionStatus.UNKNOWN)
