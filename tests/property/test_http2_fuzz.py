"""Thousands of frames through sessions: no exception, and no leftover state (``make fuzz-http2`` runs ten million)."""

import pytest

from tests.fuzz.http2 import GROWTH_MAX, fuzz


async def test_ten_thousand_fuzzed_http2_frames_are_handled() -> None:
    entry = await fuzz(10_000, seed=1)
    assert entry["requests"] > 500


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_memory_is_bounded_over_500_000_http2_frames() -> None:
    entry = await fuzz(500_000, seed=2)
    assert entry["end_mib"] <= entry["warm_mib"] * GROWTH_MAX
