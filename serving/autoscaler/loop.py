"""The autoscaler at work: what watches and sources bring goes into one scaler a revision, what they decide is written.

Revisions are decided on each period, spread over it, and at once when a stat says so or when something about them has
changed. A decision takes no await; what it wants done waits in a queue of revisions, of which a few are worked on at a
time, each by one worker, always with the latest decision. On the way to zero the revision goes into reserve first, fenced
by the version that was seen: whoever wakes it meanwhile makes that a conflict, or finds it in reserve and wakes it. Only
then its scale is set. Nothing else is written, but which pods are idle when some must go.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from serving.aio.clock import now_s
from serving.autoscaler.client import ScaleClient
from serving.autoscaler.revision import (
    REVISION_LABEL,
    DeploymentFacts,
    PodFacts,
    RevisionFacts,
    RevisionKey,
    ServingState,
    deployment_of,
    is_older,
    pod_of,
    revision_of,
)
from serving.autoscaler.scaler import Cause, Outcome, Scaler, ScalerFacts, Source
from serving.autoscaler.story import Remembered, Story
from serving.autoscaler.victims import cost_changes
from serving.cluster.kinds import DEPLOYMENT, POD, REVISION
from serving.cluster.port import Cluster, EventType
from serving.cluster.reflector import CacheChange, Reflector
from serving.cluster.workqueue import WorkQueue, WorkQueueSettings
from serving.model.errors import ClusterError
from serving.model.stat import Stat
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["Autoscaler", "Counts"]

_log = logging.getLogger("autoscaler")

# Least time between two decisions about a revision: what comes in between is decided on together.
_PAUSE_MIN_S = 0.05
# Revisions that are written at once. A scale takes two calls; 50 patches a second come from each 8 ms of a server.
_WRITERS = 16
# A write that fails comes again with the next decision anyway.
_PATIENCE = WorkQueueSettings(retry_max_s=2.0)
_CRC_RANGE = 2**32


class Counts(msgspec.Struct, kw_only=True):
    """What happened since the start."""

    decisions: int = 0
    decision_failures: int = 0
    write_failures: int = 0
    proofs: int = 0
    proof_failures: int = 0
    unknown_stats: int = 0


class _Entry:
    """One revision: what is known of it, its scaler once all is known, its last decisions, and its next one's timer."""

    __slots__ = ("deployment", "latest", "proved_at_s", "ready_names", "revision", "scaler", "story", "timer")

    def __init__(self, decisions_max: int) -> None:
        self.revision: RevisionFacts | None = None
        self.deployment: DeploymentFacts | None = None
        self.ready_names: set[str] = set()
        self.scaler: Scaler | None = None
        self.proved_at_s: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.latest: Outcome | None = None
        self.story = Story(decisions_max)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that would have to be remembered."""
        return self.revision is None and self.deployment is None and not self.ready_names

    def facts(self) -> ScalerFacts | None:
        """What a decision has to know; None until all of it is there."""
        revision, deployment = self.revision, self.deployment
        if revision is None or deployment is None or deployment.revision_uid != revision.uid:
            return None
        return ScalerFacts(
            present_scale=deployment.replica_count,
            ready_count=len(self.ready_names),
            serving_state=revision.serving_state,
            proved_at_s=self.proved_at_s,
        )


class Autoscaler:
    """All revisions of a cluster. ``run`` it; ``record`` and ``decisions`` work at any time.

    ``prove`` asks whether the activator is in the path.
    """

    def __init__(self, cluster: Cluster, *, settings: AutoscalerSettings, prove: Callable[[], Awaitable[bool]]) -> None:
        self.counts = Counts()
        self._client = ScaleClient(cluster)
        self._settings = settings
        self._prove = prove
        self._entries: dict[RevisionKey, _Entry] = {}
        self._writes: WorkQueue[RevisionKey] = WorkQueue("autoscaler", settings=_PATIENCE, on_error=self._write_failed)
        self._is_synced = False
        revisions = Reflector(cluster, REVISION)
        deployments, self._pods = (
            Reflector(cluster, kind, label_selector=REVISION_LABEL) for kind in (DEPLOYMENT, POD)
        )
        revisions.on_change(self._revision_changed)
        deployments.on_change(self._deployment_changed)
        self._pods.on_change(self._pod_changed)
        self._reflectors = (revisions, deployments, self._pods)

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

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the cluster and decide, until ``stop`` is set."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run(), name=f"autoscaler {one.kind.plural}") for one in self._reflectors]
                begun = group.create_task(self._begin(), name="autoscaler begin")
                tasks += [begun, group.create_task(self._writes.run(_WRITERS, self._write), name="autoscaler writes")]
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            for entry in self._entries.values():
                _cancel(entry)

    def record(self, key: RevisionKey, stat: Stat, source: Source) -> None:
        """A stat, stamped with the time of its receipt; if it cannot wait, there is a decision at once."""
        entry = self._entries.get(key)
        if entry is None or entry.scaler is None:
            self.counts.unknown_stats += 1
        elif entry.scaler.record(stat, source):
            self._decide_soon(key, Cause.LOAD)

    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        counts = msgspec.structs.asdict(self.counts) | msgspec.structs.asdict(self._client.counts)
        return {"revisions": self.revision_count} | {f"{name}_total": value for name, value in counts.items()}

    def decisions(self, key: RevisionKey) -> list[Remembered]:
        """The last decisions about a revision, oldest first."""
        entry = self._entries.get(key)
        return entry.story.told() if entry else []

    async def _begin(self) -> None:
        """Decide for the first time, each revision at its place in the period."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self._is_synced = True
        for key, entry in self._entries.items():
            self._make_scaler(key, entry, is_restart=True)
        _log.info("autoscaler.synced", extra={"revisions": self.revision_count})

    def _make_scaler(self, key: RevisionKey, entry: _Entry, *, is_restart: bool) -> None:
        facts = entry.facts()
        if facts is None or entry.revision is None or entry.scaler is not None:
            return
        entry.scaler = Scaler(entry.revision, facts, self._settings, is_restart=is_restart, now_s=now_s())
        offset_ratio = zlib.crc32("/".join(key).encode()) / _CRC_RANGE
        due_s = now_s() + self._settings.decision_period_s * offset_ratio
        self._decide_at(key, entry, due_s=due_s, cause=Cause.PERIOD)

    # What the watches bring.

    def _revision_changed(self, change: CacheChange) -> None:
        key = change.key
        found = None if change.type is EventType.DELETED else revision_of(change.new, self._settings)
        entry = self._entry(key)
        if found is None or (entry.revision is not None and entry.revision.uid != found.uid):
            _cancel(entry)
            entry.revision, entry.scaler, entry.latest = None, None, None
        if found is None:
            self._writes.forget(key)
            self._drop_if_empty(key, entry)
        else:
            self._take_revision(key, entry, found)

    def _take_revision(self, key: RevisionKey, entry: _Entry, found: RevisionFacts) -> None:
        before = entry.revision
        if before is not None and is_older(found.resource_version, before.resource_version):
            return
        if before is not None and before.class_name != found.class_name:
            _cancel(entry)
            entry.scaler = None
        entry.revision = found
        if not self._is_synced:
            return
        if entry.scaler is None:
            self._make_scaler(key, entry, is_restart=before is not None)
        else:
            entry.scaler.follow(found, now_s())
            if before is None or (before.serving_state, before.spec) != (found.serving_state, found.spec):
                self._decide_soon(key, Cause.CHANGE)

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
            self._decide_soon(found.key, Cause.CHANGE)

    def _pod_changed(self, change: CacheChange) -> None:
        found = pod_of(change.new)
        if found is None:
            return
        entry = self._entry(found.key)
        was_ready = found.name in entry.ready_names
        is_gone = change.type is EventType.DELETED
        is_ready = found.is_ready and not is_gone
        if is_gone and entry.scaler is not None:
            entry.scaler.forget_pod(found.name, now_s())
        if is_ready == was_ready:
            self._drop_if_empty(found.key, entry)
            return
        (entry.ready_names.add if is_ready else entry.ready_names.discard)(found.name)
        self._decide_soon(found.key, Cause.CHANGE)
        self._drop_if_empty(found.key, entry)

    def _entry(self, key: RevisionKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self._settings.decisions_kept)
        return entry

    def _drop_if_empty(self, key: RevisionKey, entry: _Entry) -> None:
        if entry.is_empty:
            self._entries.pop(key, None)

    # Decisions.

    def _decide_soon(self, key: RevisionKey, cause: Cause) -> None:
        """Decide in this turn of the loop if the last decision is long enough ago, else as soon as it is."""
        entry = self._entries.get(key)
        if entry is None or entry.scaler is None:
            return
        due_s = now_s() if entry.latest is None else max(now_s(), entry.latest.at_s + _PAUSE_MIN_S)
        if entry.timer is None or entry.timer.when() > due_s:
            self._decide_at(key, entry, due_s=due_s, cause=cause)

    def _decide_at(self, key: RevisionKey, entry: _Entry, *, due_s: float, cause: Cause) -> None:
        _cancel(entry)
        entry.timer = asyncio.get_running_loop().call_at(due_s, self._decide, key, entry, cause)

    def _decide(self, key: RevisionKey, entry: _Entry, cause: Cause) -> None:
        """One decision. Whatever goes wrong, there is a next one."""
        entry.timer = None
        wait_s = self._settings.decision_period_s
        try:
            outcome = self._outcome(key, entry, cause)
            if outcome is not None and outcome.recheck_in_s is not None:
                wait_s = max(_PAUSE_MIN_S, min(wait_s, outcome.recheck_in_s))
        except Exception:  # noqa: BLE001 - the outermost frame of one decision
            self.counts.decision_failures += 1
            _log.exception("scale.undecided", extra={"namespace": key[0], "revision": key[1]})
        self._decide_at(key, entry, due_s=now_s() + wait_s, cause=Cause.PERIOD)

    def _outcome(self, key: RevisionKey, entry: _Entry, cause: Cause) -> Outcome | None:
        facts, scaler = entry.facts(), entry.scaler
        if facts is None or scaler is None:
            return None
        outcome = scaler.tick(facts, cause, now_s())
        self.counts.decisions += 1
        if entry.story.add(outcome):
            extra = {"namespace": key[0], "revision": key[1], "decision": msgspec.to_builtins(outcome)}
            _log.info("scale.decided", extra=extra)
        entry.latest = outcome
        if outcome.apply_count is not None or outcome.to_prove:
            self._writes.add(key)
        return outcome

    # Writes.

    async def _write(self, key: RevisionKey) -> float | None:
        """Do what the latest decision wants, if it wants anything still."""
        latest = self._latest(key)
        if latest is not None and latest.to_prove:
            await self._prove_path(key)
            latest = self._latest(key)
        entry = self._entries.get(key)
        if entry is None or latest is None or latest.apply_count is None:
            return None
        if not latest.to_reserve or await self._reserve(key, entry):
            await self._scale(key, entry, latest.apply_count)
        return None

    def _latest(self, key: RevisionKey) -> Outcome | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.latest

    def _is_wanted_still(self, key: RevisionKey, count: int) -> bool:
        """Whether the latest decision is for that scale; if not, it stands in the queue itself."""
        latest = self._latest(key)
        return latest is not None and latest.apply_count == count

    async def _prove_path(self, key: RevisionKey) -> None:
        """Ask whether the activator is in the path; if it is, decide on that at once."""
        if not await self._prove():
            self.counts.proof_failures += 1
            return
        self.counts.proofs += 1
        entry = self._entries.get(key)
        if entry is not None:
            entry.proved_at_s = now_s()
            self._outcome(key, entry, Cause.PROOF)

    async def _reserve(self, key: RevisionKey, entry: _Entry) -> bool:
        """Mark the revision as without pods; whether it is. Somebody who changed it meanwhile may have woken it."""
        revision = entry.revision
        if revision is None or revision.serving_state is not ServingState.ACTIVE:
            return revision is not None
        written, found = await self._client.reserve(revision)
        facts = None if found is None else revision_of(found, self._settings)
        if facts is not None and entry.revision is not None and entry.revision.uid == facts.uid:
            # What a call answered is known before the watch brings it.
            self._take_revision(key, entry, facts)
        if not written:
            self._decide_soon(key, Cause.CHANGE)
        return written

    async def _scale(self, key: RevisionKey, entry: _Entry, count: int) -> None:
        deployment = entry.deployment
        if deployment is None or entry.scaler is None:
            return
        victim_count = deployment.replica_count - count
        if count and victim_count > 0:
            costs = cost_changes(self._pods_of(key, entry), entry.scaler.pods, victim_count=victim_count)
            await self._client.mark(key[0], costs)
        # Each await is time for another decision.
        if deployment.replica_count == count or not self._is_wanted_still(key, count):
            return
        version = await self._client.scale(deployment, count)
        present = entry.deployment
        if version is not None and present is not None and not is_older(version, present.resource_version):
            entry.deployment = msgspec.structs.replace(present, replica_count=count, resource_version=version)

    def _pods_of(self, key: RevisionKey, entry: _Entry) -> Iterable[PodFacts]:
        for name in sorted(entry.ready_names):
            pod = self._pods.cache.get((key[0], name))
            facts = None if pod is None else pod_of(pod)
            if facts is not None:
                yield facts

    def _write_failed(self, key: RevisionKey, error: Exception) -> None:
        self.counts.write_failures += 1
        extra = {"namespace": key[0], "revision": key[1], "error": str(error)}
        if isinstance(error, ClusterError):
            _log.warning("scale.failed", extra=extra)
        else:
            _log.error("scale.failed", extra=extra, exc_info=error)


def _cancel(entry: _Entry) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
        entry.timer = None
