import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.autoscaler.decision_events import ExplainedDecision, explained
from serving.core.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from serving.core.scaling.scaler.decision_lines import DecisionLine, DecisionStamp
from serving.tools.cli.decisions.why import ScaleEvent, ShownDecisions, folded, forgotten, in_order, line_of, log_files
from tests.unit.core.scaling.scaler.test_replay import a_day


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


def decided(sentence: str, since_s: float, *, again: int = 0, revision: str = "hello-00001") -> DecisionLine:
    stamp = DecisionStamp(since_s=since_s, repeated_count=again, at_wall_s=since_s + again, since_wall_s=since_s)
    return DecisionLine(namespace="default", revision=revision, entry=stamp, sentence=sentence)


DAY = [
    decided("stays 1: no data; its first pods have 630 s more to become ready", 1.0),
    decided("stays 2: other", 2.0, revision="hello-00002"),
    decided("stays 1: no data; its first pods have 62 s more to become ready", 3.0, again=2),
    decided("1 → 2: panic", 9.0),
    decided("stays 1: no data; its first pods have 61 s more to become ready", 11.0),
]


def test_lines_that_differ_in_a_countdown_are_one_with_the_newest_sentence() -> None:
    first, other, *rest = folded(DAY)
    assert (first.sentence, first.entry) == (
        "stays 1: no data; its first pods have 62 s more to become ready",
        DecisionStamp(since_s=1.0, repeated_count=3, at_wall_s=5.0, since_wall_s=1.0),
    )
    assert [other, *rest] == [DAY[1], *DAY[3:]]


def test_moves_of_traffic_stand_between_the_decisions() -> None:
    moves = [
        ScaleEvent(at_s=at_s, reason="RollbackAsked", revision="hello", sentence=f"at {at_s}") for at_s in (10.0, 0.5)
    ]
    shown = [line[line.index("hello") :] for line in in_order([DAY[0], DAY[3], DAY[4]], moves)]
    assert [line.partition(":")[0] for line in shown] == [
        *("hello at 0.5", "hello-00001 stays 1", "hello-00001 1 → 2", "hello at 10.0", "hello-00001 stays 1"),
    ]


def test_a_followed_decision_that_only_counts_down_is_printed_as_json_alone() -> None:
    for by_sentence, expected in ((True, [False, True, True]), (False, [True, True, True])):
        shown = ShownDecisions(DAY[:2], by_sentence=by_sentence)
        assert [shown.is_new(one) for one in DAY[2:]] == expected
