import os
from pathlib import Path

import pytest

from serving.home.pods.podfolder import previous_of, rotate, rotate_previous, rotated_of, times_of
from serving.home.pods.podlogs import (
    DeletedPodLogs,
    GoneLogLimits,
    LogTimes,
    read_index,
    surplus,
    tidy_logs,
    timed_lines,
)

LIMITS = GoneLogLimits(retention_s=100, bytes_max=1000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "default" / "hello-1" / "app.log"
    path.parent.mkdir(parents=True)
    return path


def write(log: Path, text: str, times: LogTimes, *, wall_s: float) -> None:
    with log.open("a") as file:
        file.write(text)
    times.record([log.parent], wall_s=wall_s)


def lines(log: Path, since_s: float = 0.0) -> list[tuple[float, str]]:
    return [(at_s, line.decode()) for at_s, _, line in timed_lines(log, since_s)]


def test_line_has_the_first_recorded_time_after_it(log: Path) -> None:
    times = LogTimes()
    write(log, "one\ntwo\nthr", times, wall_s=10)
    times.record([log.parent], wall_s=11)
    write(log, "ee\n", times, wall_s=12)
    assert times_of(log).read_text() == "11 10.00\n14 12.00\n"
    assert lines(log) == [(10, "one\n"), (10, "two\n"), (12, "three\n")]
    # The record of time 10 is within the line.
    assert lines(log, 11) == [(12, "three\n")]
    assert lines(log, 13) == []


def test_lines_without_recorded_time_have_file_mtime(log: Path) -> None:
    log.write_text("one\n")
    os.utime(log, (50, 50))
    assert lines(log) == [(50, "one\n")]


def test_last_lines_of_ended_pod_are_recorded_once(log: Path) -> None:
    times = LogTimes()
    write(log, "one\n", times, wall_s=1)
    log.write_text("one\nlast\n")
    times.record([], wall_s=2)
    log.write_text("one\nlast\nlater\n")
    times.record([], wall_s=3)
    assert times_of(log).read_text() == "4 1.00\n9 2.00\n"


def test_truncated_log_restarts_its_times(log: Path) -> None:
    times = LogTimes()
    write(log, "a long line\n", times, wall_s=1)
    os.truncate(log, 0)
    times.record([log.parent], wall_s=2)
    write(log, "new\n", times, wall_s=3)
    assert lines(log) == [(3, "new\n")]


def test_times_are_rotated_with_their_log(log: Path) -> None:
    times = LogTimes()
    write(log, "one\n", times, wall_s=1)
    assert rotate(log, bytes_max=1)
    write(log, "second\n", times, wall_s=2)
    assert rotate(log, bytes_max=1)
    write(log, "three\n", times, wall_s=3)
    rotate_previous(log)
    assert [lines(path) for path in rotated_of(log)] == [[(1, "one\n")], [(2, "second\n")]]
    assert lines(previous_of(log)) == [(3, "three\n")]


def test_invalid_time_records_and_backward_clock_are_tolerated(log: Path) -> None:
    log.write_text("one\ntwo\n")
    times_of(log).write_text("4 20.00\nx\n8 \n8 10.00\n")
    assert lines(log) == [(20, "one\n"), (20, "two\n")]
    assert read_index(log).start(20) == 0


def test_unwritable_times_file_does_not_affect_log(log: Path) -> None:
    times_of(log).mkdir(parents=True)
    write(log, "one\n", LogTimes(), wall_s=1)
    assert log.read_text() == "one\n"
    LogTimes().record([log.parent / "gone"], wall_s=1)


def test_expired_and_oversized_deleted_pod_logs_are_surplus(tmp_path: Path) -> None:
    results = [DeletedPodLogs(tmp_path / str(at_s), at_s, 400) for at_s in (300, 250, 240, 150)]
    assert surplus(results, LIMITS, wall_s=300) == results[2:]
    assert surplus(results[:2], LIMITS, wall_s=300) == []
    assert surplus(results[:1], GoneLogLimits(retention_s=0, bytes_max=0), wall_s=300) == results[:1]
    many = [DeletedPodLogs(tmp_path / str(number), 299, 0) for number in range(1001)]
    assert len(surplus(many, LIMITS, wall_s=300)) == 1


def test_logs_of_existing_pods_are_not_removed(log: Path) -> None:
    log.write_text("one\n")
    gone = log.parents[1] / "gone"
    for name in ("gone", "empty"):
        (log.parents[1] / name).mkdir()
    (gone / "app.log").write_text("two\n")
    for path in (log, gone / "app.log", log.parents[1] / "empty"):
        os.utime(path, (50, 50))
    tidy_logs(log.parents[2], {log.parent}, GoneLogLimits(retention_s=100, bytes_max=10**6), wall_s=60)
    assert gone.exists()
    tidy_logs(log.parents[2], {log.parent}, GoneLogLimits(retention_s=5, bytes_max=10**6), wall_s=60)
    assert [folder.name for folder in log.parents[1].iterdir()] == ["hello-1"]
