"""Connects watches, stats, scalers and writers to one autoscaler.

``RevisionWatch`` keeps the observed state, ``DecisionLoop`` decides and writes, ``PolicyClient`` follows
ScalingPolicies; this module connects them and receives stats.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import msgspec

from serving.autoscaler.decision_events import DecisionEvent
from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.io.decision_loop import DecisionLoop, Hold, no_limit
from serving.autoscaler.io.events import ScaleEventWriter
from serving.autoscaler.io.podsizes import PodSizes
from serving.autoscaler.io.policies import PolicyClient, UsageLearning
from serving.autoscaler.io.revision_watch import RevisionWatch
from serving.autoscaler.io.scale_writes import ScaleClient
from serving.autoscaler.io.sharing import Relay, Sharing
from serving.autoscaler.io.unreadypods import UnreadyPods
from serving.core.model.knative import RevisionKey
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import Schedule
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.revision import Group, ScaledPod, ScaledRevision, group_of
from serving.core.scaling.scaler.decision_history import HistoryEntry
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyRegistry
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.aio.cooperative import turn
from serving.net.aio.supervise import supervise
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange
from serving.net.wire.frames import AnnouncedPod

_log = logging.getLogger("autoscaler")

# Longest wait for ScalingPolicies before the first decisions, in seconds.
_POLICIES_WAIT_S = 5.0


class MemorySaving(enum.Enum):
    """How pods save memory: not at all, by in-place resizes, or by removing dormant pods in a memory shortage."""

    NONE = "none"
    RESIZE = "resize"
    REMOVE = "remove"


class Autoscaler:
    """The autoscaler of a cluster. Call ``run``; ``record`` and ``decisions`` may be called at any time.

    ``prove`` probes whether an activator responds. ``on_decision`` is called with each decision and must not
    block. ``events`` records pods that run out of memory. ``sharing`` selects the revisions that this autoscaler
    decides on; None: all. ``saving`` is how pods save memory. ``announce`` receives pods of workloads that have become
    ready.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        cluster: Cluster,
        *,
        settings: AutoscalerSettings,
        prove: Callable[[], Awaitable[bool]],
        on_decision: Callable[[DecisionEvent], None] | None = None,
        events: ScaleEventWriter | None = None,
        sharing: Sharing | None = None,
        registry: PolicyRegistry = BUILT_IN,
        saving: MemorySaving = MemorySaving.NONE,
        announce: Callable[[AnnouncedPod], None] = lambda _: None,
    ) -> None:
        self._announce = announce
        self._sharing = sharing or Sharing()
        self.relay = Relay(self._sharing, group=self.group)
        self._events = events
        self._watch = RevisionWatch(cluster, settings=settings, listener=self)
        self._policies = PolicyClient(
            cluster,
            settings,
            requests=self._watch.requests,
            sharing=self._sharing,
            group=self.group,
            learning=UsageLearning(is_urgent=self._watch.learns_target, record=self._watch.measured),
            on_new=self.end_rests,
        )
        self._sizes: PodSizes | None = None
        self._unready: UnreadyPods | None = None
        self._beside: list[tuple[str, Callable[[], Coroutine[object, object, None]]]] = []
        self._decisions = DecisionLoop(
            watch=self._watch,
            policies=self._policies,
            client=ScaleClient(cluster, events),
            sharing=self._sharing,
            settings=settings,
            registry=registry,
            prove=prove,
            on_decision=on_decision,
            hold=self._watch_memory() if saving is MemorySaving.REMOVE else no_limit,
        )
        if saving is MemorySaving.RESIZE:
            self._sizes = PodSizes(cluster, pod=self._watch.pod, used=self._policies.usages.used)
            # On a single machine the kubelet explains why its pods are not ready.
            self._unready = UnreadyPods(cluster)
        self.counts = self._decisions.counts
        self._is_synced = False

    @property
    def is_synced(self) -> bool:
        """Whether every watch has delivered its first list; no decision is made earlier."""
        return self._is_synced

    def end_rests(self) -> None:
        """Decide on all revisions within a decision period, also on idle ones, which are otherwise skipped.

        Called for a new policy, and for a new subscriber to decisions.
        """
        self._decisions.end_rests()

    def _watch_memory(self) -> Hold:
        """Start a watch of the machine's memory; return the object that limits revisions."""
        from serving.autoscaler.io.memorywatch import MemoryWatch  # noqa: PLC0415 - on one machine only

        watch = MemoryWatch(
            self._watch.entries,
            settings=lambda: self._decisions.settings.memory,
            on_change=lambda key: self._decisions.decide_soon(key, DecisionCause.CHANGE),
        )
        self._beside.append(("autoscaler memory", watch.run))
        return watch.shortage.allow

    def reconfigure(self, settings: AutoscalerSettings) -> None:
        """Use new settings for all further decisions."""
        self._decisions.reconfigure(settings)
        self._watch.reconfigure(settings)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the cluster and decide, until ``stop`` is set."""
        async with supervise() as group:
            tasks = [group.start(job, name=name) for name, job in (*self._watch.jobs(), *self._decisions.jobs())]
            tasks += [
                group.start(self._begin(), name="autoscaler begin"),
                group.start(self._policies.run(), name="autoscaler policies"),
            ]
            tasks += [group.start(job(), name=name) for name, job in self._beside]
            await stop.wait()
            for task in tasks:
                task.cancel()
            if self._sizes is not None:
                await self._sizes.end()
            if self._unready is not None:
                await self._unready.end()

    def won(self, shard: int) -> None:
        """Take over a shard: decide on its revisions, as after a restart."""
        for key, entry in self._watch.entries.items():
            if self._is_synced and self._sharing.is_in(group_of(key, entry.revision), shard):
                self._decisions.start(key, entry, is_restart=True)
        self._policies.recheck_all()

    async def lost(self, shard: int) -> None:
        """Release a shard; return once no write for it is in flight."""
        for key, entry in self._watch.entries.items():
            if self._sharing.is_in(group_of(key, entry.revision), shard):
                entry.scaler, entry.latest = None, None
                self._decisions.stop(key)
        await self._sharing.settled(shard)

    def group(self, key: RevisionKey) -> Group:
        """The group of a revision: its Configuration, or the revision itself if unknown."""
        entry = self._watch.entries.get(key)
        return group_of(key, None if entry is None else entry.revision)

    def record(self, key: RevisionKey, stat: Stat, source: StatSource, *, is_relayed: bool = False) -> None:
        """Store a stat with the time of its receipt; an urgent one triggers an immediate decision.

        If another autoscaler owns the revision, the stat is relayed to it, except a stat that was itself relayed.
        """
        if not is_relayed and self.relay.pass_on(key, stat, source):
            return
        entry = self._watch.entries.get(key)
        if entry is None or entry.scaler is None:
            self._decisions.counts.unknown_stats += 1
            return
        if stat.is_dormant and stat.pod not in entry.pod_states:
            # Nothing reports the end of a deleted pod, so that its report must expire.
            stat = msgspec.structs.replace(stat, is_dormant=False)
        if self._sizes is not None and source is StatSource.POD:
            self._sizes.update((key[0], stat.pod), stat, is_ready=stat.pod in entry.ready_names)
        if self._unready is not None and source is StatSource.POD:
            self._unready.update((key[0], stat.pod), stat.unready)
        if entry.scaler.record(stat, source) or (
            source is StatSource.POD
            and self._policies.triggers.process_report(key, stat.pod, concurrency=stat.concurrency)
        ):
            self._decisions.decide_soon(key, DecisionCause.LOAD)
        elif entry.is_resting and not stat.is_idle:
            self._decisions.end_rest(key, entry)

    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        counts = self._decisions.numbers()
        counts |= {"policy_status_writes": self._policies.status_write_count}
        counts |= {"policy_failures": self._policies.failure_count}
        if self._sizes is not None:
            counts |= {"pod_resizes": self._sizes.write_count, "pod_resizes_refused": self._sizes.refused_count}
        gauges = {"revisions": self._watch.scaled_count, "policies": self._policies.triggers.policy_count}
        return gauges | {f"{name}_total": value for name, value in counts.items()}

    @property
    def keys(self) -> list[RevisionKey]:
        """All known revisions that this autoscaler decides about."""
        return sorted(key for key in self._watch.entries if self._sharing.is_ours(self.group(key)))

    def decisions(self, key: RevisionKey) -> list[HistoryEntry]:
        """The last decisions about a revision, oldest first."""
        entry = self._watch.entries.get(key)
        return entry.history.entries() if entry else []

    def entry(self, key: RevisionKey) -> RevisionEntry | None:
        """The entry of a revision; None if it is not watched."""
        return self._watch.entries.get(key)

    def pod(self, namespace: str, name: str) -> Object | None:
        """The last observed state of a revision's pod; None if it is unknown."""
        return self._watch.pod(namespace, name)

    async def _begin(self) -> None:
        """Make the first decisions, spread over the period."""
        await self._watch.synced()
        try:
            async with asyncio.timeout(_POLICIES_WAIT_S):
                await self._policies.policies.synced.wait()
        except TimeoutError:
            # Decisions must not need the ScalingPolicy CRD, or the right to read it.
            _log.warning("policies.unknown")
        self._is_synced = True
        self._decisions.count_pods()
        for key, entry in list(self._watch.entries.items()):
            if self._watch.entries.get(key) is entry:
                self._decisions.start(key, entry, is_restart=True)
            await turn()
        _log.info("autoscaler.synced", extra={"revisions": self._watch.scaled_count})

    # Callbacks of the watch.

    def complete(self, key: RevisionKey, entry: RevisionEntry, *, is_restart: bool) -> None:
        """Start decisions if their inputs are complete."""
        if self._is_synced:
            self._decisions.start(key, entry, is_restart=is_restart)

    def changed(self, key: RevisionKey) -> None:
        """Schedule a decision. Called when an input of the revision's decisions has changed."""
        self._decisions.decide_soon(key, DecisionCause.CHANGE)

    def schedules_changed(self, change: CacheChange, schedules: Sequence[Schedule]) -> None:
        """Store the schedules of a workload."""
        self._policies.set_schedules(change, schedules)

    def pod_ready(self, announced: AnnouncedPod) -> None:
        """Announce a pod of a workload that this autoscaler decides about."""
        entry = self._watch.entries.get((announced.namespace, announced.revision))
        if entry is not None and entry.scaler is not None:
            self._announce(announced)

    def pod_gone(self, key: RevisionKey, name: str) -> None:
        """Drop a deleted pod of a revision."""
        self._policies.triggers.forget_pod(key, name)
        if self._sizes is not None:
            self._sizes.forget((key[0], name))
        if self._unready is not None:
            self._unready.forget((key[0], name))

    def pod_killed(self, revision: ScaledRevision, pod: ScaledPod) -> None:
        """Report the OOM kill of a container of a revision's pod."""
        if self._events is not None:
            self._events.add_kill(revision, pod)

    def stopped(self, key: RevisionKey) -> None:
        """Stop deciding about a revision."""
        self._decisions.stop(key)

    def gone(self, revision: ScaledRevision) -> None:
        """Drop a deleted revision."""
        if self._events is not None:
            self._events.forget(revision)
