"""Worker processes of a simulation exit with their parent."""

import asyncio
import sys
from pathlib import Path

from tests.eventually import until

PROGRAM = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import os, time
from serving.tools.simulator.workers import end_with_parent
with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=end_with_parent) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_worker_exits_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    assert is_running(worker)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(worker))
