"""Watches ScalingPolicies, writes their status, and lists the usage of pods."""

import logging
import math
from collections.abc import Callable, Sequence

import msgspec

from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.io.sharing import Sharing
from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.knative import (
    REVISION_LABEL,
    RevisionKey,
)
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.policies.engine import Requests, Triggers
from serving.core.scaling.policies.index import (
    PolicyKey,
    ScalingPolicyView,
    is_of_workload,
    policy_name_of,
    policy_of,
    schedules_as_policy,
)
from serving.core.scaling.policies.scalingpolicy import TargetRef
from serving.core.scaling.policies.triggertypes import ContainerUse, ObservedPods
from serving.core.scaling.policies.usage import Usages, container_uses, observed_pods, requests_of
from serving.core.scaling.revision import Group
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import POD_METRICS, SCALING_POLICY
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.schedules import schedule_problems, schedule_state
from serving.net.cluster.workqueue import WorkQueue

_log = logging.getLogger("autoscaler")

_REVISION = "Revision"
# metrics-server's measuring period, in seconds.
_MEASURED_PERIOD_S = 15.0
# Changes within this time are written together, in seconds.
_CHANGE_LAG_S = 0.1
# Shortest time between two writes of one status, in evaluation periods; slightly below one, so that no evaluation is
# skipped.
_STATUS_PERIODS = 0.9


class UsageLearning(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver of usage measurements. ``record`` gets the measured usage and the time of the measurement.

    ``is_urgent`` returns whether decisions depend on usage now; usage is then measured more often.
    """

    is_urgent: Callable[[], bool]
    record: Callable[[Usages, float], None]


class PolicyClient:
    """Watches ScalingPolicies, writes their status, and reads the usage of pods. The caller runs it.

    ``triggers`` evaluates the policies. ``on_new`` is called for each new policy and each new generation of a policy. A
    status whose policy begins or stops to apply is written immediately, others once a period.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        cluster: Cluster,
        settings: AutoscalerSettings,
        *,
        requests: Requests,
        sharing: Sharing,
        group: Callable[[RevisionKey], Group],
        learning: UsageLearning,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        self.triggers = Triggers(
            settings.triggers, requests=requests, on_change=self._queue_status, state_at=schedule_state
        )
        self.usages = Usages()
        self.policies = Reflector(cluster, SCALING_POLICY, on_change=self._changed)
        self.status_write_count = 0
        self.failure_count = 0
        self._cluster = cluster
        self._settings = settings
        self._statuses: WorkQueue[PolicyKey] = WorkQueue("policies", on_error=self._failed)
        self._sharing = sharing
        self._group = group
        self._written: dict[PolicyKey, tuple[float, Object]] = {}
        self._is_failure_logged = False
        self._learning = learning
        self._on_new = on_new

    def proposals(
        self, entry: RevisionEntry, facts: ScalerView, pod_of: Callable[[str, str], Object | None]
    ) -> tuple[Proposal, ...]:
        """The proposals of a revision's policy. ``pod_of`` returns a Pod by namespace and name."""
        revision, scaler, at_s = entry.revision, entry.scaler, now_s()
        if revision is None or scaler is None:
            return ()

        def uses(name: str) -> tuple[ContainerUse, ...]:
            key = (revision.key[0], name)
            used = self.usages.used(key, at_s)
            pod = pod_of(*key) if used else None
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

    def recheck_all(self) -> None:
        """Evaluate and write all statuses again. Called when policies have moved to this autoscaler."""
        self._written.clear()
        self.triggers.recheck_all()

    async def run(self) -> None:
        """Run until cancelled."""
        async with supervise() as group:
            group.start(self.policies.run(), name="autoscaler policies")
            group.start(self._statuses.run(1, self._write_status), name="autoscaler policy status")
            group.start(self._poll_usage(), name="autoscaler usage")

    def set_schedules(self, change: CacheChange, schedules: Sequence[Schedule]) -> None:
        """Treat a ScaledWorkload's schedules as a policy; its condition ScalingValid reports their problems."""
        policy = policy_of(schedules_as_policy(change.new, schedules), schedule_problems) if schedules else None
        key = (change.key[0], policy_name_of(change.key[1]))
        if policy is not None or self.triggers.target(key) is not None:
            self._set_policy(change, key, policy)

    def _changed(self, change: CacheChange) -> None:
        policy = None if change.type is EventType.DELETED else policy_of(change.new, schedule_problems)
        self._set_policy(change, change.key, policy)

    def _set_policy(self, change: CacheChange, key: PolicyKey, policy: ScalingPolicyView | None) -> None:
        if policy is None:
            self._written.pop(key, None)
            self.triggers.drop_policy(key)
        else:
            is_ours = self._sharing.is_ours(self._group_of(policy.key[0], policy.target))
            self.triggers.set_policy(policy, is_ours=is_ours)
            if change.old is None or change.old["metadata"].get("generation") != policy.generation:
                self._on_new()

    def _queue_status(self, key: PolicyKey) -> None:
        """Queue a status write: soon, or after a decision period for a policy that no revision follows yet."""
        if is_of_workload(key[1]):
            return
        is_followed = self.triggers.is_followed(key)
        self._statuses.add_after(
            key, _CHANGE_LAG_S if is_followed else self._settings.decision_period_s + _CHANGE_LAG_S
        )

    async def _write_status(self, key: PolicyKey) -> float | None:
        """Write a policy's status if it has changed and a write is due.

        Return the seconds until a write is due, None if no write is pending.
        """
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
        """The group of a policy's target; a Service's Configuration has the Service's name."""
        key = (namespace, target.name)
        return self._group(key) if target.kind == _REVISION else key

    async def _poll_usage(self) -> None:
        """List the usage of all pods repeatedly.

        The list is frequent while a policy or learnt target needs usage, and otherwise once per measuring period.
        """
        due_s = -math.inf
        while True:
            if self.triggers.wants_usage or self._learning.is_urgent() or now_s() >= due_s:
                due_s = now_s() + _MEASURED_PERIOD_S
                try:
                    listing = await self._cluster.list(POD_METRICS, label_selector=REVISION_LABEL)
                except ClusterError as error:
                    self._log_unmeasured(error)
                else:
                    at_s = now_s()
                    self.usages.replace(listing.items, at_s)
                    self._learning.record(self.usages, at_s)
                    self._is_failure_logged = False
            await next_beat(self._settings.triggers.usage_period_s)

    def _log_unmeasured(self, error: ClusterError) -> None:
        """Log once that usage is not measured.

        Triggers on usage then have no data, and targets are learnt from response times only.
        """
        # No failure if no policy needs usage.
        self.failure_count += self.triggers.wants_usage
        if not self._is_failure_logged:
            _log.warning("usage.unknown", extra={"error": str(error)})
        self._is_failure_logged = True

    def _failed(self, key: PolicyKey, error: Exception) -> None:
        self.failure_count += 1
        _log.warning("policy.status_failed", extra={"namespace": key[0], "policy": key[1], "error": str(error)})
