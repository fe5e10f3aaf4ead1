"""Measure the lag of the event loop: work that blocks it shows here first."""

import asyncio
import time

from serving.metrics.names import COMMON_METRICS
from serving.metrics.page import MetricsPage

_PERIOD_S = 0.25


async def watch_lag(page: MetricsPage) -> None:
    """Measure until cancelled: ask to be woken after a quarter of a second, and see when that is."""
    lag = page.histogram("serving_loop_lag_seconds", COMMON_METRICS)
    while True:
        due_s = time.perf_counter() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        lag.observe(max(0.0, time.perf_counter() - due_s))
