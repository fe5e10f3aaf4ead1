import asyncio
import signal
import sys
from collections.abc import Iterable

import pytest

from serving.home.supervisor.heartbeats import HangWatch, ProcessVitals, read_vitals, read_wait_channel
from tests.eventually import until


def looks(samples: Iterable[tuple[str, int]], *, elapsed_s: float = 1.0, is_waiting: bool = False) -> tuple[int, str]:
    """The number of looks until a silent daemon hangs, and why; 0 if it does not.

    Each look is a state, and ticks used since the last.
    """
    watch, ticks = HangWatch(), 100
    watch.reset(ProcessVitals("S", ticks))
    for number, (state, used) in enumerate(samples, 1):
        ticks += used
        if why := watch.check(ProcessVitals(state, ticks), elapsed_s=elapsed_s, is_waiting=is_waiting):
            return number, why
    return 0, ""


@pytest.mark.parametrize(("state", "text"), [("S", "slept"), ("T", "was stopped")])
def test_a_daemon_that_does_nothing_for_five_seconds_hangs(state: str, text: str) -> None:
    assert looks([(state, 0)] * 100) == (5, f"no report for 5 s, while it {text}")


@pytest.mark.parametrize("state", ["R", "D", "Z"])
def test_a_daemon_that_is_being_killed_hangs_no_longer(state: str) -> None:
    watch = HangWatch()
    watch.reset(ProcessVitals("S", 100))
    whys = [watch.check(ProcessVitals(seen, 100), elapsed_s=1.0, is_waiting=False) for seen in ("S",) * 5 + (state,)]
    assert [bool(why) for why in whys] == [False] * 4 + [True, False]


@pytest.mark.parametrize("state", ["R", "D", "t"])
def test_a_daemon_that_waits_for_a_core_a_disk_or_a_debugger_does_not_hang(state: str) -> None:
    assert looks([(state, 0)] * 3600) == (0, "")


@pytest.mark.parametrize("state", ["R", "S", "D"])
def test_a_daemon_that_works_has_a_minute(state: str) -> None:
    assert looks([(state, 3)] * 100) == (60, "no report in 60 s of work")


def test_a_daemon_that_gets_a_core_now_and_then_is_not_idle() -> None:
    assert looks([("S", 0), ("R", 0), ("R", 1), ("S", 0)] * 2) == (0, "")


def test_a_wait_that_was_announced_is_work() -> None:
    assert looks([("S", 0)] * 59, is_waiting=True) == (0, "")


def test_a_time_in_which_the_machine_was_suspended_is_a_second() -> None:
    assert looks([("S", 0)] * 3, elapsed_s=3600.0) == (0, "")
    assert looks([("S", 0)] * 4, elapsed_s=3600.0)[0] == 4


def test_a_report_ends_the_silence() -> None:
    watch = HangWatch()
    for _ in range(10):
        watch.reset(ProcessVitals("S", 1))
        for _ in range(4):
            assert watch.check(ProcessVitals("S", 1), elapsed_s=1.0, is_waiting=False) == ""


def test_a_process_that_has_ended_does_not_hang() -> None:
    watch = HangWatch()
    watch.reset(None)
    assert [watch.check(None, elapsed_s=1.0, is_waiting=False) for _ in range(10)] == [""] * 10


async def test_the_kernel_distinguishes_a_stopped_process_from_a_working_one() -> None:
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
