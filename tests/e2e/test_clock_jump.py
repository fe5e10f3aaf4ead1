"""The wall clock of all daemons jumps by an hour while pods run, sleep and end; no request fails.

libfaketime changes the wall clock but not monotonic clocks, as settimeofday(2) does. After each jump a revision wakes
and returns to zero twice, which takes a minute and a half.
"""

import asyncio
import collections
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.dormant import until_dormant
from bench.parts.system import System, running_system
from serving.home.containers.engine import RUNTIME_VARIABLE
from tests.e2e.test_dormant_faults import request_statuses, uids
from tests.eventually import until
from tests.integration.local_stage import HELLO

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
JUMPS_S = ("+3600", "-3600", "+0")
RUNS, SLEEPS, ENDS = "runs", "sleeps", "ends"
SERVICES = {
    RUNS: {"autoscaling.knative.dev/min-scale": "1"},
    SLEEPS: {"autoscaling.knative.dev/min-scale": "1", "serving.dev/dormant": "after=500ms"},
    ENDS: {"autoscaling.knative.dev/window": "6s", "serving.dev/dormant": "after=500ms"},
}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None, reason="needs Debian's faketime"),
]


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """The file with the offset of the wall clock, in seconds."""
    file = tmp_path / "offset"
    file.write_text("+0\n")
    return file


@pytest.fixture
def system(clock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    environment = {
        # Container runtimes do not start with the library.
        RUNTIME_VARIABLE: "none",
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    folder = str(tmp_path_factory.mktemp("app"))
    with running_system(environment=environment) as new_system:
        for name, annotations in SERVICES.items():
            flags = [flag for key, text in annotations.items() for flag in ("--annotate", f"{key}={text}")]
            new_system.serving("deploy", name, folder, "--command", f"{sys.executable} {HELLO}", *flags)
        yield new_system


def set_clock(clock: Path, offset_s: str) -> None:
    path = clock.with_suffix(".new")
    path.write_text(f"{offset_s}\n")
    path.replace(clock)


async def test_wall_clock_jumps_fail_no_request_and_replace_no_pod(system: System, clock: Path) -> None:
    statuses: collections.Counter[str] = collections.Counter()

    async def ask(*services: str) -> None:
        for name in services:
            statuses.update(await request_statuses(system, name, 5))

    await ask(*SERVICES)
    await asyncio.to_thread(until_dormant, system, SLEEPS, 1)
    before = {name: uids(system, name) for name in (RUNS, SLEEPS)}
    for offset_s in JUMPS_S:
        # The last pod of ENDS sleeps, or soon will.
        await asyncio.to_thread(until_dormant, system, SLEEPS, 1)
        set_clock(clock, offset_s)
        # SLEEPS receives requests after the jump; ENDS scales to zero without requests.
        await ask(RUNS, SLEEPS)
        await until(lambda: not system.pods(ENDS), within_s=120)
        await ask(*SERVICES)
        await asyncio.to_thread(until_dormant, system, SLEEPS, 1)
        await until(lambda: not system.pods(ENDS), within_s=120)
        await ask(*SERVICES)
    assert set(statuses) == {"HTTP/1.1 200 OK"}
    assert {name: uids(system, name) for name in before} == before
