"""The short form of ``make faults``: faults of docs/faults.md under light load.

All faults happen in one system, so a lasting effect of a fault affects the next. A fault has passed when requests sent
after it have responses; no step waits for a fixed time.
"""

import asyncio
import collections

import pytest

from bench.parts.fault_stage import FaultStage, stage
from bench.parts.faultlist import FAULTS
from tests.eventually import until

RATE, PODS = 20.0, 2
# Responses to await after each fault.
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
    """Wait for ``count`` responses to requests sent from now on."""
    begin_s = asyncio.get_running_loop().time()
    await until(lambda: len(fault_stage.load.since(begin_s)) >= count)


@pytest.mark.timeout(300)
async def test_faults_fail_at_most_the_allowed_requests() -> None:
    async with stage(rate=RATE, pods=PODS, is_whole=False) as fault_stage:
        await has_responses(fault_stage, RESPONSES_MIN)
        allowed = 0
        for name in SHORT:
            # The load counts failures from its start, so allowed failures add up.
            allowed += FAULTS[name].failed_max
            await FAULTS[name].happen(fault_stage, 0.0)
            await has_responses(fault_stage, RESPONSES_MIN)
            statuses = collections.Counter(observed.status for observed in fault_stage.load.observed)
            failed = statuses.total() - statuses["200"]
            assert failed <= allowed, f"{name}: {statuses}"
        await until(lambda: fault_stage.load.open == {"websocket": int(RATE / 5), "events": int(RATE / 20)})
