"""Decides by the further metrics of a revision, each like the first one, and by the pods that load.

Input: completed seconds of load. Output: a proposal a metric, which the merge compares with the others. Each has its own windows
and panic.
"""

from collections.abc import Iterable

import msgspec

from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.kpa.decide import ScaleDecision, ScalerMode
from serving.scaling.kpa.merge import Proposal
from serving.scaling.scaler.deciders import Decided, Inside, KpaDecider
from serving.scaling.scaler.view import ScalerView
from serving.scaling.sources import Second
from serving.scaling.spec import ScalingSpec
from serving.settings.autoscaler import KpaQuirks


class FurtherDeciders:
    """The deciders of further metrics. After a restart they prevent scale-down until their windows have data."""

    __slots__ = ("_deciders", "_quirks")

    def __init__(self, spec: ScalingSpec, *, quirks: KpaQuirks, now_s: float) -> None:
        self._quirks = quirks
        self._deciders: dict[str, KpaDecider] = {}
        self.resize(spec, now_s)

    def resize(self, spec: ScalingSpec, now_s: float) -> None:
        """Follow numbers of the revision that have changed."""
        kept, self._deciders = self._deciders, {}
        for own in _specs(spec):
            decider = kept.get(own.metric) or KpaDecider(
                own, quirks=self._quirks, ready_count=0, present_scale=0, now_s=now_s
            )
            decider.resize(own, now_s)
            self._deciders[own.metric] = decider

    def take(self, second: Second) -> None:
        """Record a completed second."""
        for decider in self._deciders.values():
            decider.take(second)

    def reset_windows(self, spec: ScalingSpec) -> None:
        """Drop the recorded load."""
        for own in _specs(spec):
            self._deciders[own.metric].reset_windows(own)

    def decide(self, spec: ScalingSpec, inside: Inside, *, ready_count: int, now_s: float) -> tuple[Proposal, ...]:
        """A proposal of each metric, in order."""
        found = []
        for own in _specs(spec):
            decided = self._deciders[own.metric].decide(own, inside, ready_count=ready_count, now_s=now_s)
            found.append(_proposal(own, decided))
        return tuple(found)


def kept_while_loading(pods: Iterable[Stat], facts: ScalerView) -> tuple[Proposal, ...]:
    """The proposal to keep pods that load. A lower scale would take them first, because they are not ready."""
    count = sum(pod.is_loading for pod in pods)
    if not count or not facts.present_scale:
        return ()
    desired = min(facts.present_scale, facts.ready_count + count)
    reason = f"{count} pod{' loads' if count == 1 else 's load'}"
    return (Proposal(decider="loading", desired=desired, reason=reason, is_content=True),)


def _specs(spec: ScalingSpec) -> list[ScalingSpec]:
    """The numbers of the revision, as those of each further metric."""
    return [
        msgspec.structs.replace(
            spec, metric=one.metric, target_value=one.target_value, total_value=one.total_value, further_metrics=()
        )
        for one in spec.further_metrics
    ]


def _proposal(spec: ScalingSpec, decided: Decided) -> Proposal:
    detail = decided.detail
    if isinstance(detail, NoData):
        return Proposal(decider=spec.metric, desired=detail, reason=detail.missing)
    assert isinstance(detail, ScaleDecision)
    load = detail.observed_stable
    if detail.mode is ScalerMode.PANIC:
        load = max(load, detail.observed_panic)
    reason = f"{load:.4g} in all, target {spec.target_value:g} each"
    return Proposal(decider=spec.metric, desired=decided.proposal.desired, reason=reason, is_content=True)
