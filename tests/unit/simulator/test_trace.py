"""Recorded workloads: three formats, two compressions, and rows that are wrong."""

import gzip
import lzma
from pathlib import Path

import pytest

from serving.model.errors import SettingsError
from serving.simulator.trace import ArrivalPlacement, TraceWindow, read_trace

PER_MINUTE = "function,1,2,3\na,2,0,1\nb,0,0,0\n"


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    data = text.encode()
    path.write_bytes(
        gzip.compress(data) if name.endswith(".gz") else lzma.compress(data) if name.endswith(".xz") else data
    )
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.xz"])
def test_counts_a_minute_are_placed_in_their_minutes(tmp_path: Path, name: str) -> None:
    (first, second), length_s = read_trace(written(tmp_path, PER_MINUTE, name))
    assert length_s == 180.0
    assert [int(at // 60) for at in first.arrivals_s] == [0, 0, 2]
    assert list(first.arrivals_s) == sorted(first.arrivals_s)
    assert len(second.arrivals_s) == 0


def test_a_phase_is_the_same_in_each_minute(tmp_path: Path) -> None:
    text = "function,1,2,3\na,1,1,1\n"
    ((trace,), _) = read_trace(written(tmp_path, text), placement=ArrivalPlacement.PHASE)
    first, second, third = trace.arrivals_s
    assert [second - first, third - second] == pytest.approx([60.0, 60.0])


def test_requests_bring_their_times_and_durations(tmp_path: Path) -> None:
    text = "at_s,function,duration_s\n1,a,2.5\n0.5,a,\n3,b,1\n"
    (first, second), length_s = read_trace(written(tmp_path, text))
    assert (list(first.arrivals_s), list(second.arrivals_s), length_s) == ([0.5, 1.0], [3.0], 3.0)
    assert first.durations_s is not None
    assert first.durations_s[1] == 2.5


def test_a_rate_is_spread_over_its_interval(tmp_path: Path) -> None:
    ((trace,), length_s) = read_trace(written(tmp_path, "at_s,count\n0,2\n10,1\n"))
    assert length_s == 20.0
    assert [int(at // 10) for at in trace.arrivals_s] == [0, 0, 1]


def test_a_part_of_a_trace_begins_at_0(tmp_path: Path) -> None:
    text = "at_s,function,duration_s\n1,a,1\n5,a,1\n9,a,1\n"
    ((trace,), length_s) = read_trace(written(tmp_path, text), window=TraceWindow(from_s=4.0, until_s=8.0))
    assert (list(trace.arrivals_s), length_s) == ([1.0], 4.0)


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("function,1,2\na,1\n", "t.csv:2", "a name and 2 counts"),
        ("function,1\na,one\n", "t.csv:2", "a whole number of requests"),
        ("at_s,function,duration_s\n1,a,2\nx,a,2\n", "t.csv:3", "seconds, a function, and seconds or nothing"),
        ("at_s,count\n10,1\n10,1\n", "t.csv:3", "seconds in rising order"),
        ("hello\n", "t.csv:1", "at_s,count"),
        ("", "t.csv:1", "at_s,count"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, text: str, where: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_trace(written(tmp_path, text))
    (problem,) = caught.value.problems
    assert problem.where.endswith(where)
    assert expected in problem.expected


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "b.csv.gz"
    broken.write_bytes(b"no gzip")
    for path in (tmp_path / "none.csv", broken):
        with pytest.raises(SettingsError, match=path.name):
            read_trace(path)
