"""What the autoscaler asks of others: writes through the port, and the proof that the activator is in the path.

``ScaleClient`` makes the only writes that scale: a revision into reserve or out of it, a Deployment's scale, and which pods
are idle. ``PolicyClient`` follows ScalingPolicies, writes their status and reads what pods use, ``EventWriter`` tells of changes. ``Prober`` asks the public listener as Knative's prober does (knative/serving 98e5ef90,
pkg/reconciler/autoscaling/kpa/scaler.go) and believes nothing but the activator's own answer.
"""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from serving.aio.clock import now_s, stamp, wall_s
from serving.autoscaler.changes import EventBudget, scale_event
from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.merge import Proposal
from serving.autoscaler.policy import PolicyKey, policy_of
from serving.autoscaler.revision import ScaledDeployment, ScaledRevision
from serving.autoscaler.scaler import ScalerView
from serving.autoscaler.sharing.client import Sharing
from serving.autoscaler.sharing.groups import Group, group_of
from serving.autoscaler.triggering import Requests, Triggers
from serving.autoscaler.usage import Usages, container_uses, observed_pods, requests_of
from serving.cluster.kinds import DEPLOYMENT, EVENT, POD, POD_METRICS, REVISION, SCALING_POLICY
from serving.cluster.port import Cluster, EventType, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.cluster.workqueue import WorkQueue
from serving.model.errors import AlreadyExists, ClusterError, Conflict, NotFound
from serving.model.knative import (
    POD_DELETION_COST_ANNOTATION,
    REVISION_LABEL,
    TRAFFIC_PATH_ANNOTATION,
    RevisionKey,
    ServingState,
    TrafficPath,
)
from serving.model.scalingpolicy import TargetRef
from serving.scaling.triggertypes.observation import ContainerUse, ObservedPods
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["EventWriter", "PolicyClient", "Prober", "ScaleClient", "WriteCounts"]

_log = logging.getLogger("autoscaler")

# From the first packet of a probe to the end of its answer, in seconds. Source: Knative's probe timeout is 1.5 s.
_PROBE_TIMEOUT_S = 1.5
# The answer is a line, a few headers and nine letters.
_ANSWER_BYTES_MAX = 8192
_NAME = b"activator"
# Each attempt beyond the first costs two calls, and another pod has become ready meanwhile.
_SCALE_ATTEMPTS = 4
# Pods that are marked before one change of a scale: a hundred patches take a real server 0.3 s.
_MARKED_MAX = 100
# Events that wait to be written; more than that are changes of hundreds of revisions in a second.
_EVENTS_WAITING_MAX = 500
_REVISION = "Revision"
# Changes that come together are written together.
_NEWS_LAG_S = 0.1
# Least time between two writes of one status, in periods of evaluation; a bit less than one, so that none is left out.
_STATUS_PERIODS = 0.9


class WriteCounts(msgspec.Struct, kw_only=True):
    """Writes that were made."""

    scale_writes: int = 0
    scale_conflicts: int = 0
    reserve_writes: int = 0
    reserve_conflicts: int = 0
    wake_writes: int = 0
    victim_writes: int = 0
    path_writes: int = 0


class ScaleClient:
    """The writes. What a server refuses for other reasons than those named here is raised."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts = WriteCounts()
        self._cluster = cluster

    async def reserve(self, revision: ScaledRevision) -> tuple[bool, Object | None]:
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

    async def wake(self, revision: ScaledRevision) -> Object | None:
        """Take a revision out of reserve if it is as it was seen; None if it is not, or is gone."""
        patch = {
            "metadata": {"resourceVersion": revision.resource_version},
            "spec": {"servingState": ServingState.ACTIVE.value},
        }
        try:
            written = await self._cluster.patch(REVISION, *revision.key, patch=patch)
        except (Conflict, NotFound):
            return None
        self.counts.wake_writes += 1
        return written

    async def lead(self, revision: ScaledRevision, path: TrafficPath) -> Object | None:
        """Say which path requests to a revision should take; None if it is not as it was seen, or is gone."""
        said = path.value if path is TrafficPath.SERVE else None
        patch = {
            "metadata": {"resourceVersion": revision.resource_version, "annotations": {TRAFFIC_PATH_ANNOTATION: said}}
        }
        try:
            written = await self._cluster.patch(REVISION, *revision.key, patch=patch)
        except (Conflict, NotFound):
            return None
        self.counts.path_writes += 1
        return written

    async def scale(self, deployment: ScaledDeployment, count: int) -> str | None:
        """Set a Deployment's scale if it is as it was seen; its version after that, None if it is not, or is gone.

        A Deployment changes with each pod that becomes ready: what was written for that reason alone is written again.
        """
        namespace, name = deployment.key[0], deployment.name
        version = deployment.resource_version
        for _ in range(_SCALE_ATTEMPTS):
            patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": count}}
            try:
                written = await self._cluster.patch(DEPLOYMENT, namespace, name, patch=patch, subresource="scale")
                break
            except NotFound:
                return None
            except Conflict:
                self.counts.scale_conflicts += 1
                present = await self._cluster.get(DEPLOYMENT, namespace, name, subresource="scale")
                if int(present["spec"].get("replicas") or 0) != deployment.replica_count:
                    # Another client has scaled it; the watch brings that, and another decision.
                    return None
                version = str(present["metadata"].get("resourceVersion", ""))
        else:
            raise Conflict(f"{namespace}/{name}: it changed {_SCALE_ATTEMPTS} times while its scale was written")
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
        patch = {"metadata": {"annotations": {POD_DELETION_COST_ANNOTATION: cost}}}
        try:
            await self._cluster.patch(POD, namespace, name, patch=patch)
        except ClusterError as error:
            _log.debug("pod.unmarked", extra={"namespace": namespace, "pod": name, "error": str(error)})
        else:
            self.counts.victim_writes += 1


class EventWriter:
    """Writes changes of scale as Events, one after the other, off the path of decisions. ``run`` it."""

    def __init__(self, cluster: Cluster, sharing: Sharing | None = None) -> None:
        self.left_out_count = 0
        self._cluster = cluster
        self._sharing = sharing or Sharing()
        self._budget = EventBudget()
        self._waiting: asyncio.Queue[tuple[Group, dict[str, object]]] = asyncio.Queue(_EVENTS_WAITING_MAX)

    def __repr__(self) -> str:
        return f"EventWriter({self._budget})"

    def add(self, revision: ScaledRevision, sentence: str) -> None:
        """A change; left out when its revision, or all together, say too much."""
        leave = self._budget.take(revision.uid, now_s())
        if leave is None or self._waiting.full():
            self.left_out_count += 1
            return
        event = scale_event(revision, sentence, leave=leave, now=stamp())
        self._waiting.put_nowait((group_of(revision.key, revision), event))

    def forget(self, revision: ScaledRevision) -> None:
        """A revision is gone, and with it what it may still say."""
        self._budget.forget(revision.uid)

    async def run(self) -> None:
        """Write until cancelled. An Event that cannot be written is no reason for anything."""
        while True:
            group, event = await self._waiting.get()
            try:
                with self._sharing.writing(group):
                    try:
                        await self._cluster.create(EVENT, event)
                    except AlreadyExists:
                        await self._cluster.replace(EVENT, event)
            except ClusterError as error:
                self.left_out_count += 1
                _log.debug("event.unwritten", extra={"error": str(error)})


class PolicyClient:
    """Follows ScalingPolicies, writes their status, and looks at what pods use. ``run`` it.

    ``triggers`` decides. A status is written when it says something new about the attachment, else once a period.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: AutoscalerSettings,
        *,
        requests: Requests,
        sharing: Sharing,
        group: Callable[[RevisionKey], Group],
    ) -> None:
        self.triggers = Triggers(settings.triggers, requests=requests, on_news=self._news)
        self.usages = Usages()
        self.policies = Reflector(cluster, SCALING_POLICY)
        self.status_write_count = 0
        self.failure_count = 0
        self._cluster = cluster
        self._settings = settings
        self._statuses: WorkQueue[PolicyKey] = WorkQueue("policies", on_error=self._failed)
        self._sharing, self._group = sharing, group
        self._written: dict[PolicyKey, tuple[float, Object]] = {}
        self._is_usage_told = False
        self.policies.on_change(self._changed)

    def proposals(
        self, entry: RevisionEntry, facts: ScalerView, pods: Mapping[tuple[str, str], Object]
    ) -> tuple[Proposal, ...]:
        """What the policy of a revision wants. ``pods`` are all Pods."""
        revision, scaler, at_s = entry.revision, entry.scaler, now_s()
        if revision is None or scaler is None:
            return ()

        def uses(name: str) -> tuple[ContainerUse, ...]:
            key = (revision.key[0], name)
            used = self.usages.used(key, at_s)
            pod = pods.get(key) if used else None
            return () if pod is None else container_uses(requests_of(pod["spec"].get("containers") or ()), used)

        def observe() -> ObservedPods:
            return observed_pods(
                present_scale=facts.present_scale,
                ready=entry.ready_names,
                troubles=entry.troubles.values(),
                pods=scaler.pods,
                uses=uses,
                occupied_concurrency=self._settings.triggers.occupied_concurrency,
            )

        return self.triggers.proposals(
            revision, observe, present_scale=facts.present_scale, now_s=at_s, wall_offset_s=wall_s() - at_s
        )

    def look_again(self) -> None:
        """Some policies are ours that were not: what was written by us last need not be there any more."""
        self._written.clear()
        self.triggers.look_again()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.policies.run(), name="autoscaler policies")
            group.create_task(self._statuses.run(1, self._tell), name="autoscaler policy status")
            group.create_task(self._look(), name="autoscaler usage")

    def _changed(self, change: CacheChange) -> None:
        policy = None if change.type is EventType.DELETED else policy_of(change.new)
        if policy is None:
            self._written.pop(change.key, None)
            self.triggers.drop_policy(change.key)
        else:
            is_ours = self._sharing.is_ours(self._group_of(policy.key[0], policy.target))
            self.triggers.take_policy(policy, is_ours=is_ours)

    def _news(self, key: PolicyKey) -> None:
        """Whether a target is there is known once each revision has been decided on."""
        is_followed = self.triggers.is_followed(key)
        self._statuses.add_after(key, _NEWS_LAG_S if is_followed else self._settings.decision_period_s + _NEWS_LAG_S)

    async def _tell(self, key: PolicyKey) -> float | None:
        """Write the status of a policy if it is time to; when to look again."""
        at_s, target = now_s(), self.triggers.target(key)
        group = None if target is None else self._group_of(key[0], target)
        if group is None or not self._sharing.is_ours(group):
            return None
        status = self.triggers.status(key, now_s=at_s, wall_offset_s=wall_s() - at_s, stamp=stamp)
        if status is None:
            return None
        written_s, written = self._written.get(key, (-math.inf, {}))
        if status == written:
            return None
        wait_s = written_s + _STATUS_PERIODS * self._settings.triggers.period_s - at_s
        if wait_s > 0 and status["conditions"] == written.get("conditions"):
            return wait_s
        try:
            with self._sharing.writing(group):
                await self._cluster.patch(SCALING_POLICY, *key, patch={"status": status}, subresource="status")
        except NotFound:
            return None
        self._written[key] = (at_s, status)
        self.status_write_count += 1
        return None

    def _group_of(self, namespace: str, target: TargetRef) -> Group:
        """What a policy's target belongs to; a Service's Configuration has its name."""
        key = (namespace, target.name)
        return self._group(key) if target.kind == _REVISION else key

    async def _look(self) -> None:
        """List what all pods use while a policy wants to know."""
        while True:
            if self.triggers.wants_usage:
                try:
                    listing = await self._cluster.list(POD_METRICS, label_selector=REVISION_LABEL)
                except ClusterError as error:
                    self._tell_unknown(error)
                else:
                    self.usages.take(listing.items, now_s())
                    self._is_usage_told = False
            await asyncio.sleep(self._settings.triggers.usage_period_s)

    def _tell_unknown(self, error: ClusterError) -> None:
        """Log once that usage is not measured; triggers then have no data and remove nothing."""
        self.failure_count += 1
        if not self._is_usage_told:
            _log.warning("usage.unknown", extra={"error": str(error)})
        self._is_usage_told = True

    def _failed(self, key: PolicyKey, error: Exception) -> None:
        self.failure_count += 1
        _log.warning("policy.status_failed", extra={"namespace": key[0], "policy": key[1], "error": str(error)})


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
