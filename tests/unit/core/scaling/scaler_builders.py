"""Builders for tests of one revision's scaler, and a small world that carries out its decisions."""

import msgspec

from serving.core.model.knative import ServingState
from serving.core.model.stat import Stat
from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KPA_CLASS, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import DEFAULTS

SETTINGS = AutoscalerSettings()


def revision_with(
    spec: ScalingSpec = DEFAULTS,
    *,
    serving_state: ServingState = ServingState.ACTIVE,
    class_name: str = KPA_CLASS,
    container_concurrency: int = 0,
    was_ready: bool = True,
) -> ScaledRevision:
    """A revision as read from the cluster."""
    return ScaledRevision(
        key=("default", "hello-00001"),
        uid="u",
        resource_version="1",
        serving_state=serving_state,
        class_name=class_name,
        container_concurrency=container_concurrency,
        was_ready=was_ready,
        spec=spec,
    )


def facts_of(
    scale: int,
    ready: int | None = None,
    *,
    serving_state: ServingState | None = None,
    proved_at_s: float | None = None,
) -> ScalerView:
    """A scale with as many ready pods by default; in reserve at 0 by default."""
    default = ServingState.ACTIVE if scale else ServingState.RESERVE
    return ScalerView(
        present_scale=scale,
        ready_count=scale if ready is None else ready,
        serving_state=serving_state or default,
        proved_at_s=proved_at_s,
    )


def stat_of(concurrency: float, *, by: str = "activator", requests: float | None = None, proxied: float = 0.0) -> Stat:
    """A stat of a source."""
    return Stat(
        pod=by,
        at_s=-1.0,
        concurrency=concurrency,
        request_count=concurrency if requests is None else requests,
        proxied_concurrency=proxied,
        proxied_request_count=proxied,
    )


class WaitingPolicy(RevisionPolicy):
    """Knative's policy, with all requests that wait for the first pod counted at once."""

    counts_waiting = True


class World:
    """A cluster in which pods report each second, probes succeed, and decisions take effect at once."""

    def __init__(
        self,
        revision: ScaledRevision,
        facts: ScalerView,
        *,
        is_restart: bool = False,
        policy: RevisionPolicy | None = None,
    ) -> None:
        self.now_s = 1000.0
        self.facts = facts
        self.outcomes: list[ScalerOutcome] = []
        self.scaler = Scaler(revision, facts, SETTINGS, is_restart=is_restart, now_s=self.now_s, policy=policy)

    def decide(self, cause: DecisionCause = DecisionCause.PERIOD) -> ScalerOutcome:
        """Decide once, and again with a proof if requested; the new scale and its ready pods exist at once."""
        outcome = self.scaler.tick(self.facts, cause, self.now_s)
        if outcome.to_prove:
            self.facts = msgspec.structs.replace(self.facts, proved_at_s=self.now_s)
            outcome = self.scaler.tick(self.facts, DecisionCause.PROOF, self.now_s)
        self.outcomes.append(outcome)
        if outcome.apply_count is not None:
            for number in range(outcome.apply_count, self.facts.ready_count):
                self.scaler.forget_pod(f"pod-{number}", self.now_s)
            self.facts = facts_of(outcome.apply_count, proved_at_s=self.facts.proved_at_s)
        return outcome

    def live(self, seconds: int, *, load: float) -> None:
        """Let every pod report its share of the load each second, and decide every other second."""
        for second in range(seconds):
            count = self.facts.ready_count
            for number in range(count):
                self.record(stat_of(load / count, by=f"pod-{number}"), StatSource.POD, at_s=self.now_s + 0.3)
            self.now_s += 1.0
            if second % 2:
                self.decide()

    def poke(self, concurrency: float) -> bool:
        """Record a poke of an activator with so many more requests; return whether it is urgent."""
        return self.record(stat_of(concurrency), StatSource.ACTIVATOR)

    def record(self, stat: Stat, source: StatSource, *, at_s: float | None = None) -> bool:
        """Record a stat, now by default; return whether it is urgent."""
        return self.scaler.record(msgspec.structs.replace(stat, at_s=self.now_s if at_s is None else at_s), source)
