"""Thousands of frames through sessions: no exception, and no leftover state (``make fuzz-http2`` runs ten million)."""

import pytest

from tests.fuzz.http2 import GROWTH_MAX, fuzz


async def test_thousands_of_frames_leave_nothing() -> None:
    entry = await fuzz(10_000, seed=1)
    assert entry["requests"] > 500


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_more_frames_take_no_more_memory() -> None:
    entry = await fuzz(500_000, seed=2)
    assert entry["end_mib"] <= entry["warm_mib"] * GROWTH_MAX
