"""Writes scale decisions to the cluster: state, path, a Deployment's scale, and `pod-deletion-cost`.

This module also writes two annotations of a revision: its learnt state, and the pods that it will need soon.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.autoscaler.io.events import ScaleEventWriter
from serving.autoscaler.writer import ReserveResult, ScaleResult
from serving.core.model.errors import ClusterError, Conflict, NotFound
from serving.core.model.knative import (
    ANTICIPATED_PODS_ANNOTATION,
    LEARNT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    POD_DELETION_COST_ANNOTATION,
    TRAFFIC_PATH_ANNOTATION,
    RevisionKey,
    ServingState,
    TrafficPath,
)
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import WorkloadTarget, serving_state_patch
from serving.core.scaling.revision import ScaledDeployment, ScaledRevision
from serving.net.aio.mutualtls import PeerTls, open_tls
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import DEPLOYMENT, POD, REVISION, SCALED_WORKLOAD, Kind
from serving.net.cluster.port import Cluster, Patch, PatchType
from serving.net.cluster.scalable import ScalableKinds

_log = logging.getLogger("autoscaler")

# Most attempts per write. Each further attempt costs two calls, and a pod has become ready meanwhile.
_SCALE_ATTEMPTS = 4
# Most pods marked before one change of a scale: a hundred patches take a real server 0.3 s.
_MARKED_MAX = 100

# Longest probe, in seconds, from the first packet to the end of the response. Source: Knative's probe timeout is 1.5 s.
_PROBE_TIMEOUT_S = 1.5
# The response is a status line, a few headers and nine letters.
_RESPONSE_BYTES_MAX = 8192
_NAME = b"activator"
_SCALE = {"apiVersion": "autoscaling/v1", "kind": "Scale"}


class WriteCounts(msgspec.Struct, kw_only=True):
    """Counts of writes since the start of the process, by their content.

    Conflicts are writes that failed because the object had changed. ``reserve`` and ``wake`` set the serving state,
    ``victim`` the deletion costs of pods, ``path`` whether requests pass the activators. ``learnt`` and
    ``learnt_target`` save learnt state, ``anticipated`` publishes expected pods.
    """

    scale_writes: int = 0
    scale_conflicts: int = 0
    reserve_writes: int = 0
    reserve_conflicts: int = 0
    wake_writes: int = 0
    victim_writes: int = 0
    path_writes: int = 0
    learnt_writes: int = 0
    learnt_target_writes: int = 0
    anticipated_writes: int = 0


def _kind_of(revision: ScaledRevision) -> Kind:
    return SCALED_WORKLOAD if revision.is_workload else REVISION


def _state_patch(revision: ScaledRevision, state: ServingState) -> Object:
    return serving_state_patch(state, resource_version=revision.resource_version, is_workload=revision.is_workload)


def _state_write(revision: ScaledRevision, state: ServingState) -> Patch:
    namespace, name = revision.key
    return Patch(kind=_kind_of(revision), namespace=namespace, name=name, patch=_state_patch(revision, state))


def _scale_patch(kind: Kind, deployment: ScaledDeployment, count: int, *, version: str) -> Patch:
    namespace, name = deployment.key[0], deployment.name
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    return Patch(
        kind=kind,
        namespace=namespace,
        name=name,
        patch={**_SCALE, "metadata": metadata, "spec": {"replicas": count}},
        # A GitOps tool tells the replicas of a user's object from its own fields by their owner.
        patch_type=PatchType.MERGE if deployment.target is None else PatchType.APPLY,
        subresource="scale",
    )


class ScaleClient:
    """Writes scales and states to the cluster. Errors that a method does not document are raised to the caller.

    ``events`` has the Events that wait for the writes of their revisions, which are written by the same calls.
    """

    def __init__(self, cluster: Cluster, events: ScaleEventWriter | None) -> None:
        self.counts = WriteCounts()
        self._cluster = cluster
        self._events = events
        self._kinds = ScalableKinds(cluster)

    async def reserve(
        self, revision: ScaledRevision, notes: Mapping[str, str | None], deployment: ScaledDeployment | None
    ) -> ReserveResult:
        """Set a revision to Reserve, with annotations, if it is unchanged.

        Also set the scale of its Deployment to 0, and write its Event, if the server executes several writes in a call.
        """
        kind = _kind_of(revision)
        patch = _state_patch(revision, ServingState.RESERVE)
        if notes:
            patch["metadata"]["annotations"] = patch["metadata"].get("annotations", {}) | notes
        reserve = Patch(kind=kind, namespace=revision.key[0], name=revision.key[1], patch=patch)
        try:
            if deployment is None or deployment.target is not None or not deployment.replica_count:
                written: Sequence[Object] = [await self._cluster.write(reserve)]
            else:
                scale = _scale_patch(DEPLOYMENT, deployment, 0, version=deployment.resource_version)
                written = await self._write_together(revision.key, reserve, scale)
        except Conflict:
            self.counts.reserve_conflicts += 1
            return ReserveResult(resource=await self._cluster.get(kind, *revision.key))
        except NotFound:
            return ReserveResult()
        self.counts.reserve_writes += 1
        self._count_notes(notes)
        version = None
        if deployment is not None and written[1:]:
            version = self._record_scale(deployment, 0, written[1])
        return ReserveResult(is_reserved=True, resource=written[0], scale_version=version)

    async def _write_together(self, key: RevisionKey, *writes: Patch) -> Sequence[Object]:
        """Execute writes and write the revision's waiting Event in one call; return the results of ``writes``.

        If the server has no such call, or a write fails, only the first writes are executed. Raises the error of the
        first.
        """
        waiting = None if self._events is None else self._events.pop(key)
        events = () if waiting is None else (waiting.write(),)
        written = None
        try:
            if len(writes) + len(events) > 1:
                written = await self._cluster.write_together((*writes, *events))
        finally:
            if waiting is not None and self._events is not None and (written is None or not written[len(writes) :]):
                self._events.release(waiting)
        return [await self._cluster.write(writes[0])] if written is None else written[: len(writes)]

    def _record_scale(self, deployment: ScaledDeployment, count: int, written: Object) -> str:
        """Count and log a written scale; return its resourceVersion."""
        self.counts.scale_writes += 1
        extra = {"namespace": deployment.key[0], "revision": deployment.key[1]}
        _log.info("scale.applied", extra={**extra, "from": deployment.replica_count, "to": count})
        return str(written["metadata"].get("resourceVersion", ""))

    async def wake(self, revision: ScaledRevision) -> Object | None:
        """Set a revision to Active if it is unchanged; None if it has changed or does not exist."""
        written = await self._patch_if_same(revision, _state_patch(revision, ServingState.ACTIVE))
        self.counts.wake_writes += written is not None
        return written

    async def lead(self, revision: ScaledRevision, path: TrafficPath) -> Object | None:
        """Write whether requests of a revision pass the activators or go directly to its pods.

        Return the written object; None if the revision has changed or does not exist.
        """
        annotation = path.value if path is TrafficPath.SERVE else None
        patch = {
            "metadata": {
                "resourceVersion": revision.resource_version,
                "annotations": {TRAFFIC_PATH_ANNOTATION: annotation},
            }
        }
        written = await self._patch_if_same(revision, patch)
        self.counts.path_writes += written is not None
        return written

    async def save(self, revision: ScaledRevision, notes: Mapping[str, str | None]) -> Object | None:
        """Set annotations of a revision; the value None removes one. Return the object, None if it does not exist."""
        patch = {"metadata": {"uid": revision.uid, "annotations": dict(notes)}}
        written = await self._patch_if_same(revision, patch)
        if written is not None:
            self._count_notes(notes)
        return written

    async def _patch_if_same(self, revision: ScaledRevision, patch: Object) -> Object | None:
        try:
            return await self._cluster.patch(_kind_of(revision), *revision.key, patch=patch)
        except (Conflict, NotFound):
            return None

    def _count_notes(self, notes: Mapping[str, str | None]) -> None:
        self.counts.learnt_writes += LEARNT_ANNOTATION in notes
        self.counts.learnt_target_writes += LEARNT_TARGET_ANNOTATION in notes
        self.counts.anticipated_writes += ANTICIPATED_PODS_ANNOTATION in notes

    async def scale(
        self, deployment: ScaledDeployment, count: int, *, woken: ScaledRevision | None = None
    ) -> ScaleResult | None:
        """Set the scale of a Deployment or target; None if it has changed or is deleted.

        Each pod that becomes ready also changes the object; after such a change the write is retried. Also set the
        revision ``woken`` to Active, and write its Event, if the server executes several writes in a call.
        """
        namespace, name, kind = deployment.key[0], deployment.name, await self._kind_of(deployment.target)
        version = deployment.resource_version
        # First the scale, for which requests wait.
        wakes = () if woken is None else (_state_write(woken, ServingState.ACTIVE),)
        for _ in range(_SCALE_ATTEMPTS):
            patch = _scale_patch(kind, deployment, count, version=version)
            try:
                written, *further = await self._write_together(deployment.key, patch, *wakes)
                break
            except NotFound:
                return None
            except Conflict:
                self.counts.scale_conflicts += 1
                present = await self._cluster.get(kind, namespace, name, subresource="scale")
                if int(present["spec"].get("replicas") or 0) != deployment.replica_count:
                    # Another client has scaled it; the watch reports that, which causes a decision.
                    return None
                version = str(present["metadata"].get("resourceVersion", ""))
        else:
            raise Conflict(f"{namespace}/{name}: it changed {_SCALE_ATTEMPTS} times while its scale was written")
        self.counts.wake_writes += len(further)
        return ScaleResult(version=self._record_scale(deployment, count, written), woken=next(iter(further), None))

    async def _kind_of(self, target: WorkloadTarget | None) -> Kind:
        return DEPLOYMENT if target is None else await self._kinds.kind(target)

    async def mark(self, namespace: str, costs: Iterable[tuple[str, str | None]]) -> None:
        """Set `pod-deletion-cost`. Failures are ignored: the ReplicaSet controller then chooses by its own rules."""
        async with supervise() as group:
            for name, cost in itertools.islice(costs, _MARKED_MAX):
                group.start(self._mark(namespace, name, cost), name=f"mark {name}")

    async def _mark(self, namespace: str, name: str, cost: str | None) -> None:
        patch = {"metadata": {"annotations": {POD_DELETION_COST_ANNOTATION: cost}}}
        try:
            await self._cluster.patch(POD, namespace, name, patch=patch)
        except ClusterError as error:
            _log.debug("pod.unmarked", extra={"namespace": namespace, "pod": name, "error": str(error)})
        else:
            self.counts.victim_writes += 1


class Prober:
    """Probes an activator at one address, "127.0.0.1:8080", over TLS if ``secured``."""

    def __init__(self, address: str, *, secured: PeerTls | None) -> None:
        self._secured = secured
        self._address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def __call__(self) -> bool:
        """Whether the activator responds at the address. Sends one request on a new connection."""
        head = (
            f"GET /healthz HTTP/1.1\r\nHost: {self._address}\r\nUser-Agent: Knative-Autoscaling-Probe\r\n"
            "K-Network-Probe: activator\r\nConnection: close\r\n\r\n"
        )
        response = b""
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                if self._secured is None:
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                else:
                    reader, writer = await open_tls(self._host, self._port, self._secured)
                try:
                    writer.write(head.encode())
                    while len(response) < _RESPONSE_BYTES_MAX and (piece := await reader.read(_RESPONSE_BYTES_MAX)):
                        response += piece
                finally:
                    writer.close()
        status, _, rest = response.partition(b"\r\n")
        return status.split(b" ")[1:2] == [b"200"] and rest.partition(b"\r\n\r\n")[2].strip() == _NAME
