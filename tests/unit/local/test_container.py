import asyncio
from pathlib import Path

from serving.local.container import Keeper, Kept
from serving.local.host import Host
from serving.local.orders import Start


async def test_a_container_of_a_pod_that_was_deleted_meanwhile_is_not_started(tmp_path: Path) -> None:
    start = Start(pod="p", name="app", environment={}, log=str(tmp_path / "log"), arguments=("true",))
    stop = asyncio.Event()
    stop.set()
    keeper = Keeper(Host(tmp_path / "socket"), Kept(start=start, on_life=print, on_warning=print), stop)
    await asyncio.wait_for(keeper.run(), timeout=60)
    assert keeper.process is None
