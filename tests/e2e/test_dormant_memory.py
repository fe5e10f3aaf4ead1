"""Low memory on one machine: dormant pods are removed, the idlest first, and no request fails.

The autoscaler reads a meminfo file of this test instead of /proc/meminfo.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.dormant import until_dormant
from bench.parts.system import System, running_system
from tests.e2e.test_dormant_faults import request_statuses
from tests.eventually import until
from tests.integration.local_stage import HELLO

# Of 1000 MiB; memory is low below 5 %. A pod counts as 200 MiB, so one pod is removed at a time.
FREE_MIB, SHORT_MIB = 900, 40
DORMANT = ("first", "second", "third")
BUSY = "busy"
# Time for two reports of a pod, each of which may be 2 s late on a busy machine.
REPORTS_S = 6.0
SHORT = "the machine's memory is short: 40 MiB of 1000 are available, less than memory.available-min 5 %; {name}-00001-"

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def write_memory(folder: Path, available_mib: int) -> None:
    """Write the available memory atomically."""
    path = folder / "meminfo.new"
    path.write_text(f"MemTotal: {1000 * 1024} kB\nMemAvailable: {available_mib * 1024} kB\n")
    path.replace(folder / "meminfo")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write_memory(tmp_path, FREE_MIB)
    return tmp_path


@pytest.fixture
def system(proc: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Three services whose pods become dormant after 0.5 s, kept for different reasons, and a running service."""
    with running_system(environment={"SERVING_AUTOSCALER_MEMORY_PROC_FOLDER": str(proc)}) as new_system:
        folder, command = str(tmp_path_factory.mktemp("app")), ("--command", f"{sys.executable} {HELLO}")
        stays = ("--annotate", "autoscaling.knative.dev/scale-to-zero-pod-retention-period=1h")
        only = ("--annotate", "serving.dev/dormant=only,after=500ms")
        sleeps = ("--annotate", "serving.dev/dormant=after=500ms")
        new_system.serving("deploy", "first", folder, *command, *only)
        new_system.serving(
            "deploy", "second", folder, *command, *sleeps, "--annotate", "autoscaling.knative.dev/min-scale=1"
        )
        new_system.serving("deploy", "third", folder, *command, *sleeps, *stays)
        new_system.serving("deploy", BUSY, folder, *command, *stays)
        yield new_system


def pod_count(system: System) -> int:
    return sum(len(system.pods(name)) for name in DORMANT)


def last_sentence(system: System, name: str) -> str:
    return str(json.loads(system.serving("why", name, "-o", "json").splitlines()[-1])["sentence"])


def chosen_s(system: System, name: str) -> float:
    """The time of the first decision that removes the pod of a service."""
    lines = [json.loads(line) for line in system.serving("why", name, "-o", "json").splitlines()]
    times_s = [line["told"]["since_wall_s"] for line in lines if SHORT.format(name=name) in line["sentence"]]
    assert times_s, lines
    return float(times_s[0])


async def test_idlest_dormant_pods_are_removed_first_on_low_memory(system: System, proc: Path) -> None:
    # A pod can report that it is dormant only after it has connected to the autoscaler.
    await until(lambda: all("no data" not in last_sentence(system, name) for name in DORMANT), within_s=120)
    for name in (BUSY, *DORMANT):
        assert await request_statuses(system, name, 1) == {"HTTP/1.1 200 OK": 1}
        if name in DORMANT:
            await asyncio.to_thread(until_dormant, system, name, 1)
            await asyncio.sleep(REPORTS_S)
    write_memory(proc, SHORT_MIB)
    await until(lambda: pod_count(system) == 0, within_s=120)
    assert len(system.pods(BUSY)) == 1
    times_s = [chosen_s(system, name) for name in DORMANT]
    assert times_s == sorted(times_s)
    # One pod frees enough memory, so the next removal waits for its effect.
    assert min(later_s - earlier_s for earlier_s, later_s in itertools.pairwise(times_s)) > 1.0
    message = SHORT.format(name="first")
    why = system.serving("why", "first").splitlines()
    assert any("1 → 0: " in line and message in line and ", dormant, was last used " in line for line in why), why
    events = system.send_request("/api/v1/namespaces/default/events")["items"]
    assert any(message in event["message"] and event["involvedObject"]["name"] == "first-00001" for event in events), (
        events
    )
    # Requests start new pods, which become dormant and are removed again in between.
    for _ in range(5):
        for name in (*DORMANT, BUSY):
            assert await request_statuses(system, name, 20) == {"HTTP/1.1 200 OK": 20}
    await until(lambda: pod_count(system) == 0, within_s=120)
    assert "Traceback" not in (system.state / "logs" / "autoscaler.log").read_text()
