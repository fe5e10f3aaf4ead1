import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object
from serving.core.model.quantity import parse_bytes, parse_millicores
from serving.home.pods.machine import read_machine
from serving.home.pods.usage import SessionTotals, SessionUsage, UsageReporter, pod_metrics, read_sessions, used_between
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import NODE_METRICS, POD_METRICS, SCALING_POLICY
from tests.eventually import until
from tests.virtual_time import pass_s, run_virtually

BURN = "import os, signal\nif os.fork() == 0:\n  while True: pass\nprint(flush=True)\nsignal.pause()"
CPU = {"targetRef": {"kind": "Service", "name": "a"}, "up": {"triggers": [{"type": "cpu", "usagePercent": 50}]}}


class Pod(msgspec.Struct):
    """A pod with one container."""

    key: tuple[str, str]
    sessions: Mapping[str, int]
    node_name: str = "local"
    manifest: dict[str, Any] = msgspec.field(default_factory=lambda: {"metadata": {"labels": {"app": "a"}}})
    cgroups: Mapping[str, SessionTotals] = {}


def stat(folder: Path, pid: int, session: int, *ticks: int, pages: int = 0) -> None:
    """A process in the format of proc(5), with a hostile name."""
    (folder / str(pid)).mkdir()
    before, rest = ["S", "1", "1", str(session), *["0"] * 7], [*["0"] * 6, str(pages), *["0"] * 20]
    fields = [*before, *map(str, ticks), *rest]
    (folder / str(pid) / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)}")


def test_session_usage_is_the_sum_of_its_processes(tmp_path: Path) -> None:
    stat(tmp_path, 10, 10, 1, 2, 3, 4, pages=5)
    stat(tmp_path, 11, 10, 10, 0, 0, 0, pages=1)
    stat(tmp_path, 20, 20, 7, 0, 0, 0)
    (tmp_path / "30").mkdir()
    (tmp_path / "self").mkdir()
    session_totals = read_sessions(tmp_path)
    assert session_totals[10].cpu_ticks == 20
    assert session_totals[20] == SessionTotals(cpu_ticks=7)
    assert session_totals[10].resident_bytes % 6 == 0
    assert set(session_totals) == {10, 20}


def test_cpu_usage_is_per_window_second() -> None:
    used = used_between(SessionTotals(100, 5), SessionTotals(250, 7), window_s=2.0)
    assert used == SessionUsage(750, 7)


def test_cpu_usage_is_never_negative() -> None:
    assert used_between(SessionTotals(100), SessionTotals(50), window_s=1.0).cpu_m == 0


def test_pod_metrics_have_the_format_of_metrics_server() -> None:
    resource = pod_metrics(Pod(("n", "p"), {}), {"c": SessionUsage(250, 4096)}, at="then", window_s=2.0)
    assert resource["metadata"] == {"namespace": "n", "name": "p", "labels": {"app": "a"}}
    assert resource["containers"] == [{"name": "c", "usage": {"cpu": "250m", "memory": "4Ki"}}]
    assert (resource["timestamp"], resource["window"]) == ("then", "2.000s")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    yield cluster
    await cluster.close()


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    """A session with a child that uses a whole core."""
    process = subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


async def test_forked_processes_count_towards_pod_usage(
    cluster: MemoryCluster, burner: subprocess.Popen[bytes]
) -> None:
    pods = [Pod(("default", "p"), {"c": burner.pid})]
    reporter = UsageReporter(cluster, lambda: pods)
    await reporter.measure()
    with pytest.raises(NotFound):
        await cluster.get(POD_METRICS, "default", "p")

    async def used() -> dict[str, str] | None:
        await reporter.measure()
        usage: dict[str, str] = (await cluster.get(POD_METRICS, "default", "p"))["containers"][0]["usage"]
        return usage if parse_millicores(usage["cpu"]) else None

    # Only the child of this session uses CPU; on a busy machine it may have to wait for CPU time.
    usage = await until(used)
    assert usage is not None
    assert parse_bytes(usage["memory"]) > 2**20


async def test_metrics_of_removed_pod_are_deleted(cluster: MemoryCluster, burner: subprocess.Popen[bytes]) -> None:
    pods = [Pod(("default", "p"), {"c": burner.pid})]
    reporter = UsageReporter(cluster, lambda: pods)
    for _ in range(3):
        await reporter.measure()
    assert len((await cluster.list(POD_METRICS)).items) == 1
    pods.clear()
    await reporter.measure()
    assert (await cluster.list(POD_METRICS)).items == []


async def test_deleted_pod_metrics_are_recreated(cluster: MemoryCluster, burner: subprocess.Popen[bytes]) -> None:
    # The other pod has just started and is not measured yet.
    pods = [Pod(("default", "p"), {"c": burner.pid}), Pod(("default", "q"), {})]
    reporter = UsageReporter(cluster, lambda: pods)
    for _ in range(2):
        await reporter.measure()
    await cluster.delete(POD_METRICS, "default", "p")
    for _ in range(2):
        await reporter.measure()
    (metrics,) = (await cluster.list(POD_METRICS)).items
    assert metrics["metadata"]["name"] == "p"


async def test_new_reporter_replaces_existing_pod_metrics(
    cluster: MemoryCluster, burner: subprocess.Popen[bytes]
) -> None:
    pods = [Pod(("default", "p"), {"c": burner.pid})]
    await cluster.create(POD_METRICS, pod_metrics(pods[0], {}, at="before", window_s=1.0))
    reporter = UsageReporter(cluster, lambda: pods)
    for _ in range(3):
        await reporter.measure()
    (metrics,) = (await cluster.list(POD_METRICS)).items
    assert metrics["timestamp"] != "before"
    assert [container["name"] for container in metrics["containers"]] == ["c"]


async def test_node_metrics_are_reported_and_recreated(cluster: MemoryCluster) -> None:
    reporter = UsageReporter(cluster, list, machine=read_machine(), node_name="here")
    await reporter.measure()
    assert (await cluster.list(NODE_METRICS)).items == []

    async def nodes() -> list[Object]:
        await reporter.measure()
        return (await cluster.list(NODE_METRICS)).items

    (reported,) = await until(nodes)
    await reporter.measure()
    assert len((await cluster.list(NODE_METRICS)).items) == 1
    assert reported["metadata"]["name"] == "here"
    assert parse_bytes(reported["usage"]["memory"]) > 2**20
    await cluster.delete(NODE_METRICS, "", "here")
    for _ in range(2):
        await reporter.measure()
    assert len((await cluster.list(NODE_METRICS)).items) == 1


def test_cpu_trigger_policy_shortens_usage_interval() -> None:
    metadata = {"name": "p", "namespace": "default"}
    policy = {"apiVersion": "serving.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": metadata, "spec": CPU}
    measured_at_s: list[float] = []

    def no_pods() -> list[Pod]:
        measured_at_s.append(now_s())
        return []

    async def scenario() -> None:
        cluster = MemoryCluster()
        task = asyncio.create_task(UsageReporter(cluster, no_pods).run())
        await pass_s(20.0)
        await cluster.create(SCALING_POLICY, policy)
        await pass_s(5.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await cluster.close()

    run_virtually(scenario())
    assert sorted(set(measured_at_s)) == [0, 2, 17, 20, 22, 24]


async def test_learnt_target_shortens_usage_interval(cluster: MemoryCluster) -> None:
    pods = [
        Pod(("default", "p"), {}, manifest={"metadata": {"annotations": {"autoscaling.serving.dev/target": "learnt"}}})
    ]
    reporter = UsageReporter(cluster, lambda: pods)
    await reporter.measure()
    assert reporter._wanted.is_set()
    pods.clear()
    await reporter.measure()
    assert not reporter._wanted.is_set()
