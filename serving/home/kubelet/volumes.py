"""The data of ConfigMaps, Secrets and tokens that a pod names, read once at its start and again while it runs.

A mounted ConfigMap or Secret follows its object, as on Kubernetes: files are rewritten within a period after a change, and
tokens are renewed. The
environment stays as it was at the start. What is missing meanwhile leaves the files as they are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from serving.aio.clock import now_s
from serving.aio.periodic import wait_for
from serving.cluster.kinds import CONFIG_MAP, SECRET
from serving.cluster.port import Cluster
from serving.home.pods.sources import TOKEN, Reference, Sources, data_of
from serving.model.errors import ClusterError, InvalidValue, NotFound

_log = logging.getLogger(__name__)

# Kubernetes' kubelet looks each minute; reading one object of this process costs microseconds.
_PERIOD_S = 5.0


async def read_sources(
    cluster: Cluster, namespace: str, wanted: Collection[Reference], *, token: Callable[[Reference], str]
) -> Sources:
    """The data of those that exist; ``token`` makes the tokens."""
    found: dict[Reference, dict[str, bytes]] = {}
    for reference in wanted:
        if reference.kind == TOKEN:
            found[reference] = {"": token(reference).encode()}
            continue
        kind = CONFIG_MAP if reference.kind == CONFIG_MAP.name else SECRET
        try:
            found[reference] = data_of(reference.kind, await cluster.get(kind, namespace, reference.name))
        except NotFound:
            continue
    return found


async def follow_sources(
    read: Callable[[], Awaitable[Sources]],
    write: Callable[[Sources], None],
    *,
    known: Sources,
    stop: asyncio.Event,
    period_s: float = _PERIOD_S,
) -> None:
    """Write the volumes again whenever what they show has changed, until ``stop`` is set."""
    while not stop.is_set():
        await wait_for(stop, until_s=now_s() + period_s)
        try:
            found = await read()
            if not stop.is_set() and found != known:
                write(found)
                known = found
        except (ClusterError, InvalidValue, OSError) as error:
            _log.warning("volumes.stale", extra={"error": str(error)})
