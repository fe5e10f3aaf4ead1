"""Measures a tick of the dashboard, on the server and in the page, and its history.

    python bench/dashboard.py [--revisions N] [--pods N] [--ticks N] [--quick]

All revisions and nodes change with each tick, which is the worst case. Without
chromium and chromedriver only the server is measured.
"""

import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from bench.parts.program import options_of
from serving.core.model.grants import Grant, Role
from serving.core.settings.dashboard import DashboardSettings
from serving.tools.dashboard.board import COLUMNS, Board
from serving.tools.dashboard.cost import RevisionOwner
from serving.tools.dashboard.keeper import HistoryKeeper
from serving.tools.dashboard.server import Pages
from serving.tools.dashboard.viewers import PROXY_SECRET_HEADER, Viewers
from tests.integration.browser import Browser, browser

NODES = 50
PERIOD_S = 2.0
TICKS = 15
DICE = random.Random(1)
VIEWS = (
    (
        "revision",
        "#default/service-000-00001",
        "return document.querySelectorAll('.u-wrap canvas').length >= 2",
    ),
    ("overview", "", "return document.querySelectorAll('#rows tr').length > 0"),
    ("map", "#map", "return document.querySelectorAll('.box').length > 0"),
    ("cost", "#cost", "return document.querySelectorAll('.cost tbody tr').length > 0"),
)
# How many pages are open, and whether their user sees one namespace only.
OPEN_PAGES = ((0, False), (1, False), (10, False), (10, True))
HEADER, PROXY_SECRET = "X-Remote-User", "p" * 43
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask", buffered: true });
"""


def filled(revision_count: int, pod_count: int) -> Board:
    """A board with an hour of rows."""
    board = Board(1800)
    for number in range(revision_count):
        service, name = f"service-{number:03}", f"service-{number:03}-00001"
        traffic = [{"revision": name, "percent": 100, "tag": ""}]
        common = {"namespace": "default", "ready": "True", "conditions": [], "created": ""}
        board.put("service", f"default/{service}", {**common, "name": service, "url": "http://x", "traffic": traffic})
        shown = {**common, "name": name, "service": service, "state": "Active", "concurrency": 10, "scaling": {}}
        board.put("revision", f"default/{name}", shown)
        board.owners[f"default/{name}"] = RevisionOwner(f"default/{service}", 2**28)
    for number in range(pod_count):
        revision = f"service-{number % revision_count:03}-00001"
        name, node = f"{revision}-{number}", f"node-{number % NODES}"
        pod = {"namespace": "default", "name": name, "revision": revision, "ready": True, "ending": False}
        more = {"node": node, "phase": "Running", "reason": "", "restarts": 0, "created": "", "dormant": False}
        board.put("pod", f"default/{name}", pod | more)
        board.nodes.put_pod(("default", name), asking(revision, name, node))
    for number in range(NODES):
        result = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": {"cpu": "16", "memory": "64Gi"}}}
        board.nodes.put_node(f"node-{number}", result)
    for second in range(1800):
        change(board, revision_count, time.time() - 3600 + 2 * second)
    return board


def asking(revision: str, name: str, node: str) -> dict[str, Any]:
    """A Pod, as far as nodes go."""
    requests = {"cpu": "100m", "memory": "128Mi"}
    metadata = {"namespace": "default", "name": name, "labels": {"serving.knative.dev/revision": revision}}
    containers = [{"resources": {"requests": requests}}]
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": {"phase": "Running"}}


def measured(board: Board, at_s: float) -> None:
    """New measurements of all nodes."""
    board.nodes.measured(
        (
            {
                "metadata": {"name": f"node-{number}"},
                "timestamp": f"{at_s}",
                "usage": {"cpu": f"{DICE.randrange(16_000)}m", "memory": "9Gi"},
            }
            for number in range(NODES)
        ),
        at_s,
    )


def change(board: Board, revision_count: int, at_s: float) -> dict[str, list[float | None]]:
    """New numbers of all revisions, and their row."""
    sample(board, revision_count, at_s)
    return board.tick(at_s)


def sample(board: Board, revision_count: int, at_s: float) -> None:
    """New numbers of all revisions."""
    for number in range(revision_count):
        running = DICE.uniform(0, 100)
        name = {"namespace": "default", "revision": f"service-{number:03}-00001", "at_wall_s": at_s, "pods": {}}
        load = {"running": running, "held": DICE.uniform(0, 9), "target": 70.0, "observed_stable": running}
        board.sample(name | load | {"wanted_count": DICE.randrange(1, 12), "is_panic": DICE.random() < 0.1})


async def measure(revision_count: int, pod_count: int, tick_count: int) -> None:
    """Serve, tick, and look."""
    board = filled(revision_count, pod_count)

    async def no_policies(names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        del names
        return []

    ann = Grant(user="ann", role=Role.VIEW, namespaces=frozenset({"default"}))
    users = Viewers(header=HEADER, secret=PROXY_SECRET, users={"ann": ann})
    pages = Pages(board, DashboardSettings(), is_well=lambda: True, policies=no_policies, viewers=users)
    # A page that is open would hold the end up for a minute.
    runner = web.AppRunner(pages.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    for count, is_limited in OPEN_PAGES:
        await measure_ticks(pages, board, url, revision_count=revision_count, count=count, is_limited=is_limited)

    async def tick() -> None:
        while True:
            rows = change(board, revision_count, time.time())
            measured(board, time.time())
            pages.tick(time.time(), rows)
            await asyncio.sleep(PERIOD_S)

    ticking = asyncio.create_task(tick())
    if shutil.which("chromedriver"):
        with browser() as window:
            for name, at, drawn in VIEWS:
                await asyncio.to_thread(capture, window, f"{url}/{at}", tick_count, name=name, drawn=drawn)
    else:
        await asyncio.sleep(tick_count * PERIOD_S)
    ticking.cancel()
    await runner.cleanup()
    size = len(msgspec.json.encode(board.rows))
    print(f"{revision_count} revisions, {pod_count} pods: rows {size} bytes")


async def measure_ticks(
    pages: Pages, board: Board, url: str, *, revision_count: int, count: int, is_limited: bool
) -> None:
    """Print the CPU of this process for a tick of everything with open pages, their writing included."""
    headers = {HEADER: "ann", PROXY_SECRET_HEADER: PROXY_SECRET} if is_limited else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        streams = [await session.get(f"{url}/events?revision=default/service-000-00001") for _ in range(count)]
        spent_ms = []
        for _ in range(TICKS):
            sample(board, revision_count, time.time())
            # As if they were measured and moved all the time: all nodes are scored again with each tick.
            measured(board, time.time())
            began_s = time.thread_time()
            pages.tick(time.time(), board.tick(time.time()))
            await asyncio.sleep(0)
            spent_ms.append((time.thread_time() - began_s) * 1000)
            for stream in streams:
                while b"event: tick" not in await stream.content.readuntil(b"\n\n"):
                    pass
        for stream in streams:
            stream.close()
    tick_ms = statistics.median(spent_ms)
    who = "users of a namespace" if is_limited else "pages"
    print(f"{count} {who}: {tick_ms:.1f} ms of CPU a tick, {tick_ms / PERIOD_S / 1000:.2%} of a core")


def capture(window: Browser, url: str, tick_count: int, *, name: str, drawn: str) -> None:
    """Open the page, let it live, and print how busy its main thread was."""
    # A page that differs in its fragment alone is not loaded again.
    window.open("about:blank")
    window.open(url)
    window.run(WATCH)
    window.until(drawn)
    paint_ms = window.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    time.sleep(PERIOD_S)
    window.run("window.tasks.length = 0")
    before_s = window.busy_s()
    time.sleep(tick_count * PERIOD_S)
    busy_ms = (window.busy_s() - before_s) * 1000
    tasks_ms = sorted(window.run("return window.tasks"))
    longest = f"longest {tasks_ms[-1]:.0f} ms, {len(tasks_ms)} above 50 ms" if tasks_ms else "none above 50 ms"
    print(
        f"{name}: first paint {paint_ms:.0f} ms; main thread {busy_ms / tick_count:.0f} ms an update, tasks in {tick_count}: {longest}"
    )


async def measure_history(revision_count: int, hours: float) -> None:
    """Keep hours of rows of which every number differs, and read a range: CPU by the clock of this process."""
    names = [f"default/service-{number:03}-00001" for number in range(revision_count)]
    rows = [{name: [DICE.uniform(0, 100) for _ in COLUMNS] for name in names} for _ in range(5)]
    begun_s, count = 1_800_000_000.0, int(hours * 3600 / PERIOD_S)
    ended_s = begun_s + count * PERIOD_S
    with tempfile.TemporaryDirectory() as folder:
        keeper = HistoryKeeper(Path(folder) / "history.db", days=14, bytes_max=200 * 2**20)
        before_s = time.process_time()
        for tick in range(count):
            at_s = begun_s + tick * PERIOD_S
            keeper.record(at_s, rows[tick % len(rows)], ())
            if tick % 10 == 0:
                # Waits for what is written.
                await keeper.read("default/none", from_s=at_s - 1, to_s=at_s, now_s=at_s)
        await keeper.read("default/none", from_s=ended_s - 1, to_s=ended_s, now_s=ended_s)
        used = (time.process_time() - before_s) / (count * PERIOD_S)
        read_s = time.perf_counter()
        history_range = await keeper.read(names[0], from_s=begun_s, to_s=ended_s, now_s=ended_s)
        read_ms = (time.perf_counter() - read_s) * 1000
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20  # noqa: ASYNC240 - nothing waits
        await keeper.close(ended_s)
    row_count = 0 if history_range is None else len(history_range.columns["at_s"])
    print(
        f"history of {revision_count} revisions for {hours:g} h: {used:.2%} of a core, {size:.0f} MiB; "
        f"{row_count} rows read in {read_ms:.0f} ms"
    )


def main() -> None:
    """Measure with the options of the command line."""
    quick = {"revisions": 5, "pods": 10, "ticks": 1}
    options = options_of(__doc__, revisions=500, pods=5000, ticks=12, quick=quick)
    asyncio.run(measure_history(options.revisions, 0.1 if options.revisions == quick["revisions"] else 2))
    asyncio.run(measure(options.revisions, options.pods, options.ticks))


if __name__ == "__main__":
    main()
