import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.net.aio import clock
from serving.net.aio.clock import now_s, stamp, steady_s, unqueued_s, wall_s
from tests.virtual_time import run_virtually

# CPU time of the measured thread, in seconds.
WORK_S = 0.3


def test_stamp_has_kubernetes_api_format() -> None:
    assert stamp(0.9) == "1970-01-01T00:00:00Z"
    assert stamp(1_795_231_800) == "2026-11-21T03:30:00Z"


def test_stamp_and_wall_clock_use_current_time() -> None:
    assert stamp() >= "2026"
    assert wall_s() > 1_700_000_000


def test_now_s_is_the_time_of_the_loop() -> None:
    async def run() -> float:
        return now_s()

    assert run_virtually(run()) == 0.0


def test_unqueued_time_excludes_run_queue_wait() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    # Two other processes share the core, so that the thread waits about two thirds of the time.
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        steady, unqueued, cpu = steady_s(), unqueued_s(), time.thread_time()
        while time.thread_time() < cpu + WORK_S:
            pass
        assert WORK_S * 0.9 <= unqueued_s() - unqueued < (steady_s() - steady) * 0.9
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()


def test_unqueued_time_without_schedstat_is_steady_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clock, "_SCHEDSTAT", tmp_path / "none")
    assert steady_s() <= unqueued_s() <= steady_s()


def test_run_queue_wait_between_clock_readings_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_ns = iter((0, 5_000_000_000, 5_000_000_000))
    times_s = iter((100.0, 105.0))
    monkeypatch.setattr(clock, "_waited_ns", lambda: next(waits_ns))
    monkeypatch.setattr(clock, "steady_s", lambda: next(times_s))
    assert unqueued_s() == 100.0
