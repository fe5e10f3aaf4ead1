"""The learnt target and the triggers of one simulated revision, from the reports of its virtual pods.

Input: each request with its pod and times, and the pods. Output: the revision's numbers with the learnt target, and
proposals of a ScalingPolicy. The product's code computes both. A pod reports once per second: requests in flight, ended
requests and their mean response time. Cpu and memory are proportional to the requests in flight if amounts are given;
otherwise they are not measured.
"""

import math
from collections import defaultdict

import msgspec

from serving.core.model.knative import RevisionKey, ServingState, TargetMode
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.learnt.learner import RevisionTarget
from serving.core.scaling.learnt.target import LearntTarget
from serving.core.scaling.policies.engine import Triggers
from serving.core.scaling.policies.index import PolicyKey, ScalingPolicyView
from serving.core.scaling.policies.scalingpolicy import TargetRef
from serving.core.scaling.policies.triggertypes import ContainerUse, ObservedPods
from serving.core.scaling.policies.usage import observed_pods
from serving.core.scaling.revision import ScaledRevision, ServingContainer
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.cluster.schedules import schedule_state
from serving.tools.simulator.pods import PodSet

_CONTAINER = "app"


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """Cpu and memory of a pod: the request, which equals the limit, and the usage per request in flight."""

    requested: Resources
    per_request: Resources = Resources()
    """An amount of None is not measured."""

    def used(self, concurrency: float) -> Resources:
        """The usage of a pod with this many requests in flight."""
        cpu_m, memory_bytes = self.per_request.cpu_m, self.per_request.memory_bytes
        return Resources(
            cpu_m=None if cpu_m is None else round(cpu_m * concurrency),
            memory_bytes=None if memory_bytes is None else round(memory_bytes * concurrency),
        )

    @property
    def is_measured(self) -> bool:
        """Whether any usage is configured."""
        return self.per_request != Resources()


class _PodSecond:
    """One second of one pod."""

    __slots__ = ("area", "ended_count", "response_s")

    def __init__(self) -> None:
        self.area = self.response_s = 0.0
        self.ended_count = 0


class RevisionSignals:
    """Computes a simulated revision's learnt target and ScalingPolicy triggers from the reports of its pods."""

    def __init__(  # noqa: PLR0913 - what they depend on
        self,
        name: str,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        pods: PodSet,
        report_at: float,
        use: PodUse,
        scaling_policy: ScalingPolicyView | None,
    ) -> None:
        """``report_at`` is when in each second the pods report, from 0 to below 1."""
        self._revision = ScaledRevision(
            key=("default", name),
            uid=name,
            resource_version="1",
            serving_state=ServingState.ACTIVE,
            class_name=spec.class_name,
            container_concurrency=spec.container_concurrency,
            was_ready=True,
            spec=spec,
            container=ServingContainer(name=_CONTAINER, limits=use.requested if use.is_measured else Resources()),
        )
        self._pods = pods
        self._use = use
        self._report_at = report_at
        self._usage_period_s = settings.triggers.usage_period_s
        self._occupied = settings.triggers.occupied_concurrency
        self._measured_s = -math.inf
        self._target = RevisionTarget(self._revision, settings.adaptive)
        self._seconds: dict[int, defaultdict[str, _PodSecond]] = {}
        self._stats: dict[str, Stat] = {}
        self._triggers = Triggers(
            settings.triggers, requests=self._requests, on_change=_ignore, state_at=schedule_state
        )
        if scaling_policy is not None:
            target = TargetRef(kind="Revision", name=name)
            self._triggers.set_policy(msgspec.structs.replace(scaling_policy, key=("default", "load"), target=target))

    @property
    def learnt(self) -> LearntTarget | None:
        """The learnt target as of the last decision; None without enough data."""
        return self._target.learnt

    def serve(self, pod: str, at_s: float, took_s: float) -> None:
        """Count a request that a pod processes for ``took_s`` seconds."""
        end_s = at_s + took_s
        number, last = self._number_at(at_s), self._number_at(end_s)
        while number <= last:
            second = self._second(number, pod)
            second.area += max(0.0, min(end_s, number + self._report_at) - max(at_s, number + self._report_at - 1.0))
            number += 1
        ended = self._second(last, pod)
        ended.ended_count += 1
        ended.response_s += took_s

    def complete(self, number: int, at_s: float) -> None:
        """Read the reports of all ready pods about a completed second."""
        for earlier in [earlier for earlier in self._seconds if earlier < number]:
            del self._seconds[earlier]
        seconds = self._seconds.pop(number, defaultdict(_PodSecond))
        is_measured = self._use.is_measured and at_s - self._measured_s >= self._usage_period_s
        self._measured_s = at_s if is_measured else self._measured_s
        self._stats = {}
        for pod in self._pods.ready:
            second = seconds.get(pod.address) or _PodSecond()
            stat = Stat(
                pod=pod.address,
                at_s=at_s,
                concurrency=max(0.0, second.area),
                ended_count=second.ended_count,
                response_time_s=second.response_s / second.ended_count if second.ended_count else 0.0,
            )
            self._stats[pod.address] = stat
            self._target.record(stat)
            if is_measured:
                self._target.measure(stat, self._use.used(stat.concurrency))

    def spec(self, now_s: float) -> ScalingSpec:
        """The revision's scaling spec, with the learnt target if that is in force."""
        self._target.update(now_s)
        return self._target.spec

    def proposals(self, now_s: float) -> tuple[Proposal, ...]:
        """The proposals of the ScalingPolicy; empty without a ScalingPolicy."""
        return self._triggers.proposals(
            self._revision, self._observe, present_scale=self._pods.scale, now_s=now_s, wall_offset_s=0.0
        )

    def due_in_s(self, now_s: float) -> float:
        """Time until the next evaluation of the ScalingPolicy; infinite without a ScalingPolicy."""
        due_in_s = self._triggers.due_in_s(self._revision.key, now_s)
        return math.inf if due_in_s is None else due_in_s

    def _observe(self) -> ObservedPods:
        return observed_pods(
            present_scale=self._pods.scale,
            ready=[pod.address for pod in self._pods.ready],
            troubles=(),
            pods=self._stats,
            uses=self._uses,
            occupied_concurrency=self._occupied,
        )

    def _uses(self, pod: str) -> tuple[ContainerUse, ...]:
        stat = self._stats.get(pod)
        if stat is None or not self._use.is_measured:
            return ()
        return (ContainerUse(requested=self._use.requested, used=self._use.used(stat.concurrency)),)

    def _requests(self, _key: RevisionKey) -> dict[str, Resources]:
        return {_CONTAINER: self._use.requested}

    def _number_at(self, at_s: float) -> int:
        """The number of the second in which a request is reported. Each second begins at the moment when pods report."""
        return math.floor(at_s - self._report_at) + 1

    def _second(self, number: int, pod: str) -> _PodSecond:
        return self._seconds.setdefault(number, defaultdict(_PodSecond))[pod]


def needs_signals(spec: ScalingSpec, scaling_policy: ScalingPolicyView | None) -> bool:
    """Whether decisions depend on the reports of individual pods."""
    return scaling_policy is not None or spec.target_mode in {TargetMode.USE, TargetMode.PROTECT}


def _ignore(_key: PolicyKey) -> None:
    """Ignore a changed status."""
