"""Simulates one revision on recorded arrivals, from one relevant event to the next.

The product's code makes the decisions (``decisions``). The simulation has pods that start, serve, drain and end
(``pods``); the activator's FIFO queue; the queue of each pod where requests bypass the activator; one report per
second; and the poke of the activator when requests wait for a revision without ready pods. A request is cold when a pod
became ready while the request waited.
"""

import heapq
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.model.quantity import Resources
from serving.core.model.slo import Slo
from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.policies.index import ScalingPolicyView
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyFactory
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.core.traffic.backoff import backoff_s
from serving.core.traffic.policy import policy_for
from serving.tools.simulator.decisions import Decisions, TimedLimit
from serving.tools.simulator.nodes import NodeRoom
from serving.tools.simulator.pods import PodSet, PodTimes, SimulatedPod
from serving.tools.simulator.results import (
    Durations,
    Moment,
    PodSeries,
    Quantiles,
    RevisionResult,
    RunLog,
    durations_of,
)
from serving.tools.simulator.signals import PodUse, RevisionSignals, needs_signals
from serving.tools.simulator.steady import RevisionCounts

FINISHED, _STARTED = 0, 1
"""Events of pods."""

# Pause before restarting a failed container, in seconds, and its limit. Source: kubelet.
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 10.0, 300.0
# Events after the last arrival.
_NO_MORE = (math.inf, math.nan)
# An activator drops a revision after a second without requests.
_FORGOTTEN_AFTER = 2
# Load of a second below which no request was in flight, but for rounding errors of sums of times.
_LOAD_MIN = 1e-9


class RunWorld(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters shared by all runs of a workload. Times in seconds; ``concurrency`` 0 means no limit.

    ``probe_delay_s`` passes between a pod's readiness and its first request. ``failing_starts`` is the share of starts
    that fail. ``has_burst_switch``: requests bypass the activator while pods have spare capacity. ``use`` is the usage
    of pods. Above ``knee`` concurrent requests, a pod becomes slower.
    """

    settings: AutoscalerSettings = AutoscalerSettings()
    activator: ActivatorSettings = ActivatorSettings()
    queue_proxy: QueueProxySettings = QueueProxySettings()
    concurrency: int = 10

    probe_delay_s: float = 0.02
    """Delay between an app's readiness and the activator's first request to it."""

    report_at: float | None = None
    """When in each second requests are reported, from 0 to below 1; None: drawn for each revision."""

    failing_starts: float = 0.0
    """Share of failing starts; the kubelet restarts their containers."""

    has_burst_switch: bool = True
    """Whether requests bypass the activator while the pods have enough excess burst capacity."""

    scaling_policy: ScalingPolicyView | None = None
    """A ScalingPolicy that the revision uses, for any target."""

    use: PodUse = PodUse(requested=Resources())
    """The pods' requests, and their use."""

    has_prefix_affinity: bool = False
    """Whether prompts choose pods, by the annotation ``serving.dev/affinity``."""

    slo: Slo | None = None
    """A goal for measuring latency; the goal in ``spec`` has precedence."""
    knee: float = math.inf
    """Concurrent requests above which a pod is slower: times grow in proportion to the requests."""
    log: RunLog | None = None
    """Receives each decision and latency of a workload with one function; no period is skipped then."""


class RunConfig(RunWorld, frozen=True, kw_only=True):
    """The configuration of a run, without arrivals.

    ``start`` and ``service`` are the durations of pod starts and requests. ``policy_of`` creates the policy. ``skips``
    False makes a decision in every period, for tests. ``limit_of`` creates a limit by budgets.
    """

    spec: ScalingSpec
    start: Quantiles = Quantiles(p50_s=2.0, p99_s=2.0)
    service: Quantiles = Quantiles(p50_s=0.25, p99_s=0.25)
    seed: int = 1

    policy_of: PolicyFactory = BUILT_IN.policy_of
    """Creates the policy; rivals of the product replace it."""

    skips: bool = True
    """Whether to skip periods with a known decision; False is for tests."""

    limit_of: Callable[[PodSet], TimedLimit] | None = None
    """Creates the limit by budgets from the pods of a revision."""


class RevisionRun:
    """One simulation of a revision. ``run`` may be called once."""

    def __init__(
        self,
        name: str,
        arrivals: Iterator[tuple[float, float]],
        config: RunConfig,
        *,
        until_s: float,
        nodes: NodeRoom | None = None,
        prior: GapPrior | None = None,
    ) -> None:
        """``arrivals`` are pairs of a time and a duration in seconds; a NaN duration is drawn at random.

        ``nodes`` are shared with other revisions; None: every pod has a place. ``prior`` is learnt from the gaps of
        several revisions; None: the revision learns alone.
        """
        self.name = name
        self.result = RevisionResult(name=name)
        self._arrivals = arrivals
        self._config = config
        self._until_s = until_s
        self._next = next(arrivals, _NO_MORE)
        self._nodes = nodes
        self._log = config.log
        self.limit_s = math.inf
        self._service: Durations = durations_of(config.service, f"service:{config.seed}:{name}")
        self._start: Durations = durations_of(config.start, f"start:{config.seed}:{name}")
        self._dice = random.Random(f"failures:{config.seed}:{name}")  # noqa: S311 - a simulated world
        self._series = PodSeries(until_s)
        self.pods = self._create_pods(nodes)
        drawn = zlib.crc32(name.encode(), config.seed - 1) / 2**32
        self._report_at = drawn if config.report_at is None else config.report_at
        self._signals = self._create_signals()
        self._decisions = Decisions(
            config.settings,
            config.spec,
            has_burst_switch=config.has_burst_switch,
            skips=config.skips and config.log is None and config.limit_of is None,
            repeats=nodes is None,
            prior=prior,
            policy_of=config.policy_of,
            signals=self._signals,
        )
        self._decisions.limit = None if config.limit_of is None else config.limit_of(self.pods)
        self._queue: deque[tuple[float, float]] = deque()
        self._events: list[tuple[float, int, int, SimulatedPod]] = []
        self._sequence = 0
        self._inside = 0
        # The metered second: number, end, requests in flight times seconds, arrivals.
        self._number = 0
        self._second_end_s = self._report_at
        self._area = 0.0
        self._arrived = 0
        # The part of the second that its mean covers, and the number of the last second with a report.
        self._period_s, self._reported_number = 1.0, -_FORGOTTEN_AFTER
        self._poked_at_s = -math.inf
        self._known_waiting = self._known_inside = 0
        self._poked_load = 0.0
        self._direction = 0
        self._latest_ready_s = -math.inf
        self._judge = self.result.judge_of(config.spec.slo or config.slo)

    def run(self) -> RevisionResult:
        """Simulate up to the end."""
        self.run_until(math.inf)
        return self.finish()

    @property
    def next_s(self) -> float:
        """The time of the next event or decision; infinite after the last one."""
        event_s = self._events[0][0] if self._events else math.inf
        at_s = min(self._next[0], event_s, self._decisions.due_s)
        return at_s if at_s < self._until_s else math.inf

    def run_until(self, limit_s: float) -> None:
        """Simulate until ``limit_s``. Events may lower the limit."""
        self.limit_s = limit_s
        arrivals, events, decisions, until_s = self._arrivals, self._events, self._decisions, self._until_s
        while True:
            next_s, took_s = self._next
            is_arrival = not events or next_s < events[0][0]
            at_s = next_s if is_arrival else events[0][0]
            if (at_s >= self._second_end_s or at_s >= decisions.due_s) and self._catch_up(
                min(at_s, until_s, self.limit_s)
            ):
                continue
            if at_s >= until_s or at_s > self.limit_s:
                return
            if is_arrival:
                self._next = next(arrivals, _NO_MORE)
                self._arrive(at_s, took_s)
                continue
            _, _, kind, pod = heapq.heappop(events)
            if kind == FINISHED:
                self._finish(pod, at_s)
            else:
                self._started(pod, at_s)

    def finish(self) -> RevisionResult:
        """The result at the end."""
        self.pods.finish(self._until_s)
        self.result.decisions = self._decisions.count
        self.result.pod_series = self._series.means()
        return self.result

    def start_container(self, pod: SimulatedPod, at_s: float) -> None:
        """Start the pod's container on its node."""
        ready_s = at_s + next(self._start) + self._config.probe_delay_s
        self._sequence += 1
        heapq.heappush(self._events, (ready_s, self._sequence, _STARTED, pod))

    def _create_pods(self, nodes: NodeRoom | None) -> PodSet:
        config, spec = self._config, self._config.spec
        return PodSet(
            self.result,
            self._series,
            concurrency=config.concurrency,
            policy=policy_for(
                config.concurrency, first_free_concurrency_max=config.activator.first_free_concurrency_max
            ),
            times=PodTimes(
                drain_s=config.queue_proxy.drain_lag_s,
                dormant_after_s=math.inf if spec.dormant_after_s is None else spec.dormant_after_s,
                dormant_cost=spec.dormant_cost,
            ),
            on_end=None if nodes is None else partial(nodes.release, self),
        )

    def _create_signals(self) -> RevisionSignals | None:
        """The learnt target and the triggers; None if no decision depends on them."""
        config = self._config
        if not needs_signals(config.spec, config.scaling_policy):
            return None
        return RevisionSignals(
            self.name,
            config.spec,
            config.settings,
            pods=self.pods,
            report_at=self._report_at,
            use=config.use,
            scaling_policy=config.scaling_policy,
        )

    # Time.

    def _catch_up(self, until_s: float) -> bool:
        """Record completed seconds, and decide if due; return whether a decision was due."""
        decisions = self._decisions
        while self._second_end_s <= min(until_s, decisions.due_s):
            self._second_over(min(until_s, decisions.due_s))
        due_s = decisions.due_s
        if due_s > until_s:
            return False
        counts = _counts_of(self.pods, self._inside)
        if decisions.is_repeated(counts, due_s):
            return True
        if not (self._inside and decisions.is_next_due and self.pods.scale > 1):
            decisions.schedule(counts, due_s)
        if decisions.due_s <= due_s:
            self._decide(due_s, DecisionCause.PERIOD)
        return True

    def _second_over(self, until_s: float) -> None:
        """Record the completed second, and skip idle time that follows."""
        end_s, load, decisions = self._second_end_s, self._area / self._period_s, self._decisions
        self._period_s = 1.0
        if self._judge is not None:
            decisions.slo.record(self._judge.report(end_s), end_s)
        if self._signals is not None:
            self._signals.complete(self._number, end_s)
        if load > _LOAD_MIN or self._arrived:
            self._reported_number = self._number
            decisions.record(self._number, max(0.0, load), self._arrived, tokens=self._tokens(end_s))
            is_scheduled = decisions.is_level or (decisions.is_next_due and self.pods.scale > 1)
            if load > decisions.quiet_load and not is_scheduled:
                decisions.schedule(_counts_of(self.pods, self._inside), end_s)
            if load > self._poked_load and decisions.latest_count == 0:
                decisions.decide_by(end_s, end_s, is_first=True)
        self._known_inside, self._known_waiting, self._poked_load = self._inside, len(self._queue), 0.0
        self._arrived = 0
        if not self._inside and self._judge is None and self._signals is None:
            # Nothing reads seconds without requests, so the next request begins the next second.
            self._second_end_s = math.inf
            self._area = 0.0
            return
        if not self._inside:
            self._number = max(self._number + 1, math.floor(until_s - self._report_at) + 1)
            self._second_end_s = self._number + self._report_at
            self._area = 0.0
            return
        # Each second's sum starts from the requests in flight, so that rounding errors do not add up.
        self._number += 1
        self._second_end_s = self._number + self._report_at
        self._area = float(self._inside)
        if decisions.counts_waiting and self._inside > decisions.capacity:
            decisions.decide_by(end_s, end_s, is_first=True)

    # Requests.

    def _arrive(self, at_s: float, took_s: float) -> None:
        self.result.requests += 1
        if took_s != took_s:  # noqa: PLR0124 - not a number
            took_s = next(self._service)
        pods = self.pods
        if self._decisions.path is TrafficPath.SERVE and pods.ready:
            self._arrive_at_pod(pods.any_ready(), at_s, took_s)
            return
        if self._queue or not pods.free_count:
            if len(self._queue) >= self._config.activator.queue_depth_max:
                self.result.refused += 1
                return
            self._count_in(at_s)
            self._queue.append((at_s, took_s))
            if not pods.ready:
                self._poke(at_s)
            return
        self._count_in(at_s)
        if not self._decisions.latest_count:
            self._decisions.decide_by(self._second_end_s, at_s)
        self._serve(self._pick(took_s), at_s, took_s)

    def _pick(self, took_s: float) -> SimulatedPod:
        """The pod with a free slot that the activator selects for a request."""
        del took_s
        return self.pods.pick()

    def _tokens(self, end_s: float) -> float:
        """Mean tokens in flight in the second that ends."""
        del end_s
        return 0.0

    def _heats(self) -> Mapping[str, float]:
        """The savings of each pod's prompt cache, by address."""
        return {}

    def _arrive_at_pod(self, pod: SimulatedPod, at_s: float, took_s: float) -> None:
        """Send a request to a pod without the activator. The queue-proxy forwards, queues or rejects it."""
        if pod.slots is None or pod.in_flight < pod.slots:
            self._count_in(at_s, is_proxied=False)
            self._serve(pod, at_s, took_s)
        elif len(pod.queue) < self._config.queue_proxy.queue_depth_per_slot * pod.slots:
            self._count_in(at_s, is_proxied=False)
            pod.queue.append((at_s, took_s))
        else:
            self.result.refused += 1

    def _count_in(self, at_s: float, *, is_proxied: bool = True) -> None:
        if not self._inside:
            self._decisions.entered(at_s)
            if self._second_end_s == math.inf:
                self._number = max(self._number + 1, math.floor(at_s - self._report_at) + 1)
                self._second_end_s = self._number + self._report_at
            is_new = not self._arrived and self._number >= self._reported_number + _FORGOTTEN_AFTER
            if is_proxied and is_new and self._second_end_s > at_s:
                # The mean of an activator's first report is that of the time since the first request, as in Knative.
                self._period_s = self._second_end_s - at_s
        self._inside += 1
        self._arrived += 1
        self._area += self._second_end_s - at_s

    def _count_out(self, at_s: float) -> None:
        self._inside -= 1
        self._area -= self._second_end_s - at_s
        decisions = self._decisions
        if not self._inside and self.pods.scale and (decisions.due_s == math.inf or decisions.is_level):
            decisions.schedule(_counts_of(self.pods, self._inside), at_s)

    def _serve(self, pod: SimulatedPod, at_s: float, took_s: float, *, waited_s: float = 0.0) -> None:
        self.pods.start_request(pod, at_s)
        self._sequence += 1
        if pod.in_flight > self._config.knee:
            took_s *= pod.in_flight / self._config.knee
        if self._judge is not None:
            self._judge.serve(at_s, waited_s, took_s)
        if self._signals is not None:
            self._signals.serve(pod.address, at_s, took_s)
        if self._log is not None and at_s + took_s < self._until_s:
            self._log.latencies_s.append(waited_s + took_s)
        heapq.heappush(self._events, (at_s + took_s, self._sequence, FINISHED, pod))

    def _finish(self, pod: SimulatedPod, at_s: float) -> None:
        self._count_out(at_s)
        self.pods.release(pod, at_s)
        if pod.queue:
            arrived_s, took_s = pod.queue.popleft()
            self.result.record_wait(at_s - arrived_s, is_cold=False)
            self._serve(pod, at_s, took_s, waited_s=at_s - arrived_s)
        if self._queue:
            self._grant(at_s)

    def _grant(self, at_s: float) -> None:
        """Assign queued requests to free pods, in the order of arrival."""
        queue, pods, wait_max_s = self._queue, self.pods, self._config.activator.queue_wait_max_s
        while queue and pods.free_count:
            arrived_s, took_s = queue.popleft()
            wait_s = at_s - arrived_s
            if wait_s > wait_max_s:
                self.result.refused += 1
                self._count_out(at_s)
                continue
            self.result.record_wait(wait_s, is_cold=self._latest_ready_s > arrived_s)
            self._serve(self._pick(took_s), at_s, took_s, waited_s=wait_s)
        if not queue:
            self._known_waiting = 0

    def _poke(self, at_s: float) -> None:
        """Report requests that wait for a revision without ready pods.

        Reports are due at the first request, whenever the number has doubled, and when it exceeds the capacity.
        """
        waiting, inside, decisions = len(self._queue), self._inside, self._decisions
        is_more = waiting >= 2 * self._known_waiting or inside > max(self._known_inside, decisions.capacity)
        # Simultaneous requests are one report.
        if not is_more or self._next[0] == at_s:
            return
        self._poked_load += max(0, inside - self._known_inside)
        self._known_waiting, self._known_inside = waiting, inside
        if decisions.latest_count and (not decisions.counts_waiting or inside <= decisions.capacity):
            return
        decisions.wake()
        due_s = self._poked_at_s + self._config.activator.poke_pause_min_s
        self._poked_at_s = max(at_s, due_s)
        if at_s < due_s:
            decisions.decide_by(due_s, at_s)
            return
        self._decide(at_s, DecisionCause.LOAD)

    def _decide(self, at_s: float, cause: DecisionCause) -> None:
        conclusion = self._decisions.decide(_counts_of(self.pods, self._inside), at_s, cause)
        if conclusion.apply_count is not None:
            self._set_scale(conclusion.apply_count, at_s)
        outcome = self._decisions.outcome
        if outcome is not None and self._nodes is not None:
            self._nodes.decided(self, outcome, self._decisions.policy)
        if outcome is not None and self._log is not None:
            self._log.moments.append(self._moment(outcome))
        self._decisions.schedule(_counts_of(self.pods, self._inside), at_s)

    def _moment(self, outcome: ScalerOutcome) -> Moment:
        waiting_count = len(self._queue) + sum(len(pod.queue) for pod in self.pods.ready)
        return Moment(
            at_s=outcome.at_s,
            scale=self.pods.scale,
            ready_count=len(self.pods.ready),
            running_count=self._inside - waiting_count,
            waiting_count=waiting_count,
            decision=outcome.decided.detail,
            merged=outcome.merged,
            gate=outcome.gate,
            reason=explain(outcome),
        )

    def _set_scale(self, count: int, at_s: float) -> None:
        present = self.pods.scale
        direction = (count > present) - (count < present)
        if direction and self._direction and direction != self._direction:
            self.result.flaps += 1
        self._direction = direction or self._direction
        if count < present:
            self.pods.remove(present - count, at_s, heats=self._heats())
            return
        for pod in self.pods.create(count - present, at_s):
            if self._nodes is None or self._nodes.place(self, pod, at_s):
                self.start_container(pod, at_s)

    def _started(self, pod: SimulatedPod, at_s: float) -> None:
        if self._config.failing_starts and self._dice.random() < self._config.failing_starts and not pod.is_ending:
            self.result.failed_starts += 1
            pod.failures += 1
            pause_s = backoff_s(pod.failures, first_s=_BACKOFF_FIRST_S, max_s=_BACKOFF_MAX_S)
            self.start_container(pod, at_s + pause_s)
            return
        if not self.pods.become_ready(pod, at_s):
            return
        self._latest_ready_s = at_s
        self._decisions.started(at_s - pod.created_s, at_s, is_first=len(self.pods.ready) == 1)
        # The pods' endpoints change: reevaluate the gate and the path.
        self._decisions.decide_by(at_s, at_s)
        if self._queue:
            self._grant(at_s)


def _counts_of(pods: PodSet, inside: int) -> RevisionCounts:
    return RevisionCounts(scale=pods.scale, ready=len(pods.ready), inside=inside)
