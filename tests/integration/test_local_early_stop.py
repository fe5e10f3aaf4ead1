"""Pods that are deleted while they start do not wait for their grace period of an hour."""

import asyncio
import random
import sys

from serving.net.cluster.kinds import POD
from tests.integration.local_stage import Machine, manifest

_ROUNDS = 4
_PODS = 8
_GRACE_S = 3600
_DELETED_WITHIN_S = 0.1


async def test_pod_deleted_during_start_does_not_wait_for_grace_period(machine: Machine) -> None:
    dice = random.Random(7)

    async def start_and_delete(name: str, after_s: float) -> None:
        # Python without signal handlers, which SIGTERM ends at any moment.
        pod = manifest(name, command=f"{sys.executable} -S -c 'import time; time.sleep(9999)'")
        pod["spec"]["terminationGracePeriodSeconds"] = _GRACE_S
        await machine.start(pod)
        await asyncio.sleep(after_s)
        await machine.cluster.delete(POD, "default", name)
        await machine.until_gone(name)

    for number in range(_ROUNDS):
        async with asyncio.TaskGroup() as group:
            for index in range(_PODS):
                group.create_task(start_and_delete(f"p-{number}-{index}", dice.uniform(0, _DELETED_WITHIN_S)))
