"""Logs of a running system as a workload."""

import json
import math
from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.resolve import resolve
from serving.core.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.tools.simulator.decisions import Decisions
from serving.tools.simulator.logs import read_logs
from serving.tools.simulator.steady import RevisionCounts
from serving.tools.simulator.trace import TraceWindow

HOST = "hello.default.localhost:8080"
EVERYTHING = TraceWindow()


def request(at_s: float, duration_s: float, *, host: str = HOST, listener: str = "public") -> str:
    entry = {"at_s": at_s, "listener": listener, "client": "c", "method": "GET", "host": host, "target": "/"}
    return json.dumps({**entry, "status": 200, "outcome": "ok", "duration_s": duration_s})


def record(at_s: float, *, scale: int, ready: int, inside: int = 0) -> str:
    """A decision as a line of the decision log."""
    settings = AutoscalerSettings()
    spec = resolve(settings, ScalingAnnotations(), container_concurrency=10, reachable=True)
    counts = RevisionCounts(scale=scale, ready=ready, inside=inside)
    decisions = Decisions(settings, spec, has_burst_switch=False)
    decisions.decide(counts, at_s, DecisionCause.PERIOD)
    assert decisions.outcome is not None
    entry = HistoryEntry(since_s=at_s, repeated_count=0, outcome=decisions.outcome, at_wall_s=at_s)
    decision_record = DecisionRecord(namespace="default", revision="hello-00001", entry=entry, windows=None)
    return msgspec.json.encode(decision_record).decode()


def written(folder: Path, *lines: str, name: str = "activator.log") -> Path:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_access_log_is_read_as_requests_by_host(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "activator listens",
        request(1000.5, 0.5),
        request(1003.0, 1.0),
        request(1002.0, 0.1, host="other"),
        request(1002.0, 0.1, listener="pod"),
        '{"listener": "public", "cut',
    )
    logs = read_logs(path, window=EVERYTHING)
    assert {function_trace.name: function_trace.request_count for function_trace in logs.functions} == {
        HOST: 2,
        "other": 1,
    }
    assert list(logs.functions[0].arrivals(1)) == [(0.0, 0.5), (2.0, 1.0)]
    assert (logs.length_s, logs.start) == (3.0, None)
    assert logs.service.of(HOST).p50_s == pytest.approx(0.75)


def test_decision_log_adds_start_times_and_marks_requests_that_waited(tmp_path: Path) -> None:
    written(tmp_path, request(1002.6, 2.6), request(1010.5, 0.5))
    written(
        tmp_path,
        record(1000.0, scale=0, ready=0, inside=1),
        record(1001.0, scale=1, ready=0, inside=1),
        record(1002.1, scale=1, ready=1),
        name="decisions.jsonl",
    )
    logs = read_logs(tmp_path, window=EVERYTHING)
    assert logs.start is not None
    assert logs.start.p50_s == pytest.approx(2.1)
    assert [math.isnan(took_s) for _, took_s in logs.functions[0].arrivals(1)] == [True, False]


def test_log_interval_starts_at_time_0(tmp_path: Path) -> None:
    path = written(tmp_path, *(request(1000.0 + index, 0.0) for index in range(10)))
    logs = read_logs(path, window=TraceWindow(from_s=2.0, until_s=5.0))
    assert [at_s for at_s, _ in logs.functions[0].arrivals(1)] == [0.0, 1.0, 2.0]
    assert logs.length_s == 3.0


def test_log_without_requests_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="access-log-percentage"):
        read_logs(written(tmp_path, "nothing"), window=EVERYTHING)
    with pytest.raises(SettingsError, match=r"none\.log"):
        read_logs(tmp_path / "none.log", window=EVERYTHING)
