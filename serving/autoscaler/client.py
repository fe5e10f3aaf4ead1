"""What the autoscaler asks of others: writes through the port, and the proof that the activator is in the path.

``ScaleClient`` makes the only three writes there are: a revision into reserve, a Deployment's scale, and which pods are
idle. ``Prober`` asks the public listener as Knative's prober does (knative/serving 98e5ef90,
pkg/reconciler/autoscaling/kpa/scaler.go) and believes nothing but the activator's own answer.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable

import msgspec

from serving.autoscaler.revision import DELETION_COST_ANNOTATION, DeploymentFacts, RevisionFacts, ServingState
from serving.cluster.kinds import DEPLOYMENT, POD, REVISION
from serving.cluster.port import Cluster, Object
from serving.model.errors import ClusterError, Conflict, NotFound

__all__ = ["Prober", "ScaleClient", "WriteCounts"]

_log = logging.getLogger("autoscaler")

# From the first packet of a probe to the end of its answer, in seconds. Source: Knative's probe timeout is 1.5 s.
_PROBE_TIMEOUT_S = 1.5
# The answer is a line, a few headers and nine letters.
_ANSWER_BYTES_MAX = 8192
_NAME = b"activator"
# Pods that are marked before one change of a scale: a hundred patches take a real server 0.3 s.
_MARKED_MAX = 100


class WriteCounts(msgspec.Struct, kw_only=True):
    """Writes that were made."""

    scale_writes: int = 0
    reserve_writes: int = 0
    reserve_conflicts: int = 0
    victim_writes: int = 0


class ScaleClient:
    """The writes. What a server refuses for other reasons than those named here is raised."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts = WriteCounts()
        self._cluster = cluster

    async def reserve(self, revision: RevisionFacts) -> tuple[bool, Object | None]:
        """Put a revision into reserve if it is as it was seen: whether it was, and the object as it is now."""
        patch = {
            "metadata": {"resourceVersion": revision.resource_version},
            "spec": {"servingState": ServingState.RESERVE.value},
        }
        try:
            written = await self._cluster.patch(REVISION, *revision.key, patch=patch)
        except Conflict:
            self.counts.reserve_conflicts += 1
            return False, await self._cluster.get(REVISION, *revision.key)
        except NotFound:
            return False, None
        self.counts.reserve_writes += 1
        return True, written

    async def scale(self, deployment: DeploymentFacts, count: int) -> str | None:
        """Set a Deployment's scale; its version after that, None if there is no such Deployment any more."""
        namespace, name = deployment.key[0], deployment.name
        patch = {"spec": {"replicas": count}}
        try:
            written = await self._cluster.patch(DEPLOYMENT, namespace, name, patch=patch, subresource="scale")
        except NotFound:
            return None
        self.counts.scale_writes += 1
        extra = {"namespace": namespace, "revision": deployment.key[1], "from": deployment.replica_count, "to": count}
        _log.info("scale.applied", extra=extra)
        return str(written["metadata"].get("resourceVersion", ""))

    async def mark(self, namespace: str, costs: Iterable[tuple[str, str | None]]) -> None:
        """Set what it costs to take pods away. A pod that cannot be marked goes or stays as it would."""
        async with asyncio.TaskGroup() as group:
            for name, cost in itertools.islice(costs, _MARKED_MAX):
                group.create_task(self._mark(namespace, name, cost), name=f"mark {name}")

    async def _mark(self, namespace: str, name: str, cost: str | None) -> None:
        patch = {"metadata": {"annotations": {DELETION_COST_ANNOTATION: cost}}}
        try:
            await self._cluster.patch(POD, namespace, name, patch=patch)
        except ClusterError as error:
            _log.debug("pod.unmarked", extra={"namespace": namespace, "pod": name, "error": str(error)})
        else:
            self.counts.victim_writes += 1


class Prober:
    """Asks one address, "127.0.0.1:8080"."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def __call__(self) -> bool:
        """Whether the activator answers there. By hand: one request, of which nothing is kept."""
        head = (
            f"GET /healthz HTTP/1.1\r\nHost: {self._address}\r\nUser-Agent: Knative-Autoscaling-Probe\r\n"
            "K-Network-Probe: activator\r\nConnection: close\r\n\r\n"
        )
        answer = b""
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(head.encode())
                    while len(answer) < _ANSWER_BYTES_MAX and (piece := await reader.read(_ANSWER_BYTES_MAX)):
                        answer += piece
                finally:
                    writer.close()
        status, _, rest = answer.partition(b"\r\n")
        return status.split(b" ")[1:2] == [b"200"] and rest.partition(b"\r\n\r\n")[2].strip() == _NAME
