"""A process that writes objects continuously, and prints the name of each acknowledged one.

Run: ``python -m tests.integration.journal_writer PATH RUN``. It never ends by itself: the test kills it.
"""

import asyncio
import itertools
import sys

from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP

_CLIENTS = 8


async def write(path: str, run: str) -> None:
    """Run several clients, each of which creates, changes and deletes objects in turn."""
    cluster = MemoryCluster(Journal(path))

    async def client(number: int) -> None:
        for step in itertools.count():
            name = f"map-{run}-{number}-{step}"
            await cluster.create(CONFIG_MAP, {"metadata": {"name": name}, "data": {"step": "created"}})
            config_map = await cluster.patch(CONFIG_MAP, "default", name, patch={"data": {"step": "patched"}})
            notify("kept", name, config_map["metadata"]["resourceVersion"])
            if step % 2:
                await cluster.delete(CONFIG_MAP, "default", name)
                notify("deleted", name, "0")

    async with asyncio.TaskGroup() as group:
        for number in range(_CLIENTS):
            group.create_task(client(number))


def notify(*words: str) -> None:
    """Print a line with one write."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))
