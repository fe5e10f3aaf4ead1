"""Verdicts on revisions during a rollout."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.routes.rollout import Assignment
from serving.controller.routes.rolloutcheck import (
    RolloutJudgement,
    RolloutVerdict,
    checked_rollout,
    judge,
    least_share,
)
from serving.controller.values.conditions import Condition
from serving.core.model.knative import ConditionStatus
from serving.core.model.objects import Object
from serving.core.model.rolloutcheck import BrokenCheck, read_rollout_check
from serving.core.traffic.latencies import bucket_of
from serving.core.traffic.responsecounts import ResponseCounts
from tests.unit.controller.builders import a_route

CHECK = "errors<1%,p90<100ms"
OWN = {"serving.knative.dev/rollout-duration": "10s", "serving.dev/rollout-check": CHECK}
BROKEN = {"serving.dev/rolled-back": f'{{"r2":{{"check":"{CHECK}","why":"bad"}}}}'}
BACK = RolloutJudgement(verdict=RolloutVerdict.BACK, why="bad")


def seen(count: float, *, errors: float = 0, late: float = 0) -> ResponseCounts:
    durations = {bucket_of(0.01): count - late, bucket_of(0.5): late}
    return ResponseCounts(count=count, error_count=errors, durations=durations)


def verdict(text: str, response_counts: ResponseCounts | None, *, may_wait: bool = True) -> tuple[str, str]:
    judgement = judge(read_rollout_check(text), response_counts, may_wait=may_wait)
    return judgement.verdict.value, judgement.why


@pytest.mark.parametrize(
    ("counts", "may_wait", "expected"),
    [
        (None, True, ("hold", "an activator does not report its responses")),
        (None, False, ("hold", "an activator does not report its responses")),
        (seen(19), True, ("hold", "19 of 20 responses are there")),
        (seen(19), False, ("go", f"{CHECK} holds over 19 responses")),
        (seen(0), False, ("go", f"{CHECK} holds over 0 responses")),
        (seen(20), True, ("go", f"{CHECK} holds over 20 responses")),
        # One or two errors may be an accident, of however few responses.
        (seen(2, errors=2), True, ("hold", "2 of 20 responses are there")),
        (seen(20, errors=2), True, ("go", f"{CHECK} holds over 20 responses")),
        (seen(3, errors=3), True, ("back", "3 of 3 responses were 5xx (100 %), above 1 %")),
        (seen(200, errors=12), True, ("back", "12 of 200 responses were 5xx (6 %), above 1 %")),
        (seen(1000, errors=10), True, ("go", f"{CHECK} holds over 1000 responses")),
        (seen(50, late=5), True, ("go", f"{CHECK} holds over 50 responses")),
        (seen(50, late=20), True, ("back", "20 of 50 responses took longer than 100ms (40 %), above the 10 % of p90")),
    ],
)
def test_rollout_verdict_depends_on_responses(
    counts: ResponseCounts | None, may_wait: bool, expected: tuple[str, str]
) -> None:
    assert verdict(CHECK, counts, may_wait=may_wait) == expected


def test_response_in_bucket_of_limit_is_not_late() -> None:
    just = ResponseCounts(count=100, error_count=0, durations={bucket_of(0.1): 100})
    assert verdict("p90<100ms", just)[0] == "go"
    assert verdict("errors<100%", seen(100, errors=100, late=100))[0] == "go"


@given(st.integers(0, 500), st.integers(0, 500))
def test_least_share_is_below_share_and_grows_with_count(part: int, rest: int) -> None:
    count = part + rest
    result = least_share(part, count)
    assert 0 <= result <= (part / count if count else 0) + 1e-12
    assert least_share(10 * part, 10 * count) >= result - 1e-12


@given(st.integers(1, 5000), st.integers(0, 20_000))
def test_revision_within_error_limit_is_never_rolled_back(count: int, thousandths: int) -> None:
    errors = math.floor(count * thousandths / 100_000)
    assert verdict(f"errors<{thousandths / 1000:.3f}%", seen(count, errors=errors), may_wait=False)[0] == "go"


def assigned(*names: str) -> Assignment:
    condition = Condition(type="AllTrafficAssigned", status=ConditionStatus.TRUE)
    targets: list[Object] = [{"revisionName": name, "latestRevision": True, "percent": 100} for name in names]
    return Assignment(targets=targets or None, condition=condition)


def test_route_without_valid_check_is_not_checked() -> None:
    assert checked_rollout(a_route(), assigned("r2"), {"r2": BACK}).broken == {}
    wrong = a_route(annotations={**OWN, "serving.dev/rollout-check": "errors<"})
    assert checked_rollout(wrong, assigned("r2"), {"r2": BACK}).check is None


def test_newest_revision_is_paused_until_judged() -> None:
    go = RolloutJudgement(verdict=RolloutVerdict.GO, why="")
    assert checked_rollout(a_route(annotations=OWN), assigned("r2"), {}).paused == {"r2"}
    assert checked_rollout(a_route(annotations=OWN), assigned("r2"), {"r2": go}).paused == frozenset()


def test_broken_revision_remains_broken_until_check_or_revision_changes() -> None:
    first = checked_rollout(a_route(annotations=OWN), assigned("r2"), {"r2": BACK, "r1": BACK})
    assert first.broken == {"r2": BrokenCheck(check=CHECK, why="bad")}
    route = a_route(annotations={**OWN, **BROKEN})
    assert checked_rollout(route, assigned("r2"), {}).broken == first.broken
    assert checked_rollout(route, assigned(), {}).broken == first.broken
    assert checked_rollout(route, assigned("r3"), {}).broken == {}
    other = a_route(annotations={**OWN, **BROKEN, "serving.dev/rollout-check": "errors<50%"})
    assert checked_rollout(other, assigned("r2"), {}).broken == {}


def test_rollback_sets_condition_and_emits_one_event() -> None:
    route = a_route(annotations=OWN)
    new_checked_rollout = checked_rollout(route, assigned("r2"), {"r2": BACK})
    message = f'Revision "r2" is rolled back by {CHECK}: bad.'
    condition = new_checked_rollout.condition()
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == (ConditionStatus.FALSE, "RolledBack", message)
    assert [(note.reason, note.message, note.warning) for note in new_checked_rollout.notes(route)] == [
        ("RolledBack", message, True)
    ]
    again = a_route(annotations={**OWN, **BROKEN})
    assert list(checked_rollout(again, assigned("r2"), {}).notes(again)) == []
    assert checked_rollout(again, assigned("r3"), {}).condition() is None
