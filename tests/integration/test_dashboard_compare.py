"""Two revisions side by side, by HTTP and in a browser."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serving.aio.clock import wall_s
from serving.cluster.kinds import REVISION
from serving.dashboard.archive import Archive, history_steps
from serving.dashboard.board import COLUMNS
from tests.integration.dashboard_stage import API, DashboardStage, staged

OLD, NEW = "hello-00001", "hello-00002"
RATE = 10.0


def fill(path: Path, *, minutes: int = 20) -> None:
    """A history until now: the new revision is slower, and fails 10 %."""
    now_s = wall_s()
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    for at_s in range(int(now_s - 60 * minutes) // 5 * 5, int(now_s) - 9, 5):
        rows = {f"default/{OLD}": row(0.02, errors=0.0, pods=1), f"default/{NEW}": row(0.2, errors=0.1, pods=2)}
        archive.put(at_s, rows, ())
    archive.roll(now_s)
    archive.close()


def row(median_s: float, *, errors: float, pods: float) -> list[float | None]:
    values = {"rps_2xx": RATE * (1 - errors), "rps_5xx": RATE * errors, "ready": pods}
    values |= {"p50_s": median_s, "p95_s": 2 * median_s, "p99_s": 3 * median_s}
    return [values.get(name) for name in COLUMNS]


async def give_settings(stage: DashboardStage) -> None:
    env = [{"name": "API_KEY", "value": "zq-secret"}]
    container = {"image": "better", "env": env, "resources": {"limits": {"memory": "1Gi"}}}
    labels = {"serving.knative.dev/service": "hello"}
    made = {"namespace": "default", "name": "hello-00003", "labels": labels}
    body = {"apiVersion": API, "kind": "Revision", "metadata": made, "spec": {"containers": [container]}}
    await stage.cluster.create(REVISION, body)


async def compare(stage: DashboardStage, query: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/compare?{query}") as response:
        return response.status, await response.json() if response.status == 200 else await response.text()


async def test_two_revisions_are_compared_over_a_range_of_what_is_on_disk(tmp_path: Path) -> None:
    fill(tmp_path / "history.db")
    async with staged(history_file=str(tmp_path / "history.db")) as stage:
        await stage.split(_1=50, _2=50)
        now_s = wall_s()
        status, found = await compare(stage, f"name=default/hello&from={now_s - 610:.0f}&to={now_s - 10:.0f}")
        assert status == 200
        old, new = found["revisions"]
        assert [(one["revision"], one["traffic_percent"]) for one in (old, new)] == [(OLD, 50), (NEW, 50)]
        assert abs(old["requests"] - 600 * RATE) <= 10 * RATE
        assert (old["errors"], new["requests"]) == (0, old["requests"])
        assert abs(new["errors"] / new["requests"] - 0.1) < 0.001
        for name, times in (("p50_s", 1), ("p95_s", 2), ("p99_s", 3)):
            assert abs(old[name] / (0.02 * times) - 1) < 0.05
            assert abs(new[name] / (0.2 * times) - 1) < 0.05
        assert abs(new["pod_seconds"] / old["pod_seconds"] - 2) < 0.001
        assert (old["price"], found["settings"]) == (None, [])


async def test_any_two_revisions_are_compared_with_their_settings_and_no_secret() -> None:
    async with staged() as stage:
        await give_settings(stage)
        pair = f"name=default/hello&revision=default/{OLD}&revision=default/hello-00003"

        status, found = await compare(stage, pair)
        assert status == 200
        assert [(one["name"], one["older"], one["newer"]) for one in found["settings"]] == [
            ("autoscaling.knative.dev/max-scale", "9", None),
            ("env API_KEY", None, "set"),
            ("image", "x", "better"),
            ("limits.memory", None, "1Gi"),
        ]
        assert "zq-secret" not in str(found)


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("name=default/none", 404, "'default/none' is no service; expected name=NAMESPACE/SERVICE"),
        ("", 404, "'' is no service"),
        (
            f"name=default/hello&revision=default/{OLD}",
            400,
            f"{OLD} cannot be compared; expected two revisions of hello",
        ),
        (f"name=default/hello&revision=default/{OLD}&revision=default/x", 400, "hello has no revision x; there are "),
        (f"name=default/hello&revision=other/{OLD}&revision=default/{NEW}", 400, f"hello has no revision other/{OLD};"),
        ("name=default/hello&from=5&to=4", 400, "from=5 and to=4 are no range; expected two times in seconds"),
    ],
)
async def test_what_cannot_be_compared_says_why(query: str, status: int, error: str) -> None:
    async with staged() as stage:
        found, text = await compare(stage, query)
        assert (found, text.startswith(error)) == (status, True), text
