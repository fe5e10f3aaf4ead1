"""The state of one revision in the autoscaler: watched objects, starting pods, scaler, last decisions."""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from serving.core.model.knative import ServingState
from serving.core.model.revisionnumbers import PodCounts
from serving.core.scaling.budget import BudgetTenant
from serving.core.scaling.decision.path import PublicSlices
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.policies.usage import Usages
from serving.core.scaling.revision import ScaledDeployment, ScaledPod, ScaledRevision, Trouble, pod_of
from serving.core.scaling.rivals import RivalWrites
from serving.core.scaling.scaler.anticipation import Anticipation
from serving.core.scaling.scaler.decision_history import DecisionHistory
from serving.core.scaling.scaler.scaler import Scaler

_PENDING, _RUNNING = "Pending", "Running"


class PodStarts:
    """Tracks the starting pods of one revision."""

    __slots__ = ("_seen_s",)

    def __init__(self) -> None:
        self._seen_s: dict[str, float | None] = {}

    def update(self, pod: ScaledPod, now_s: float, *, is_gone: bool) -> float | None:
        """Update or remove a pod. Return its start time in seconds when it is ready for the first time."""
        if is_gone or pod.is_ending:
            self._seen_s.pop(pod.name, None)
            return None
        seen_s = self._seen_s.setdefault(pod.name, None if pod.is_ready else now_s)
        if seen_s is None or not pod.is_ready:
            return None
        self._seen_s[pod.name] = None
        return max(0.0, now_s - seen_s)


class PodState(enum.StrEnum):
    """The state of a pod for counts. A running pod is READY, DORMANT (idle and frozen) or NOT_READY."""

    READY = "ready"
    DORMANT = "dormant"
    NOT_READY = "not-ready"
    PENDING = "pending"
    TERMINATING = "terminating"


def state_of(pod: ScaledPod) -> PodState | None:
    """The state of a pod; None if it has ended."""
    if pod.is_ending:
        return PodState.TERMINATING
    if pod.phase == _PENDING:
        return PodState.PENDING
    if pod.phase == _RUNNING:
        if pod.is_dormant:
            return PodState.DORMANT
        return PodState.READY if pod.is_ready else PodState.NOT_READY
    return None


class PodStates:
    """The states of one revision's pods by name."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, PodState] = {}

    def update(self, pod: ScaledPod, *, is_gone: bool) -> None:
        """Store a pod's current state; ``is_gone`` removes it."""
        state = None if is_gone else state_of(pod)
        if state is None:
            self._by_name.pop(pod.name, None)
        else:
            self._by_name[pod.name] = state

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def counts(self) -> PodCounts:
        """The number of pods in each state."""
        counts = Counter(self._by_name.values())
        return PodCounts(
            not_ready=counts[PodState.NOT_READY],
            pending=counts[PodState.PENDING],
            terminating=counts[PodState.TERMINATING],
            dormant=counts[PodState.DORMANT],
        )


class RevisionEntry:
    """The state of one revision. ``cause`` is why the next decision is due; None: the period has passed."""

    __slots__ = (
        "anticipation",
        "cause",
        "deployment",
        "history",
        "is_resting",
        "is_woken",
        "latest",
        "oom_kill_counts",
        "oom_kill_total",
        "pod_starts",
        "pod_states",
        "proved_at_s",
        "public",
        "ready_names",
        "restart_counts",
        "restart_total",
        "revision",
        "rivals",
        "scaler",
        "troubles",
    )

    def __init__(self, decisions_max: int) -> None:
        self.anticipation = Anticipation()
        self.revision: ScaledRevision | None = None
        self.deployment: ScaledDeployment | None = None
        self.ready_names: set[str] = set()
        self.troubles: dict[str, Trouble] = {}
        self.oom_kill_counts: dict[str, int] = {}
        self.oom_kill_total = 0
        self.restart_counts: dict[str, int] = {}
        self.restart_total = 0
        self.pod_starts = PodStarts()
        self.pod_states = PodStates()
        self.scaler: Scaler | None = None
        self.proved_at_s: float | None = None
        self.public = PublicSlices()
        self.rivals = RivalWrites()
        self.cause: DecisionCause | None = None
        self.is_woken = False
        self.is_resting = False
        self.latest: ScalerOutcome | None = None
        self.history = DecisionHistory(decisions_max)

    def set_deployment(self, deployment: ScaledDeployment, now_s: float) -> bool:
        """Store the current Deployment or target; return whether its scale is new, or changed by another client.

        A change to the scale of the latest decision is the autoscaler's own.
        """
        before, self.deployment = self.deployment, deployment
        has_changed = before is None or before.replica_count != deployment.replica_count
        is_ours = self.latest is not None and self.latest.apply_count == deployment.replica_count
        if before is not None and has_changed and not is_ours and deployment.target is not None:
            self.rivals = self.rivals.add(deployment.replica_count, now_s)
        return has_changed and not is_ours

    @property
    def is_empty(self) -> bool:
        """Whether the entry has no content and can be dropped."""
        is_known = self.revision is not None or self.deployment is not None or self.public.is_there
        return not is_known and not self.ready_names

    def set_pod(self, pod: ScaledPod, now_s: float, *, is_gone: bool) -> bool:
        """Update a pod: its state, start problem, start time, and OOM kills.

        Return whether it was killed for memory since the last update.
        """
        self.pod_states.update(pod, is_gone=is_gone)
        is_killed = self._count_kills(pod, is_gone=is_gone)
        self._count_restarts(pod, is_gone=is_gone)
        if self.scaler is not None:
            # Pods older than the scaler were observed too late to measure their start.
            took_s = self.pod_starts.update(pod, now_s, is_gone=is_gone)
            if took_s is not None:
                self.scaler.started(took_s, now_s)
        if pod.trouble is None or is_gone:
            self.troubles.pop(pod.name, None)
        else:
            self.troubles[pod.name] = pod.trouble
        return is_killed

    def pod_counts(self) -> PodCounts:
        """The number of pods in each state, and of OOM kills and restarts."""
        counts = self.pod_states.counts()
        return msgspec.structs.replace(counts, oom_kills=self.oom_kill_total, restarts=self.restart_total)

    def measured(self, namespace: str, usages: Usages, now_s: float) -> None:
        """Add new usage measurements of the revision's pods to its learnt target."""
        if self.scaler is None or self.revision is None:
            return
        for name, stat in self.scaler.pods.items():
            used = usages.new_measurement((namespace, name), now_s).get(self.revision.container.name)
            if used is not None:
                self.scaler.target.measure(stat, used)

    def _count_restarts(self, pod: ScaledPod, *, is_gone: bool) -> None:
        # As for kills, those before the first observation are not new.
        before = self.restart_counts.pop(pod.name, pod.restart_count)
        self.restart_total += max(pod.restart_count - before, 0)
        if not is_gone:
            self.restart_counts[pod.name] = pod.restart_count

    def _count_kills(self, pod: ScaledPod, *, is_gone: bool) -> bool:
        if is_gone:
            self.oom_kill_counts.pop(pod.name, None)
            return False
        # OOM kills from before the first observation of a pod are not new.
        before = self.oom_kill_counts.get(pod.name, pod.oom_kill_count)
        self.oom_kill_counts[pod.name] = pod.oom_kill_count
        if pod.oom_kill_count <= before:
            return False
        self.oom_kill_total += pod.oom_kill_count - before
        if self.scaler is not None:
            self.scaler.target.killed()
        return True

    def ready_pods(self, namespace: str, pods: Mapping[tuple[str, str], dict[str, Any]]) -> Iterator[ScaledPod]:
        """The ready pods among ``pods``, by name."""
        listed = (pods.get((namespace, name)) for name in sorted(self.ready_names))
        yield from (facts for pod in listed if pod is not None and (facts := pod_of(pod)) is not None)

    def tenant(self) -> BudgetTenant | None:
        """The revision's pods for budgets; None while the revision is unknown."""
        if self.revision is None:
            return None
        existing, ending = len(self.pod_states), self.pod_states.counts().terminating
        revision = self.revision
        return BudgetTenant(key=revision.key, pod_bytes=revision.pod_bytes, existing=existing, ending=ending)

    def facts(self) -> ScalerView | None:
        """The inputs of a decision; None while some are missing."""
        revision, deployment = self.revision, self.deployment
        if revision is None or deployment is None or deployment.revision_uid != revision.uid:
            return None
        is_resting = not revision.has_state and deployment.replica_count == 0
        return ScalerView(
            present_scale=deployment.replica_count,
            ready_count=len(self.ready_names),
            serving_state=ServingState.RESERVE if is_resting else revision.serving_state,
            is_recorded=revision.was_ready,
            is_failed=revision.is_failed,
            proved_at_s=self.proved_at_s,
            has_public=self.public.is_there,
            proxy_since_s=self.public.proxy_since_s,
            path=revision.path,
            is_woken=self.is_woken,
        )
