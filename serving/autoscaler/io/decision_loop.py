"""Schedules decisions and scale writes for each revision.

Each revision gets one decision per period, and an immediate one after an urgent stat or a change. Periodic decisions
are spread over the period. Two queues separate urgent decisions from thousands of periodic ones. A decision never
awaits. Its writes are in a third queue, which a few workers process. Each worker writes the latest decision of one
revision (``writer``).
"""

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from serving.autoscaler.decision_events import DecisionEvent
from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.io.policies import PolicyClient
from serving.autoscaler.io.revision_watch import RevisionWatch
from serving.autoscaler.io.scale_writes import ScaleClient
from serving.autoscaler.io.sharing import Sharing
from serving.autoscaler.writer import (
    Learned,
    PathProved,
    ReserveRefused,
    RevisionWritten,
    ScaleWritten,
    Writer,
    WriteView,
    cost_changes,
)
from serving.core.model.errors import ClusterError, InvalidValue
from serving.core.model.knative import (
    ANTICIPATED_PODS_ANNOTATION,
    CONTESTED_ANNOTATION,
    LEARNT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    POLICY_FAILURE_ANNOTATION,
    SAVINGS_ANNOTATION,
    SHORTAGE_ANNOTATION,
    RevisionKey,
)
from serving.core.model.objects import is_older_version
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.budget import Allowance, BudgetBook, BudgetDemand
from serving.core.scaling.decision.budgeted import shortage_of
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.revision import group_of, turn_ratio
from serving.core.scaling.scaler.anticipation import Publication
from serving.core.scaling.scaler.registry import PolicyRegistry
from serving.core.scaling.scaler.rest import DECISION_PAUSE_S, rest_in_s
from serving.core.scaling.scaler.scaler import Scaler
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.budgets import read_budgets
from serving.net.aio.clock import now_s, wall_s
from serving.net.cluster.workqueue import WorkQueue, WorkQueueSettings

_log = logging.getLogger("autoscaler")

Hold = Callable[[RevisionKey, BudgetDemand], Allowance | None]
# Revisions written in parallel. A scale takes two calls; at 8 ms per server call that gives 50 patches a second.
_WRITERS = 16
# How often pods of other autoscalers' revisions are counted, in seconds.
_OTHERS_COUNTED_S = 1.0
# How long learnt state waits for a write that moves its revision to Reserve, in seconds: longer than most windows.
_SAVE_LAG_S = 90.0
# The next decision repeats a failed write anyway.
_PATIENCE = WorkQueueSettings(retry_max_s=2.0)


class DecisionCounts(msgspec.Struct, kw_only=True):
    """Counts since the start of the process. ``unknown_stats`` are stats of revisions that are not scaled here."""

    decisions: int = 0
    decision_failures: int = 0
    write_failures: int = 0
    unknown_stats: int = 0


def no_limit(_key: RevisionKey, _demand: BudgetDemand) -> None:
    """Apply no limit to a revision."""


class DecisionLoop:
    """Decides about the entries of a watch, and writes the decisions. The caller runs ``jobs``.

    ``hold`` returns the number of pods that the machine's memory allows a revision; None: no limit.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        *,
        watch: RevisionWatch,
        policies: PolicyClient,
        client: ScaleClient,
        sharing: Sharing,
        settings: AutoscalerSettings,
        registry: PolicyRegistry,
        prove: Callable[[], Awaitable[bool]],
        on_decision: Callable[[DecisionEvent], None] | None,
        hold: Hold = no_limit,
    ) -> None:
        self.counts = DecisionCounts()
        self.settings = settings
        self._book = BudgetBook(read_budgets(settings.budget))
        self._hold = hold
        self._others_counted_s = -math.inf
        self._watch = watch
        self._policies = policies
        self._sharing = sharing
        self._client = client
        self._registry = registry
        self._prior = GapPrior(SHIPPED_PRIOR)
        # The pods of shadows must not use the budget of real ones.
        self._budget, self._shadow_budget = (PreWarmBudget(settings.adaptive.pre_warming_per_minute) for _ in range(2))
        self._on_decision = on_decision
        self._writes: WorkQueue[RevisionKey] = WorkQueue("autoscaler", settings=_PATIENCE, on_error=self._write_failed)
        self._saves: WorkQueue[RevisionKey] = WorkQueue(
            "autoscaler saves", settings=_PATIENCE, on_error=self._write_failed
        )
        self._notes: dict[RevisionKey, dict[str, str | None]] = {}
        self._soon: WorkQueue[RevisionKey] = WorkQueue("autoscaler soon")
        self._periodic: WorkQueue[RevisionKey] = WorkQueue("autoscaler periodic")
        self._writer = Writer(client, view=self._view, costs=self._costs, learn=self._learn, prove=prove)

    def jobs(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """The tasks of the loop: names, and coroutines that run until cancelled."""
        yield "autoscaler soon", self._soon.run(1, self._decide_now)
        yield "autoscaler periodic", self._periodic.run(1, self._decide)
        yield "autoscaler saves", self._saves.run(1, self._save)
        yield "autoscaler writes", self._writes.run(_WRITERS, self._write)

    def numbers(self) -> dict[str, int]:
        """Counts by name, for metrics."""
        counts = msgspec.structs.asdict(self.counts) | msgspec.structs.asdict(self._client.counts)
        return counts | {"proofs": self._writer.proof_count, "proof_failures": self._writer.proof_failure_count}

    def reconfigure(self, settings: AutoscalerSettings) -> None:
        """Use new settings for all further decisions."""
        self.settings = settings
        self._book.reconfigure(read_budgets(settings.budget))
        self.end_rests()

    def count_pods(self, *, of_others: bool = False) -> None:
        """Count all revisions' pods for budgets; with ``of_others``, only those that other autoscalers decide on."""
        for key, entry in self._watch.entries.items():
            tenant, facts = entry.tenant(), entry.facts()
            if tenant is None or facts is None or (of_others and self._sharing.is_ours(group_of(key, entry.revision))):
                continue
            self._book.count_in(tenant, present=facts.present_scale)

    def start(self, key: RevisionKey, entry: RevisionEntry, *, is_restart: bool) -> None:
        """Start deciding about a revision, if its inputs are complete and this process owns it."""
        facts = entry.facts()
        if facts is None or entry.revision is None or entry.scaler is not None:
            return
        if not self._sharing.is_ours(group_of(key, entry.revision)):
            return
        at_s = now_s()
        spec = entry.revision.spec
        scaler = Scaler(
            entry.revision,
            facts,
            self.settings,
            is_restart=is_restart,
            now_s=at_s,
            policy=self._registry.policy_of(spec, self.settings, prior=self._prior, budget=self._budget),
            shadow=self._registry.shadow_of(
                spec,
                self.settings,
                present_scale=facts.present_scale,
                wall_offset_s=wall_s() - at_s,
                now_s=at_s,
                prior=self._prior,
                budget=self._shadow_budget,
            ),
            limit=partial(self._allow, key, entry),
        )
        if scaler.shadow is not None:
            _load(key, scaler.shadow.load, entry.revision.savings)
        if scaler.learner is not None:
            _load(key, scaler.learner.load, entry.revision.learnt)
        _load(key, scaler.target.load, entry.revision.learnt_target)
        entry.scaler = scaler
        self._periodic.add_after(key, self.settings.decision_period_s * turn_ratio(key))

    def end_rests(self) -> None:
        """Decide on all revisions within a period, also on idle ones, which are otherwise skipped.

        Called after changes of settings and policies, which may request pods for idle revisions.
        """
        for key, entry in self._watch.entries.items():
            if entry.scaler is not None:
                self._periodic.add_after(key, self.settings.decision_period_s * turn_ratio(key))

    def end_rest(self, key: RevisionKey, entry: RevisionEntry) -> None:
        """Decide on an idle revision in its next period. Called when a load of the revision is reported."""
        entry.is_resting = False
        if entry.latest is not None:
            period_s = self.settings.decision_period_s
            self._periodic.add_after(key, period_s - (now_s() - entry.latest.at_s) % period_s)

    def stop(self, key: RevisionKey) -> None:
        """Drop the queued work of a revision."""
        for queue in (self._soon, self._periodic, self._writes, self._saves):
            queue.forget(key)
        self._notes.pop(key, None)
        self._book.forget(key)
        self._policies.triggers.forget(key)

    def decide_soon(self, key: RevisionKey, cause: DecisionCause) -> None:
        """Decide in this event loop iteration, or later if the minimum interval since the last decision has not passed.

        The interval does not apply to a revision that an activator has woken since then: the last decision, made before
        the revision was observed as Active, wanted no pod for its requests.
        """
        entry = self._watch.entries.get(key)
        if entry is None or entry.scaler is None:
            return
        entry.cause = entry.cause or cause
        latest = None if entry.is_woken else entry.latest
        self._soon.add_after(key, 0.0 if latest is None else latest.at_s + DECISION_PAUSE_S - now_s())

    async def _decide_now(self, key: RevisionKey) -> None:
        """Decide immediately, and restart the period."""
        self._periodic.forget(key)
        if (wait_s := await self._decide(key)) is not None:
            self._periodic.add_after(key, wait_s)

    async def _decide(self, key: RevisionKey) -> float | None:
        """Make one decision; return the seconds until the next one, None if the revision has no more decisions.

        A failed decision is logged, and repeated in the next period.
        """
        entry = self._watch.entries.get(key)
        if entry is None or entry.scaler is None:
            return None
        self._soon.forget(key)
        entry.is_resting = False
        cause, entry.cause = entry.cause or DecisionCause.PERIOD, None
        wait_s = self.settings.decision_period_s
        try:
            outcome = self._outcome(key, entry, cause)
            recheck_s = None if outcome is None else outcome.recheck_in_s
            wishes_s = (recheck_s, self._policies.triggers.due_in_s(key, now_s()))
            wait_s = max(DECISION_PAUSE_S, min((wait_s, *(wish_s for wish_s in wishes_s if wish_s is not None))))
            # Budgets and policies need a decision in each period.
            if outcome is not None and not (self._book.budgets.of(key[0]) or self._policies.triggers.has_policy(key)):
                rest_s = _rest_s(entry, outcome, self.settings)
                entry.is_resting, wait_s = rest_s > wait_s, max(wait_s, rest_s)
        except Exception:  # noqa: BLE001 - the outermost frame of one decision
            self.counts.decision_failures += 1
            _log.exception("scale.undecided", extra={"namespace": key[0], "revision": key[1]})
        return wait_s

    def _outcome(self, key: RevisionKey, entry: RevisionEntry, cause: DecisionCause) -> ScalerOutcome | None:
        facts, scaler = entry.facts(), entry.scaler
        if facts is None or scaler is None or not self._sharing.is_ours(group_of(key, entry.revision)):
            return None
        proposals = self._policies.proposals(entry, facts, self._watch.pod)
        at_wall_s = wall_s()
        outcome = scaler.tick(facts, cause, now_s(), proposals=proposals, wall_s=at_wall_s)
        entry.is_woken = False
        self.counts.decisions += 1
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
        learnt = None if scaler.learner is None else scaler.learner.due_save(outcome.at_s)
        if learnt is not None:
            self._queue_save(key, LEARNT_ANNOTATION, learnt, within_s=_SAVE_LAG_S)
        savings = None if scaler.shadow is None else scaler.shadow.due_save(is_now=learnt is not None)
        if savings is not None:
            self._queue_save(key, SAVINGS_ANNOTATION, savings, within_s=_SAVE_LAG_S)
        learnt_target = scaler.target.due_save(outcome.at_s)
        if learnt_target is not None:
            self._queue_save(key, LEARNT_TARGET_ANNOTATION, learnt_target)
        self._queue_sentences(key, entry, outcome)
        publication = self._publication(entry, outcome, at_wall_s=at_wall_s)
        if publication is not None:
            pods = publication.pods
            self._queue_save(key, ANTICIPATED_PODS_ANNOTATION, None if pods is None else pods.text())
        return outcome

    def _queue_sentences(self, key: RevisionKey, entry: RevisionEntry, outcome: ScalerOutcome) -> None:
        """Queue changed problem texts of a revision, from which the controller makes conditions."""
        revision, scaler = entry.revision, entry.scaler
        if revision is None or scaler is None:
            return
        sentences = {
            SHORTAGE_ANNOTATION: (shortage_of(outcome.inputs.allowance), revision.shortage),
            POLICY_FAILURE_ANNOTATION: (scaler.policy.failure, revision.policy_failure),
            CONTESTED_ANNOTATION: (entry.rivals.sentence(outcome.at_s), revision.contested),
        }
        for annotation, (sentence, written) in sentences.items():
            if sentence != written:
                self._queue_save(key, annotation, sentence or None)

    def _allow(self, key: RevisionKey, entry: RevisionEntry, demand: BudgetDemand) -> Allowance | None:
        """The smaller of the pod counts that the machine's memory and the budgets allow; None without a limit."""
        short, at_s = self._hold(key, demand), now_s()
        if short is not None:
            demand = msgspec.structs.replace(demand, wanted=short.count, floor=min(demand.floor, short.count))
        tenant = entry.tenant() if self._book.budgets.of(key[0]) else None
        if tenant is None:
            return short
        if self._sharing.shards is not None and at_s - self._others_counted_s >= _OTHERS_COUNTED_S:
            self._others_counted_s = at_s
            self.count_pods(of_others=True)
        budgeted = self._book.allow(tenant, demand, at_s)
        return short if budgeted is None or (short is not None and short.count <= budgeted.count) else budgeted

    def _publication(self, entry: RevisionEntry, outcome: ScalerOutcome, *, at_wall_s: float) -> Publication | None:
        """The number of pods expected within a node's boot time, if it must be published now; None otherwise.

        Without the setting ``node_boot_s``, a published number is removed.
        """
        boot_s, scaler, revision = self.settings.node_boot_s, entry.scaler, entry.revision
        if scaler is None or revision is None or not (boot_s or revision.anticipated):
            return None
        count = entry.anticipation.update(outcome, scaler.policy, boot_s=boot_s) if boot_s else 0
        return entry.anticipation.due(
            count, outcome=outcome, written=revision.anticipated, boot_s=boot_s, wall_s=at_wall_s
        )

    def _queue_save(self, key: RevisionKey, annotation: str, text: str | None, *, within_s: float = 0.0) -> None:
        self._notes.setdefault(key, {})[annotation] = text
        self._saves.add_after(key, within_s)

    async def _save(self, key: RevisionKey) -> None:
        """Save the learnt state and anticipated pods of a revision, for restarts and shard moves."""
        entry, notes = self._watch.entries.get(key), dict(self._notes.get(key, {}))
        if entry is None or entry.revision is None or not notes:
            return
        with self._sharing.writing(group_of(key, entry.revision)):
            written = await self._client.save(entry.revision, notes)
        self._drop_saved(key, notes)
        if written is not None:
            self._watch.written(key, dict(written))

    def _drop_saved(self, key: RevisionKey, saved: Mapping[str, str | None]) -> None:
        """Drop saved annotations, except those that have changed since the write began."""
        remaining = dict(self._notes.pop(key, {}).items() - saved.items())
        if remaining:
            self._notes[key] = remaining

    async def _write(self, key: RevisionKey) -> float | None:
        entry = self._watch.entries.get(key)
        with self._sharing.writing(group_of(key, None if entry is None else entry.revision)):
            return await self._writer.write(key)

    def _view(self, key: RevisionKey) -> WriteView | None:
        entry = self._watch.entries.get(key)
        if entry is None:
            return None
        notes = dict(self._notes.get(key, {}))
        return WriteView(
            revision=entry.revision,
            deployment=entry.deployment,
            latest=entry.latest,
            notes=notes,
            is_woken=entry.is_woken,
        )

    def _costs(self, key: RevisionKey, victim_count: int) -> Iterable[tuple[str, str | None]]:
        entry = self._watch.entries.get(key)
        if entry is None or entry.scaler is None:
            return ()
        scaler = entry.scaler
        return cost_changes(
            self._watch.ready_pods(key), scaler.pod_reports, heats=scaler.pod_heats, victim_count=victim_count
        )

    def _learn(self, key: RevisionKey, learned: Learned) -> None:
        entry = self._watch.entries.get(key)
        if entry is None:
            return
        match learned:
            case PathProved():
                entry.proved_at_s = now_s()
                self._outcome(key, entry, DecisionCause.PROOF)
            case ReserveRefused():
                self.decide_soon(key, DecisionCause.CHANGE)
            case RevisionWritten(resource, notes):
                self._drop_saved(key, notes)
                self._watch.written(key, dict(resource))
            case ScaleWritten(count, version):
                present = entry.deployment
                if present is not None and not is_older_version(version, present.resource_version):
                    entry.deployment = msgspec.structs.replace(present, replica_count=count, resource_version=version)

    def _write_failed(self, key: RevisionKey, error: Exception) -> None:
        self.counts.write_failures += 1
        extra = {"namespace": key[0], "revision": key[1], "error": str(error)}
        if isinstance(error, ClusterError):
            _log.warning("scale.failed", extra=extra)
        else:
            _log.error("scale.failed", extra=extra, exc_info=error)


def _load(key: RevisionKey, load: Callable[[str], None], text: str) -> None:
    """Pass the saved state ``text`` to ``load``; do nothing for "". Unreadable state is logged and ignored."""
    if text:
        try:
            load(text)
        except InvalidValue as error:
            _log.warning("learnt.unread", extra={"namespace": key[0], "revision": key[1], "error": str(error)})


def _rest_s(entry: RevisionEntry, outcome: ScalerOutcome, settings: AutoscalerSettings) -> float:
    """Seconds in which the outcome of a decision cannot change; 0 if it may change in the next period.

    It may change in the next period while anticipated pods are published, and while a ScaledWorkload has pods: these
    report no load whose change would end the rest.
    """
    revision, scaler = entry.revision, entry.scaler
    if revision is None or scaler is None or revision.anticipated is not None:
        return 0.0
    if outcome.view.present_scale and (settings.node_boot_s or revision.is_workload):
        return 0.0
    return rest_in_s(outcome, scaler, settings.decision_period_s) or 0.0
