import asyncio
from pathlib import Path

import pytest

from serving.core.model.errors import NotFound
from serving.home.kubelet.container import (
    ContainerKeeper,
    ContainerSpec,
    RestartPauses,
    RestartSettings,
)
from serving.home.processes.orders import StartProcess
from serving.home.processes.processruntime import ProcessRuntime
from tests.eventually import next_turn


async def test_container_of_a_stopped_pod_is_not_started(tmp_path: Path) -> None:
    start = StartProcess(pod="p", name="app", environment={}, log=str(tmp_path / "log"), arguments=("true",))
    stop = asyncio.Event()
    stop.set()
    keeper = ContainerKeeper(
        ProcessRuntime(tmp_path / "socket"), ContainerSpec(start=start, on_state=print, on_warning=print), stop
    )
    await asyncio.wait_for(keeper.run(), timeout=60)
    assert keeper.process is None


async def test_process_that_has_not_started_cannot_be_attached_to(tmp_path: Path) -> None:
    start = StartProcess(
        pod="p", name="app", environment={}, log=str(tmp_path / "log"), arguments=("/no/such/program",)
    )
    keeper = ContainerKeeper(
        ProcessRuntime(tmp_path / "socket"),
        ContainerSpec(start=start, on_state=print, on_warning=print),
        asyncio.Event(),
    )
    running = asyncio.ensure_future(keeper.run())
    await next_turn()
    assert keeper.process is not None
    with pytest.raises(NotFound, match="container app of the pod does not run"):
        keeper.running_process()
    running.cancel()


def test_restart_pauses_double_up_to_60_seconds() -> None:
    restart_pauses = RestartPauses(RestartSettings())
    assert [restart_pauses.after(1) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    # 2**1024 is more than the largest float.
    assert {restart_pauses.after(1) for _ in range(2_500)} == {60}


def test_container_that_ran_30_s_restarts_without_pause() -> None:
    restart_pauses = RestartPauses(RestartSettings())
    assert [restart_pauses.after(lived_s) for lived_s in (1, 1, 29.9, 30, 1)] == [0, 1, 2, 0, 1]
