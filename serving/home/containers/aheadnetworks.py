"""Locations whose network namespaces are made before there is a pod for them: to make one takes longer than to start a container.

The first container of the system waits for its own; from then on some are ready. They end with this control process, or when its
successor sweeps the namespaces that no pod has.
"""

import asyncio
import logging

from serving.aio.cooperative import finished_in_thread
from serving.home.containers.network import PodNetworks
from serving.home.pods.locations import PodLocation, PodLocations

_log = logging.getLogger("kubelet")

# Two services that wake up at once.
_COUNT = 2
# After a pod took one: it is ready by then, and needs no core.
_LAG_S = 0.3
_RETRY_S = 5.0


class AheadNetworks:
    """The locations. ``networks`` is None where pods have no networks of their own. ``run`` makes what is missing."""

    def __init__(self, locations: PodLocations, networks: PodNetworks | None) -> None:
        self._locations, self._networks = locations, networks
        self._ready: list[PodLocation] = []
        self._wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"AheadNetworks({len(self._ready)} ready)"

    def take(self) -> PodLocation:
        """A location for a pod with a network of its own, which is there already if one is ready. Raises ``OSError``."""
        self._wanted.set()
        return self._ready.pop(0) if self._ready else self._locations.take()

    async def run(self) -> None:
        """Make networks until cancelled."""
        while self._networks is not None:
            await self._wanted.wait()
            await asyncio.sleep(_LAG_S)
            self._wanted.clear()
            while len(self._ready) < _COUNT:
                location = self._locations.take()
                try:
                    await finished_in_thread(self._networks.make_ahead, location.address)
                except OSError as error:
                    self._locations.leave(location)
                    _log.warning("network.not_ahead", extra={"error": str(error)})
                    await asyncio.sleep(_RETRY_S)
                else:
                    self._ready.append(location)
