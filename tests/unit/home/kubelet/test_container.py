import asyncio
from pathlib import Path

from serving.home.kubelet.container import ContainerKeeper, ContainerSpec, RestartSettings, pause_after
from serving.home.processes.orders import StartProcess
from serving.home.processes.processruntime import ProcessRuntime


async def test_a_container_of_a_pod_that_was_deleted_meanwhile_is_not_started(tmp_path: Path) -> None:
    start = StartProcess(pod="p", name="app", environment={}, log=str(tmp_path / "log"), arguments=("true",))
    stop = asyncio.Event()
    stop.set()
    keeper = ContainerKeeper(
        ProcessRuntime(tmp_path / "socket"), ContainerSpec(start=start, on_state=print, on_warning=print), stop
    )
    await asyncio.wait_for(keeper.run(), timeout=60)
    assert keeper.process is None


SETTINGS = RestartSettings()


def test_pauses_double_up_to_a_bound() -> None:
    pauses, pause_s = [], None
    for _ in range(9):
        pause_s = pause_after(pause_s, lived_s=1, settings=SETTINGS)
        pauses.append(pause_s)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_one_that_lived_long_is_started_at_once() -> None:
    assert pause_after(60, lived_s=30, settings=SETTINGS) == 0
    assert pause_after(60, lived_s=29.9, settings=SETTINGS) == 60
