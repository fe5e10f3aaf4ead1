"""The short form of ``make faults``, for ``make test-all``: a few faults of docs/faults.md under light load, none of which fails a request."""

import asyncio
import collections

import pytest

from bench.faults import BEFORE_S, FAULTS, stage
from tests.eventually import until

RATE = 20.0
AFTER_S = 1.0
SHORT = ("app killed -9", "template killed -9", "autoscaler killed -9", "control killed -9 (API, store)")


@pytest.mark.slow
async def test_no_request_fails_when_parts_are_killed() -> None:
    async with stage(rate=RATE) as made:
        await asyncio.sleep(BEFORE_S / 2)
        for name in SHORT:
            await FAULTS[name][0](made, AFTER_S)
            await asyncio.sleep(AFTER_S)
            statuses = collections.Counter(one.status for one in made.load.observed)
            assert set(statuses) == {"200"}, f"{name}: {statuses}"
        await until(lambda: made.load.open == {"websocket": int(RATE / 5), "events": int(RATE / 20)})
