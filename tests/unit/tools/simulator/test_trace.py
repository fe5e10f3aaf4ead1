"""Recorded workloads: three formats, two compressions and invalid rows."""

import gzip
import lzma
import math
import random
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue, SettingsError
from serving.tools.simulator.trace import ArrivalPlacement, Step, TraceWindow, arrivals, parse_steps, read_trace

PER_MINUTE = "function,1,2,3\na,2,0,1\nb,0,0,0\n"
REQUESTS = "at_s,function,duration_s\n1,a,2.5\n0.5,a,\n3,b,1\n"


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    data = text.encode()
    path.write_bytes(
        gzip.compress(data) if name.endswith(".gz") else lzma.compress(data) if name.endswith(".xz") else data
    )
    return path


def times_of(
    path: Path, *, placement: str = "uniform", seed: int = 1, from_s: float = 0, until_s: float = math.inf
) -> list[list[float]]:
    window = TraceWindow(from_s=from_s, until_s=until_s)
    functions, _ = read_trace(path, placement=ArrivalPlacement(placement), window=window)
    return [[at_s for at_s, _ in function_trace.arrivals(seed)] for function_trace in functions]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.xz"])
def test_counts_per_minute_are_placed_in_their_minutes(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, PER_MINUTE, name)
    functions, length_s = read_trace(path)
    assert ([function_trace.request_count for function_trace in functions], length_s) == ([3, 0], 180.0)
    first, second = times_of(path)
    assert [int(at_s // 60) for at_s in first] == [0, 0, 2]
    assert first == sorted(first)
    assert second == []


def test_azure_functions_trace_with_bom_is_parsed(tmp_path: Path) -> None:
    text = "\ufeffHashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,0\no,a,g,timer,0,2\n"
    functions, length_s = read_trace(written(tmp_path, text))
    assert [(function_trace.name, function_trace.request_count) for function_trace in functions] == [("f", 1), ("g", 2)]
    assert length_s == 120.0


def test_time_column_is_rejected_as_counts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'function,at_s' is not right; expected one of: function,1,2"):
        read_trace(written(tmp_path, "function,at_s\na,5\n"))


def test_arrivals_depend_only_on_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, PER_MINUTE)
    assert times_of(path) == times_of(path)
    assert times_of(path) != times_of(path, seed=2)


def test_phase_placement_repeats_each_minute(tmp_path: Path) -> None:
    ((first, second, third),) = times_of(written(tmp_path, "function,1,2,3\na,1,1,1\n"), placement="phase")
    assert [second - first, third - second] == pytest.approx([60.0, 60.0])


def test_request_trace_has_times_and_durations(tmp_path: Path) -> None:
    functions, length_s = read_trace(written(tmp_path, REQUESTS))
    assert [function_trace.request_count for function_trace in functions] == [2, 1]
    assert [at_s for at_s, _ in functions[0].arrivals(1)] == [0.5, 1.0]
    assert [took_s for _, took_s in functions[0].arrivals(1)] == pytest.approx([math.nan, 2.5], nan_ok=True)
    # The last request ends at 4 s; the trace lasts a minute longer.
    assert length_s == 64.0


def test_unnamed_and_duplicate_functions_are_retained(tmp_path: Path) -> None:
    requests, _ = read_trace(written(tmp_path, "at_s,function,duration_s\n1,,0.0\n2,a,1\n3,,1\n"))
    assert [(function_trace.name, function_trace.request_count) for function_trace in requests] == [
        ("(unnamed)", 2),
        ("a", 1),
    ]
    counts, _ = read_trace(written(tmp_path, "function,1\na,1\na,2\n,3\n"))
    assert [(function_trace.name, function_trace.request_count) for function_trace in counts] == [
        ("a", 1),
        ("a#2", 2),
        ("(unnamed)", 3),
    ]


def test_rate_trace_is_spread_over_its_intervals(tmp_path: Path) -> None:
    path = written(tmp_path, "at_s,count\n0,2\n10,1\n")
    assert [[int(at_s // 10) for at_s in times] for times in times_of(path)] == [[0, 0, 1]]
    assert read_trace(path)[1] == 20.0


def test_trace_interval_starts_at_time_0(tmp_path: Path) -> None:
    requests = written(tmp_path, REQUESTS)
    assert times_of(requests, from_s=0.75, until_s=2.0) == [[0.25]]
    counts = written(tmp_path, PER_MINUTE, "c.csv")
    assert times_of(counts, from_s=60.0, until_s=120.0) == [[], []]
    whole, part = times_of(counts)[0], times_of(counts, until_s=90.0)[0]
    assert part == [at_s for at_s in whole if at_s < 90.0]
    assert read_trace(counts, window=TraceWindow(from_s=60.0, until_s=120.0))[1] == 60.0


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("function,1,2\na,1\n", "t.csv:2", "a function and 2 counts"),
        ("function,1,2\na,1,1,1\n", "t.csv:2", "a function and 2 counts"),
        ("function,1\na,one\n", "t.csv:2", "a whole number of requests in minute 1 of a"),
        ("function,1\na,-1\n", "t.csv:2", "a whole number of requests"),
        ("at_s,function,duration_s\n1,a,2\nx,a,2\n", "t.csv:3", "seconds, a name or nothing, seconds or nothing"),
        ("at_s,function,duration_s\n\n1,a,-2\n", "t.csv:3", "seconds, a name or nothing, seconds or nothing"),
        ("at_s,function,duration_s\nnan,a,2\n", "t.csv:2", "seconds, a name or nothing, seconds or nothing"),
        ("at_s,function,duration_s\n1,a,inf\n", "t.csv:2", "seconds, a name or nothing, seconds or nothing"),
        ("at_s,count\n\n10,1\n10,1\n", "t.csv:4", "seconds in rising order"),
        ("at_s,count\n10,-1\n", "t.csv:2", "seconds in rising order"),
        ("at_s,count\n10\n", "t.csv:2", "seconds in rising order"),
        ("hello\n", "t.csv:1", "at_s,count"),
        ("", "t.csv:1", "at_s,count"),
    ],
)
def test_invalid_trace_row_is_reported_with_its_line(tmp_path: Path, text: str, where: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_trace(written(tmp_path, text))
    (problem,) = caught.value.problems
    assert problem.where.endswith(where)
    assert expected in problem.expected


def test_long_invalid_row_is_abbreviated(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_trace(written(tmp_path, "at_s,count\n" + "9" * 500 + "x,1\n"))
    assert len(caught.value.problems[0].what) < 100


def test_missing_or_corrupt_trace_file_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "b.csv.gz"
    broken.write_bytes(b"no gzip")
    cut = written(tmp_path, REQUESTS, "cut.csv.xz")
    cut.write_bytes(cut.read_bytes()[:-20])
    for path in (tmp_path / "none.csv", broken, cut):
        with pytest.raises(SettingsError, match=path.name):
            read_trace(path)


def test_rate_steps_are_parsed() -> None:
    assert parse_steps("0:0 10:2.5") == [Step(from_s=0, rate=0), Step(from_s=10, rate=2.5)]


@pytest.mark.parametrize("text", ["", "10", "10:x", "10:1 5:2", "10:1 10:2", "-1:2"])
def test_invalid_rate_steps_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_steps(text)


def test_arrivals_match_the_rate_of_each_step() -> None:
    steps = parse_steps("10:100 20:0 30:10")
    times = list(arrivals(steps, 40.0, random.Random(1)))
    assert times == sorted(times)
    assert 850 <= sum(10 <= at_s < 20 for at_s in times) <= 1150
    assert sum(20 <= at_s < 30 for at_s in times) == 0
    assert 70 <= sum(30 <= at_s < 40 for at_s in times) <= 130


def test_arrivals_of_equal_generators_are_equal() -> None:
    steps = parse_steps("0:10")
    assert list(arrivals(steps, 9.0, random.Random(3))) == list(arrivals(steps, 9.0, random.Random(3)))


@pytest.mark.parametrize(
    "text",
    [
        "function,1\na,1000000000000000\n",
        "function,1\na,\u0661\n",
        "at_s,count\n0,1000000000000000\n",
        "at_s,count\n1e300,1\n",
        "at_s,function,duration_s\n1e300,a,1\n",
        "at_s,function,duration_s\n1,a,1e300\n",
        "function," + ",".join(map(str, range(200))) + "\n" + ("a" + ",9999999" * 200 + "\n"),
    ],
)
def test_oversized_trace_numbers_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(SettingsError):
        read_trace(path)


@pytest.mark.parametrize("text", ["0:1000000000000000", "1" + "0" * 300 + ":1", "0:1" + "0" * 400])
def test_oversized_rates_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_steps(text)
