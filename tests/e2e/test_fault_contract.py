"""The short form of ``make faults``: faults of docs/faults.md under light load, none of which fails a request.

One system has them all, one after the other, so a fault that leaves something behind harms the next. A fault has passed
when requests that were sent after it are answered; nothing here waits for a length of time.
"""

import asyncio
import collections

import pytest

from bench.parts.fault_stage import FaultStage, stage
from bench.parts.faultlist import FAULTS
from tests.eventually import until

RATE, PODS = 20.0, 2
# Requests that are sent and answered while and after a fault.
RESPONSES_MIN = 5
SHORT = (
    "app killed -9",
    "app exits",
    "scale-down under load",
    "autoscaler killed -9",
    "template killed -9",
    "control killed -9 (API, store)",
    "one activator killed -9",
    "serving up --reload",
)


async def has_responses(fault_stage: FaultStage, count: int) -> None:
    """Wait for so many responses to requests sent from now on."""
    begin_s = asyncio.get_running_loop().time()
    await until(lambda: len(fault_stage.load.since(begin_s)) >= count)


@pytest.mark.timeout(300)
async def test_no_request_fails_when_parts_are_killed() -> None:
    async with stage(rate=RATE, pods=PODS, is_whole=False) as fault_stage:
        await has_responses(fault_stage, RESPONSES_MIN)
        allowed = 0
        for name in SHORT:
            # The load counts from its start: what an earlier fault may fail stays counted.
            allowed += FAULTS[name].failed_max
            await FAULTS[name].happen(fault_stage, 0.0)
            await has_responses(fault_stage, RESPONSES_MIN)
            statuses = collections.Counter(observed.status for observed in fault_stage.load.observed)
            failed = statuses.total() - statuses["200"]
            assert failed <= allowed, f"{name}: {statuses}"
        await until(lambda: fault_stage.load.open == {"websocket": int(RATE / 5), "events": int(RATE / 20)})
