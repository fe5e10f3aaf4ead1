import http.server
import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.autoscaler.decision_events import ExplainedDecision, explained
from serving.core.model.knative import CONDITION_DORMANT
from serving.core.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from serving.core.scaling.scaler.decision_lines import DecisionLine, DecisionStamp
from serving.core.traffic.ejection import EjectionReport
from serving.home.state import kubeconfig
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.output import clock_text
from serving.tools.cli.client.reach import Reach
from serving.tools.cli.decisions.why import (
    ScaleEvent,
    ShownDecisions,
    cold_lines,
    dormant_lines,
    ejected_lines,
    folded,
    forgotten,
    in_order,
    line_of,
    log_files,
)
from tests.unit.core.scaling.scaler.test_replay import a_day


def explained_records(records: Sequence[DecisionRecord]) -> list[ExplainedDecision]:
    return [explained(("default", "hello-00001"), record.entry) for record in records]


def test_decision_line_shows_time_revision_scale_and_reason() -> None:
    decision = explained_records(a_day())[0]
    assert re.fullmatch(
        r"[\d: -]+ hello-00001 0 → 5: panic; 6 s average 30\.0 in flight over 0 ready pods, target 7 each",
        line_of(decision),
    )


def test_repeated_decision_line_shows_its_count_and_end() -> None:
    first = a_day()[0].entry
    repeated = msgspec.structs.replace(first, repeated_count=3)
    assert isinstance(repeated, HistoryEntry)
    line = line_of(explained(("default", "hello-00001"), repeated))
    assert re.search(r" \(3 times more, until [\d: -]+\)$", line)


def test_log_adds_only_unrepeated_decisions_missing_from_memory() -> None:
    day = explained_records(a_day())
    new = [decision for decision in day[:5] if not decision.entry.repeated_count]
    assert list(filter(forgotten(day[5:]), day)) == new
    assert list(filter(forgotten([]), day)) == [decision for decision in day if not decision.entry.repeated_count]


def test_repeated_decision_is_shown_once() -> None:
    first, second = explained_records(
        [decision_record for decision_record in a_day() if not decision_record.entry.repeated_count]
    )[:2]
    again = msgspec.structs.replace(second, entry=msgspec.structs.replace(second.entry, repeated_count=2))
    shown = ShownDecisions([first])
    assert [shown.is_new(decision) for decision in (first, again, again, second)] == [False, True, False, False]


def test_log_files_are_sorted_oldest_first(tmp_path: Path) -> None:
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


def test_lines_that_differ_only_in_a_countdown_are_folded() -> None:
    first, other, *rest = folded(DAY)
    assert (first.sentence, first.entry) == (
        "stays 1: no data; its first pods have 62 s more to become ready",
        DecisionStamp(since_s=1.0, repeated_count=3, at_wall_s=5.0, since_wall_s=1.0),
    )
    assert [other, *rest] == [DAY[1], *DAY[3:]]


def test_traffic_events_are_merged_with_decisions_by_time() -> None:
    moves = [
        ScaleEvent(at_s=at_s, reason="RollbackAsked", revision="hello", sentence=f"at {at_s}") for at_s in (10.0, 0.5)
    ]
    shown = [line[line.index("hello") :] for line in in_order([DAY[0], DAY[3], DAY[4]], moves)]
    assert [line.partition(":")[0] for line in shown] == [
        *("hello at 0.5", "hello-00001 stays 1", "hello-00001 1 → 2", "hello at 10.0", "hello-00001 stays 1"),
    ]


def test_followed_countdown_decision_is_shown_only_without_sentence_folding() -> None:
    for by_sentence, expected in ((True, [False, True, True]), (False, [True, True, True])):
        shown = ShownDecisions(DAY[:2], by_sentence=by_sentence)
        assert [shown.is_new(decision_line) for decision_line in DAY[2:]] == expected


def cold_start(took_s: float, **steps: float) -> dict[str, Any]:
    return {"at_s": 0.0, "took_s": took_s, "steps": {name.replace("_", " "): value for name, value in steps.items()}}


def test_cold_start_bars_are_consecutive_and_fill_the_width() -> None:
    median = cold_start(0.1, pod_is_created=0.025, app_starts=0.075) | {"advice": "Do less."}
    result = {"revision": "default/hello-00001", "starts": [median], "median": median}
    assert list(cold_lines(result)) == [
        "hello-00001: median of 1 cold start, 100 ms",
        f"  pod is created         25 ms  {'█' * 10}",
        f"  app starts             75 ms  {' ' * 10}{'█' * 30}",
        "Do less.",
    ]


def test_cold_starts_are_listed_below_their_median() -> None:
    starts = [cold_start(0.1, app_starts=0.1), cold_start(0.0)]
    result = {"revision": "default/hello-00001", "starts": starts, "median": starts[0] | {"advice": "x"}}
    lines = list(cold_lines(result))
    assert lines[0] == "hello-00001: median of 2 cold starts, 100 ms"
    assert [line for line in lines if "hello-00001 " in line][1].endswith(" hello-00001 0.0 ms")


def test_no_cold_starts_print_nothing() -> None:
    assert list(cold_lines({"revision": "default/x", "starts": [], "median": {}})) == []


SINCE_S = 1_700_000_000.0


def report(revision: str = "hello-00001", **changes: object) -> EjectionReport:
    ejection_report = EjectionReport(
        revision=revision,
        pod="hello-00001-x",
        address="127.64.0.3:8012",
        is_silent=True,
        failure_count=1,
        in_flight_count=4,
        since_wall_s=SINCE_S,
        until_wall_s=SINCE_S + 5,
    )
    return msgspec.structs.replace(ejection_report, **changes)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder of two activators: one responds with ``reports``, one is unreachable."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (tmp_path / self.path.strip("/").replace("/", "-")).read_bytes()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        ports = {"public": 1, "activator-metrics": server.server_port, "activator-1-metrics": 1}
        (tmp_path / "ports.json").write_text(json.dumps(ports))
        (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1", "t"))
        yield tmp_path
        server.shutdown()
        thread.join()


def lines(state: Path, *reports: EjectionReport) -> list[str]:
    (state / "ejections-default").write_bytes(msgspec.json.encode(reports))
    return ejected_lines(Reach(ApiClient(state)), "default", lambda revision: revision == "hello-00001")


def test_silent_pod_line_shows_its_requests_and_readmission_time(state: Path) -> None:
    (line,) = lines(state, report(), report("other-00001"))
    assert line.startswith(
        f"{clock_text(SINCE_S)} hello-00001 pod hello-00001-x (127.64.0.3:8012) does not respond (4 "
    )
    assert line.endswith(f"ejected once); activator: it gets no requests until {clock_text(SINCE_S + 5)}")


def test_unreachable_pod_line_differs_from_a_silent_pod_line(state: Path) -> None:
    (line,) = lines(state, report(is_silent=False, failure_count=3, until_wall_s=None))
    assert "accepts no connection (3 times in a row); activator: it gets requests again" in line


def test_folder_without_a_running_system_has_no_ejection_lines(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1", "t"))
    assert ejected_lines(Reach(ApiClient(tmp_path)), "default", lambda _: True) == []


def sleeper(revision: str, **condition: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"serving.knative.dev/revision": revision}},
        "status": {"conditions": [{"type": CONDITION_DORMANT, **condition}]},
    }


def test_dormant_line_shows_dormant_pod_count_and_rejection_reason() -> None:
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
