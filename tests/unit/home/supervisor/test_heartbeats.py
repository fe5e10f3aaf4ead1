import asyncio
import signal
import sys
from collections.abc import Iterable

import pytest

from serving.home.supervisor.heartbeats import HangWatch, ProcessVitals, read_vitals, read_wait_channel
from tests.eventually import until


def checks_until_hang(
    samples: Iterable[tuple[str, int]], *, elapsed_s: float = 1.0, is_waiting: bool = False
) -> tuple[int, str]:
    """The number of checks until a silent daemon hangs, and the reason; 0 if it does not hang.

    A sample is the process state, and the CPU ticks used since the previous sample.
    """
    watch, ticks = HangWatch(), 100
    watch.reset(ProcessVitals("S", ticks))
    for number, (state, used) in enumerate(samples, 1):
        ticks += used
        if why := watch.check(ProcessVitals(state, ticks), elapsed_s=elapsed_s, is_waiting=is_waiting):
            return number, why
    return 0, ""


@pytest.mark.parametrize(("state", "text"), [("S", "slept"), ("T", "was stopped")])
def test_idle_daemon_hangs_after_five_seconds(state: str, text: str) -> None:
    assert checks_until_hang([(state, 0)] * 100) == (5, f"no report for 5 s, while it {text}")


@pytest.mark.parametrize("state", ["R", "D", "Z"])
def test_daemon_being_killed_does_not_hang(state: str) -> None:
    watch = HangWatch()
    watch.reset(ProcessVitals("S", 100))
    whys = [watch.check(ProcessVitals(seen, 100), elapsed_s=1.0, is_waiting=False) for seen in ("S",) * 5 + (state,)]
    assert [bool(why) for why in whys] == [False] * 4 + [True, False]


@pytest.mark.parametrize("state", ["R", "D", "t"])
def test_daemon_waiting_for_core_disk_or_debugger_does_not_hang(state: str) -> None:
    assert checks_until_hang([(state, 0)] * 3600) == (0, "")


@pytest.mark.parametrize("state", ["R", "S", "D"])
def test_working_daemon_hangs_after_a_minute_without_report(state: str) -> None:
    assert checks_until_hang([(state, 3)] * 100) == (60, "no report in 60 s of work")


def test_daemon_that_runs_occasionally_is_not_idle() -> None:
    assert checks_until_hang([("S", 0), ("R", 0), ("R", 1), ("S", 0)] * 2) == (0, "")


def test_announced_wait_is_not_idleness() -> None:
    assert checks_until_hang([("S", 0)] * 59, is_waiting=True) == (0, "")


def test_suspended_time_counts_as_a_second() -> None:
    assert checks_until_hang([("S", 0)] * 3, elapsed_s=3600.0) == (0, "")
    assert checks_until_hang([("S", 0)] * 4, elapsed_s=3600.0)[0] == 4


def test_report_resets_the_hang_watch() -> None:
    watch = HangWatch()
    for _ in range(10):
        watch.reset(ProcessVitals("S", 1))
        for _ in range(4):
            assert watch.check(ProcessVitals("S", 1), elapsed_s=1.0, is_waiting=False) == ""


def test_ended_process_does_not_hang() -> None:
    watch = HangWatch()
    watch.reset(None)
    assert [watch.check(None, elapsed_s=1.0, is_waiting=False) for _ in range(10)] == [""] * 10


async def test_vitals_distinguish_stopped_and_working_processes() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "while True: pass")
    try:
        assert await until(lambda: (vitals := read_vitals(process.pid)) and vitals.cpu_ticks > 0)
        process.send_signal(signal.SIGSTOP)
        vitals = await until(lambda: (results := read_vitals(process.pid)) and results.state == "T" and results)
        assert read_vitals(process.pid) == vitals
        assert read_wait_channel(process.pid) in ("", " in do_signal_stop")
    finally:
        process.kill()
        await process.wait()
    assert read_vitals(process.pid) is None
    assert read_wait_channel(process.pid) == ""
