"""The memory of ten open tabs and of the dashboard's daemon over time.

``SERVING_TEST_TABS_S`` is the time for which the tabs stay open; the default is an hour.
"""

import asyncio
import os
from pathlib import Path

import pytest

from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import staged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5000)]

_OPEN_S = float(os.environ.get("SERVING_TEST_TABS_S", "3600"))
_TABS = 10
_VIEWS = ("", "#map", "#cost", "#default/hello-00001")
# A page draws and fills its caches before the first measurement.
_SETTLE_S = 20.0
_PAGE_GROWTH_MAX, _DAEMON_GROWTH_MAX = 4 * 2**20, 24 * 2**20


async def test_memory_of_ten_open_tabs_and_of_daemon_does_not_grow() -> None:
    async with staged() as stage:
        with browser() as window:
            await asyncio.to_thread(_open_tabs, window, stage.url)
            await asyncio.sleep(_SETTLE_S)
            pages, daemon = await asyncio.to_thread(_heaps, window), _resident()
            await asyncio.sleep(_OPEN_S)
            pages_after, daemon_after = await asyncio.to_thread(_heaps, window), _resident()
    assert len(pages) == _TABS
    growths = [after - before for before, after in zip(pages, pages_after, strict=True)]
    assert max(growths) < _PAGE_GROWTH_MAX, growths
    assert daemon_after - daemon < _DAEMON_GROWTH_MAX


def _open_tabs(window: Browser, url: str) -> None:
    window.open(f"{url}/")
    for number in range(1, _TABS):
        window.open_beside(f"{url}/{_VIEWS[number % len(_VIEWS)]}")


def _heaps(window: Browser) -> list[int]:
    """The heap size of each page after a garbage collection."""
    sizes = []
    for handle in window.handles():
        window.switch_to(handle)
        sizes.append(window.heap_size())
    return sizes


def _resident() -> int:
    """The resident bytes of this process, in which the dashboard runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
