"""Runs the containers that come before the others of a pod: one after another, each until it has ended with 0.

One that fails is started again after a pause, as the others are, unless the pod's ``restartPolicy`` is Never.
"""

import asyncio
from collections.abc import MutableMapping, Sequence

from serving.home.kubelet.container import ContainerKeeper, ContainerSpec
from serving.home.pods.runtime import PodRuntime


async def run_init_containers(
    runtime: PodRuntime,
    specs: Sequence[ContainerSpec],
    keepers: MutableMapping[str, ContainerKeeper],
    *,
    group: asyncio.TaskGroup,
    stop: asyncio.Event,
    takes_over: bool,
) -> bool:
    """Run them; whether all have ended with 0. False as soon as one has failed for good, or ``stop`` is set.

    The one that runs is in ``keepers``, so that the caller ends it with the pod. ``takes_over`` says that an earlier control
    process began: what has ended with 0 is not run again.
    """
    for spec in specs:
        if spec.first.is_over and spec.first.exit_code == 0:
            continue
        name, keeper = spec.start.name, ContainerKeeper(runtime, spec, stop)
        keepers[name] = keeper
        if takes_over:
            keeper.take_over()
        running = group.create_task(keeper.run(), name=name)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if stop.is_set():
            return False
        del keepers[name]
        if keeper.state.exit_code:
            return False
    return True
