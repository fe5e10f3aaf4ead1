import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from serving.autoscaler.decision_events import ExplainedDecision, explained
from serving.cli.decisions.why import ShownDecisions, dormant_lines, forgotten, line_of, log_files
from serving.model.knative import CONDITION_DORMANT
from serving.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from tests.unit.scaling.scaler.test_replay import a_day


def explained_records(records: Sequence[DecisionRecord]) -> list[ExplainedDecision]:
    return [explained(("default", "hello-00001"), record.entry) for record in records]


def test_a_line_says_when_who_what_and_why() -> None:
    one = explained_records(a_day())[0]
    assert re.fullmatch(
        r"[\d: -]+ hello-00001 0 → 5: panic; 6 s average 30\.0 in flight over 0 ready pods, target 7 each", line_of(one)
    )


def test_a_line_says_how_often_it_was_said() -> None:
    first = a_day()[0].entry
    repeated = msgspec.structs.replace(first, repeated_count=3)
    assert isinstance(repeated, HistoryEntry)
    line = line_of(explained(("default", "hello-00001"), repeated))
    assert re.search(r" \(3 times more, until [\d: -]+\)$", line)


def test_the_log_tells_what_is_not_remembered_any_more_and_no_samples() -> None:
    day = explained_records(a_day())
    new = [one for one in day[:5] if not one.entry.repeated_count]
    assert list(filter(forgotten(day[5:]), day)) == new
    assert list(filter(forgotten([]), day)) == [one for one in day if not one.entry.repeated_count]


def test_a_decision_that_was_made_again_before_it_was_seen_is_new_once() -> None:
    first, second = explained_records([one for one in a_day() if not one.entry.repeated_count])[:2]
    again = msgspec.structs.replace(second, entry=msgspec.structs.replace(second.entry, repeated_count=2))
    shown = ShownDecisions([first])
    assert [shown.is_new(one) for one in (first, again, again, second)] == [False, True, False, False]


def test_files_of_the_log_come_oldest_first(tmp_path: Path) -> None:
    for name in ("decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.3"):
        (tmp_path / name).touch()
    assert [path.name for path in log_files(tmp_path)] == ["decisions.jsonl.3", "decisions.jsonl.1", "decisions.jsonl"]


def sleeper(revision: str, **condition: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"serving.knative.dev/revision": revision}},
        "status": {"conditions": [{"type": CONDITION_DORMANT, **condition}]},
    }


def test_a_revision_says_how_many_of_its_pods_sleep_and_what_is_refused() -> None:
    pods = [
        sleeper("a", status="True", reason="Idle", message="m", lastTransitionTime="2026-11-24T10:00:00Z"),
        sleeper("a", status="False", reason="Refused", message="the quota cpu forbids it"),
        sleeper("b", status="False", reason="Running", message="m"),
        sleeper("c", status="True", reason="Idle", lastTransitionTime="?"),
        {"metadata": {"labels": {"serving.knative.dev/revision": "a"}}},
    ]
    first, second = dormant_lines(pods, {"a", "b"}.__contains__)
    assert re.fullmatch(r"a: 1 of 2 pods dormant, the longest since [\d: -]+; the quota cpu forbids it", first)
    assert second == "b: 0 of 1 pod dormant"
    assert list(dormant_lines(pods, {"c"}.__contains__)) == ["c: 1 of 1 pod dormant"]
