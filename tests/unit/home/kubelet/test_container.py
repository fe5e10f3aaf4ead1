import asyncio
from pathlib import Path

from serving.home.kubelet.container import ContainerKeeper, ContainerSpec
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
