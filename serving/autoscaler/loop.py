"""The autoscaler at work: what watches and sources bring goes into one scaler a revision, what they decide is written.

Revisions are decided on each period, spread over it, and at once when a stat says so or when something about them has
changed: two queues of revisions, so that an urgent decision never waits behind thousands of periodic ones. A decision
takes no await; what it wants done waits in a third queue, of which a few are worked on at a time, each by one worker,
always with the latest decision (``writer``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from serving.aio.clock import now_s, wall_s
from serving.aio.cooperative import turn
from serving.autoscaler.client import PolicyClient, ScaleClient
from serving.autoscaler.counts import DecisionCounts
from serving.autoscaler.decision_events import DecisionEvent
from serving.autoscaler.decision_history import HistoryEntry
from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.path import PUBLIC_SLICES, public_slice_of
from serving.autoscaler.revision import (
    ScaledPod,
    ScaledRevision,
    deployment_of,
    is_older,
    pod_of,
    revision_of,
    turn_ratio,
)
from serving.autoscaler.scaler import DecisionCause, Scaler, ScalerOutcome, StatSource
from serving.autoscaler.sharing.client import Sharing
from serving.autoscaler.sharing.groups import Group, group_of
from serving.autoscaler.usage import requests_of
from serving.autoscaler.writer import Writer
from serving.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD, REVISION
from serving.cluster.port import Cluster, EventType, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.cluster.workqueue import WorkQueue, WorkQueueSettings
from serving.model.errors import ClusterError
from serving.model.knative import REVISION_LABEL, RevisionKey
from serving.model.resources import Resources
from serving.model.revisionnumbers import PodCounts
from serving.model.stat import Stat
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["Autoscaler"]

_log = logging.getLogger("autoscaler")

# Least time between two decisions about a revision: what comes in between is decided on together.
_PAUSE_MIN_S = 0.05
# Revisions that are written at once. A scale takes two calls; 50 patches a second come from each 8 ms of a server.
_WRITERS = 16
# Longest wait for ScalingPolicies before the first decisions are made without.
_POLICIES_WAIT_S = 5.0
# A write that fails comes again with the next decision anyway.
_PATIENCE = WorkQueueSettings(retry_max_s=2.0)


class Autoscaler:
    """All revisions of a cluster. ``run`` it; ``record`` and ``decisions`` work at any time.

    ``prove`` asks whether the activator is in the path; ``on_decision`` gets each decision and ``on_gone`` each deleted
    revision, and neither may wait. ``sharing`` says which revisions this autoscaler decides on; None: all of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: AutoscalerSettings,
        prove: Callable[[], Awaitable[bool]],
        on_decision: Callable[[DecisionEvent], None] | None = None,
        on_gone: Callable[[ScaledRevision], None] | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.counts = DecisionCounts()
        self._sharing = sharing or Sharing()
        self._client = ScaleClient(cluster)
        self._settings = settings
        self._on_decision, self._on_gone = on_decision, on_gone
        self._entries: dict[RevisionKey, RevisionEntry] = {}
        self._writes: WorkQueue[RevisionKey] = WorkQueue("autoscaler", settings=_PATIENCE, on_error=self._write_failed)
        self._soon: WorkQueue[RevisionKey] = WorkQueue("autoscaler soon")
        self._periodic: WorkQueue[RevisionKey] = WorkQueue("autoscaler periodic")
        self._writer = Writer(self._client, self, self._entries, prove=prove, settings=settings)
        self._policies = PolicyClient(
            cluster, settings, requests=self._requests, sharing=self._sharing, group=self.group
        )
        self._is_synced = False
        revisions = Reflector(cluster, REVISION)
        deployments, self._pods = (
            Reflector(cluster, kind, label_selector=REVISION_LABEL) for kind in (DEPLOYMENT, POD)
        )
        revisions.on_change(self._revision_changed)
        deployments.on_change(self._deployment_changed)
        self._pods.on_change(self._pod_changed)
        slices = Reflector(cluster, ENDPOINT_SLICE, label_selector=PUBLIC_SLICES)
        slices.on_change(self._slice_changed)
        self._revisions = revisions
        self._reflectors = (revisions, deployments, self._pods, slices)

    def __repr__(self) -> str:
        state = "synced" if self._is_synced else "not synced"
        return f"Autoscaler({len(self._entries)} revisions, {state}, {self._writes})"

    @property
    def is_synced(self) -> bool:
        """Whether all that there is has been seen once; before that nothing is decided."""
        return self._is_synced

    @property
    def revision_count(self) -> int:
        """Revisions that are scaled."""
        return sum(entry.scaler is not None for entry in self._entries.values())

    def reconfigure(self, settings: AutoscalerSettings) -> None:
        """Decide with these settings from now on."""
        self._settings = self._writer.settings = settings
        self._revisions.tell_again()

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the cluster and decide, until ``stop`` is set."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run(), name=f"autoscaler {one.kind.plural}") for one in self._reflectors]
            tasks += [
                group.create_task(self._begin(), name="autoscaler begin"),
                group.create_task(self._policies.run(), name="autoscaler policies"),
                group.create_task(self._soon.run(1, self._decide_now), name="autoscaler soon"),
                group.create_task(self._periodic.run(1, self._decide), name="autoscaler periodic"),
                group.create_task(self._writes.run(_WRITERS, self._write), name="autoscaler writes"),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()

    def won(self, shard: int) -> None:
        """A shard is ours: its revisions are decided on, as after a restart."""
        for key, entry in self._entries.items():
            if self._is_synced and self._sharing.is_in(group_of(key, entry.revision), shard):
                self._make_scaler(key, entry, is_restart=True)
        self._policies.look_again()

    async def lost(self, shard: int) -> None:
        """A shard is not ours any more. Returns when nothing that was to be written about it is on its way."""
        for key, entry in self._entries.items():
            if self._sharing.is_in(group_of(key, entry.revision), shard):
                self._stop(key, entry)
        await self._sharing.settled(shard)

    def group(self, key: RevisionKey) -> Group:
        """What a revision belongs to; one that is not known stands alone."""
        entry = self._entries.get(key)
        return group_of(key, None if entry is None else entry.revision)

    def record(self, key: RevisionKey, stat: Stat, source: StatSource) -> None:
        """A stat, stamped with the time of its receipt; if it cannot wait, there is a decision at once."""
        entry = self._entries.get(key)
        if entry is None or entry.scaler is None:
            self.counts.unknown_stats += 1
        elif entry.scaler.record(stat, source) or (
            source is StatSource.POD and self._policies.triggers.hear(key, stat.pod, concurrency=stat.concurrency)
        ):
            self.decide_soon(key, DecisionCause.LOAD)

    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        counts = msgspec.structs.asdict(self.counts) | msgspec.structs.asdict(self._client.counts)
        counts |= {"proofs": self._writer.proof_count, "proof_failures": self._writer.proof_failure_count}
        counts |= {"policy_status_writes": self._policies.status_write_count}
        counts |= {"policy_failures": self._policies.failure_count}
        gauges = {"revisions": self.revision_count, "policies": self._policies.triggers.policy_count}
        return gauges | {f"{name}_total": value for name, value in counts.items()}

    @property
    def keys(self) -> list[RevisionKey]:
        """All known revisions that this autoscaler decides on."""
        return sorted(key for key in self._entries if self._sharing.is_ours(self.group(key)))

    def decisions(self, key: RevisionKey) -> list[HistoryEntry]:
        """The last decisions about a revision, oldest first."""
        entry = self._entries.get(key)
        return entry.history.entries() if entry else []

    def pod_counts(self, key: RevisionKey) -> PodCounts:
        """How many pods of a revision are not ready, and why."""
        entry = self._entries.get(key)
        return PodCounts() if entry is None else entry.pod_states.counts()

    def pod(self, namespace: str, name: str) -> Object | None:
        """A pod of a revision as it was seen last."""
        return self._pods.cache.get((namespace, name))

    async def _begin(self) -> None:
        """Decide for the first time, each revision at its place in the period."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        try:
            async with asyncio.timeout(_POLICIES_WAIT_S):
                await self._policies.policies.synced.wait()
        except TimeoutError:
            # A cluster without the definition, or without the right to read it, still has requests to decide on.
            _log.warning("policies.unknown")
        self._is_synced = True
        for key, entry in list(self._entries.items()):
            if self._entries.get(key) is entry:
                self._make_scaler(key, entry, is_restart=True)
            await turn()
        _log.info("autoscaler.synced", extra={"revisions": self.revision_count})

    def _make_scaler(self, key: RevisionKey, entry: RevisionEntry, *, is_restart: bool) -> None:
        facts = entry.facts()
        if facts is None or entry.revision is None or entry.scaler is not None:
            return
        if not self._sharing.is_ours(group_of(key, entry.revision)):
            return
        entry.scaler = Scaler(entry.revision, facts, self._settings, is_restart=is_restart, now_s=now_s())
        self._periodic.add_after(key, self._settings.decision_period_s * turn_ratio(key))

    # What the watches bring.

    def _revision_changed(self, change: CacheChange) -> None:
        key = change.key
        found = None if change.type is EventType.DELETED else revision_of(change.new, self._settings)
        entry = self._entry(key)
        if found is None or (entry.revision is not None and entry.revision.uid != found.uid):
            self._stop(key, entry)
            if entry.revision is not None and self._on_gone is not None:
                self._on_gone(entry.revision)
            entry.revision = None
        if found is None:
            self._drop_if_empty(key, entry)
        else:
            self.take_revision(key, entry, found)

    def take_revision(self, key: RevisionKey, entry: RevisionEntry, found: ScaledRevision) -> None:
        """A revision as it is now, by a watch or by the answer to a call."""
        before = entry.revision
        if before is not None and is_older(found.resource_version, before.resource_version):
            return
        if before is not None and before.class_name != found.class_name:
            entry.scaler = None
        entry.revision = found
        if not self._is_synced:
            return
        if entry.scaler is None:
            self._make_scaler(key, entry, is_restart=before is not None)
        else:
            entry.scaler.follow(found, now_s())
            if before is None or (before.serving_state, before.spec) != (found.serving_state, found.spec):
                self.decide_soon(key, DecisionCause.CHANGE)

    def _deployment_changed(self, change: CacheChange) -> None:
        found = deployment_of(change.new)
        if found is None:
            return
        entry = self._entry(found.key)
        if change.type is EventType.DELETED:
            if entry.deployment is not None and entry.deployment.name == found.name:
                entry.deployment = None
                self._drop_if_empty(found.key, entry)
            return
        if entry.deployment is not None and is_older(found.resource_version, entry.deployment.resource_version):
            return
        before, entry.deployment = entry.deployment, found
        if self._is_synced and entry.scaler is None:
            self._make_scaler(found.key, entry, is_restart=False)
        elif before is None or before.replica_count != found.replica_count:
            self.decide_soon(found.key, DecisionCause.CHANGE)

    def _pod_changed(self, change: CacheChange) -> None:
        found = pod_of(change.new)
        if found is None:
            return
        entry = self._entry(found.key)
        was_ready = found.name in entry.ready_names
        is_gone = change.type is EventType.DELETED
        is_ready = found.is_ready and not is_gone
        entry.take_pod(found, is_gone=is_gone)
        if is_gone and entry.scaler is not None:
            entry.scaler.forget_pod(found.name, now_s())
            self._policies.triggers.forget_pod(found.key, found.name)
        if is_ready == was_ready:
            self._drop_if_empty(found.key, entry)
            return
        (entry.ready_names.add if is_ready else entry.ready_names.discard)(found.name)
        self.decide_soon(found.key, DecisionCause.CHANGE)
        self._drop_if_empty(found.key, entry)

    def _slice_changed(self, change: CacheChange) -> None:
        found = public_slice_of(change.new)
        if found is None:
            return
        entry = self._entry(found.key)
        if entry.public.take(found, now_s(), is_gone=change.type is EventType.DELETED):
            self.decide_soon(found.key, DecisionCause.CHANGE)
        self._drop_if_empty(found.key, entry)

    def _entry(self, key: RevisionKey) -> RevisionEntry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = RevisionEntry(self._settings.decisions_kept)
        return entry

    def _stop(self, key: RevisionKey, entry: RevisionEntry) -> None:
        """Decide no more about a revision."""
        entry.scaler, entry.latest = None, None
        for queue in (self._soon, self._periodic, self._writes):
            queue.forget(key)
        self._policies.triggers.forget(key)

    def _drop_if_empty(self, key: RevisionKey, entry: RevisionEntry) -> None:
        if entry.is_empty:
            self._entries.pop(key, None)

    # Decisions.

    def decide_soon(self, key: RevisionKey, cause: DecisionCause) -> None:
        """Decide in this turn of the loop if the last decision is long enough ago, else as soon as it is."""
        entry = self._entries.get(key)
        if entry is None or entry.scaler is None:
            return
        entry.cause = entry.cause or cause
        self._soon.add_after(key, 0.0 if entry.latest is None else entry.latest.at_s + _PAUSE_MIN_S - now_s())

    async def _decide_now(self, key: RevisionKey) -> None:
        """Decide at once and restart the period."""
        self._periodic.forget(key)
        if (wait_s := await self._decide(key)) is not None:
            self._periodic.add_after(key, wait_s)

    async def _decide(self, key: RevisionKey) -> float | None:
        """Decide once and return the delay until the next decision, even on failure."""
        entry = self._entries.get(key)
        if entry is None or entry.scaler is None:
            return None
        self._soon.forget(key)
        cause, entry.cause = entry.cause or DecisionCause.PERIOD, None
        wait_s = self._settings.decision_period_s
        try:
            outcome = self._outcome(key, entry, cause)
            recheck_s = None if outcome is None else outcome.recheck_in_s
            wishes_s = (recheck_s, self._policies.triggers.due_in_s(key, now_s()))
            wait_s = max(_PAUSE_MIN_S, min((wait_s, *(wish_s for wish_s in wishes_s if wish_s is not None))))
        except Exception:  # noqa: BLE001 - the outermost frame of one decision
            self.counts.decision_failures += 1
            _log.exception("scale.undecided", extra={"namespace": key[0], "revision": key[1]})
        return wait_s

    def _outcome(self, key: RevisionKey, entry: RevisionEntry, cause: DecisionCause) -> ScalerOutcome | None:
        facts, scaler = entry.facts(), entry.scaler
        if facts is None or scaler is None or not self._sharing.is_ours(group_of(key, entry.revision)):
            return None
        proposals = self._policies.proposals(entry, facts, self._pods.cache)
        outcome = scaler.tick(facts, cause, now_s(), proposals=proposals)
        self.counts.decisions += 1
        at_wall_s = wall_s()
        remembered = entry.history.add(outcome, at_wall_s=at_wall_s)
        if entry.revision is not None and self._on_decision is not None:
            self._on_decision(
                DecisionEvent(
                    revision=entry.revision, scaler=scaler, outcome=outcome, entry=remembered, at_wall_s=at_wall_s
                )
            )
        entry.latest = outcome
        if outcome.apply_count is not None or outcome.to_prove or outcome.path is not facts.path:
            self._writes.add(key)
        return outcome

    def _requests(self, key: RevisionKey) -> dict[str, Resources]:
        """What the containers of a revision request."""
        found = self._revisions.cache.get(key)
        return {} if found is None else requests_of((found.get("spec") or {}).get("containers") or ())

    # For the writer.

    async def _write(self, key: RevisionKey) -> float | None:
        with self._sharing.writing(self.group(key)):
            return await self._writer.write(key)

    def proved(self, key: RevisionKey) -> None:
        """The activator is in the path: decide on that at once."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.proved_at_s = now_s()
            self._outcome(key, entry, DecisionCause.PROOF)

    def pods_of(self, key: RevisionKey, entry: RevisionEntry) -> Iterable[ScaledPod]:
        """The ready pods of a revision."""
        return entry.ready_pods(key[0], self._pods.cache)

    def _write_failed(self, key: RevisionKey, error: Exception) -> None:
        self.counts.write_failures += 1
        extra = {"namespace": key[0], "revision": key[1], "error": str(error)}
        if isinstance(error, ClusterError):
            _log.warning("scale.failed", extra=extra)
        else:
            _log.error("scale.failed", extra=extra, exc_info=error)
