"""The cost of services, over HTTP and with ``serving cost``."""

import asyncio
import contextlib
import datetime as dt
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner, Result

from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import wall_s
from serving.tools.cli.main import main
from serving.tools.dashboard.archive import Archive, history_steps
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.cost import RevisionOwner
from tests.eventually import until
from tests.integration.api_server import served
from tests.integration.dashboard_stage import LONG_AGO, DashboardStage, staged

OWNERS = {
    # This revision is deleted, but its rows remain in the history.
    "default/hello-00001": RevisionOwner("default/hello", 2**30),
    "default/hello-00002": RevisionOwner("default/hello", 2**29),
    "shop/cart-00001": RevisionOwner("shop/cart", 2**28),
}
PODS = {"default/hello-00001": 2.0, "default/hello-00002": 0.0, "shop/cart-00001": 1.0}
HOURS = 3
STORY = {
    "namespace": "default",
    "revision": "hello-00001",
    "policy": "adaptive",
    "costs": {"adaptive_pod_seconds": 100.0, "knative_pod_seconds": 250.0},
}


def fill(path: Path) -> None:
    """Write three hours of history until now; hello has pods in the first two."""
    now_s = wall_s()
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    begin_s = int(now_s - HOURS * 3600) // 600 * 600
    for at_s in range(begin_s, int(now_s) - 9, 5):
        is_early = at_s < begin_s + 2 * 3600
        rows = {
            key: [count if name == "ready" and (is_early or key.startswith("shop")) else 0.0 for name in COLUMNS]
            for key, count in PODS.items()
        }
        archive.put(at_s, rows, (), owners=OWNERS)
        if at_s % 600 == 0:
            archive.roll(at_s)
    archive.close()


@contextlib.asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[DashboardStage]:
    await asyncio.to_thread(fill, folder / "history.db")
    async with staged(history_file=str(folder / "history.db"), created=LONG_AGO) as stage:
        stage.policies = [STORY]
        yield stage


async def read(stage: DashboardStage, path: str, **arguments: object) -> tuple[int, Any]:
    query = {name.rstrip("_"): str(value) for name, value in arguments.items()}
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/{path}", params=query) as response:
        return response.status, await response.json() if response.status == 200 else await response.text()


def moment(at_s: float) -> str:
    return dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat()


async def test_cost_page_and_command_report_the_same_numbers(tmp_path: Path) -> None:
    now_s = int(wall_s())
    range_arguments = {"from_": now_s - 6 * 3600, "to": now_s - 60}
    async with served(MemoryCluster(admit=admit), tmp_path) as api, filled(tmp_path) as stage:

        async def estimated() -> Any:  # noqa: ANN401 - JSON
            (entry, _) = (await read(stage, "cost", **range_arguments))[1]["services"]
            return entry if entry["knative_pod_hours"] is not None else None

        await until(estimated)
        histories = [
            (await read(stage, "history", revision=key, **range_arguments))[1]["ready"]
            for key in OWNERS
            if "hello" in key
        ]
        typed = ["cost", "--dashboard", stage.url, "--kubeconfig", str(api.kubeconfig), "-o", "json"]
        typed += [f"--from={moment(now_s - 6 * 3600)}", f"--to={moment(now_s - 60)}"]

        async def compared() -> tuple[Any, Result] | None:
            # Repeat if the dashboard has summed a step of its history between two reads.
            before = await estimated()
            result = await asyncio.to_thread(CliRunner().invoke, main, typed)
            return (before, result) if await estimated() == before else None

        hello, result = await until(compared)
        other_namespace = await asyncio.to_thread(CliRunner().invoke, main, [*typed, "-n", "shop"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [hello]
    assert [entry["service"] for entry in json.loads(other_namespace.stdout)] == ["cart"]
    assert "history of" in result.stderr
    assert "of these 5.98 hours; the rest is not counted" in result.stderr
    # A step of ten minutes can cross an end of the range.
    step_h = 1 / 6
    assert math.isclose(hello["pod_hours"], 2 * 2, abs_tol=2 * step_h)
    assert hello["gib_hours"] == hello["pod_hours"]
    assert math.isclose(hello["knative_pod_hours"], 2.5 * hello["pod_hours"])
    assert math.isclose(hello["always_on_pod_hours"] - hello["pod_hours"], HOURS - 2, abs_tol=2 * step_h)
    assert math.isclose(hello["known_hours"], HOURS, abs_tol=2 * step_h)
    assert max(max(history) for history in histories) == 2.0


async def test_cost_covers_only_the_requested_range(tmp_path: Path) -> None:
    async with filled(tmp_path) as stage:
        now_s = int(wall_s())
        status, body = await read(stage, "cost", from_=now_s - 1800, to=now_s - 900)
        assert (status, body["to_s"] - body["from_s"]) == (200, 900)
        cart = next(service for service in body["services"] if service["service"] == "cart")
        assert math.isclose(cart["pod_hours"], 0.25, abs_tol=10 / 3600)
        assert math.isclose(cart["known_hours"], 0.25, abs_tol=10 / 3600)
        status, text = await read(stage, "cost", from_="yesterday")
        assert (status, text.startswith("from=yesterday and to=None are no range")) == (400, True)


async def test_cost_without_history_file_covers_the_last_hour() -> None:
    async with staged() as stage:

        async def known() -> Any:  # noqa: ANN401 - JSON
            _, entry = await read(stage, "cost")
            return [service for service in entry["services"] if service["known_hours"] > 0]

        (hello,) = await until(known)
    assert (hello["service"], hello["pod_hours"], hello["price"]) == ("hello", 0.0, None)
    assert math.isclose(hello["always_on_pod_hours"], hello["known_hours"])


async def test_unreadable_history_returns_503_for_cost(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with staged(history_file=str(tmp_path / "file" / "history.db")) as stage:
        assert await read(stage, "cost") == (503, "the history cannot be read; the dashboard's log says why\n")
