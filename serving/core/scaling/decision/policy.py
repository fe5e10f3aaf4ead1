"""Scaling policies: the protocol, what a policy sees and returns, and Knative's own policy.

A policy observes each second of load, and advises a number of pods at each decision. Knative's algorithm runs under
every policy; a policy receives its proposal, and replaces or keeps it. Triggers, further metrics, bounds, budgets and
the gate to zero apply after the policy. A policy reads no clock and does no I/O; ``now_s`` is in its view.
"""

import math
from typing import Protocol

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KNATIVE_POLICY

KEEP_ALIVE = "keep-alive"
PRE_WARMING = "pre-warming"
"""Names of deciders that start pods ahead of requests."""

# Assumed start time of a pod until one was measured, in seconds.
_START_S = 2.0
# Weight of the newest start time in the mean: image caches make starts differ.
_START_WEIGHT = 0.2


class SecondOfLoad(msgspec.Struct, frozen=True):
    """The load of a revision in one completed second. ``number`` 61 is the time from 61 s to 62 s.

    ``concurrency`` is the mean number of requests in flight, including queued ones; ``request_count`` counts arrivals.
    """

    number: int
    concurrency: float
    request_count: float


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's knowledge of its revision at one decision, and the proposal that the policy may replace.

    ``now_s`` is on the clock of ``SecondOfLoad``. ``wall_s`` is in seconds since the epoch; in the simulator, since the
    start of the trace. ``algorithm`` is the proposal of Knative's or the classic algorithm; its count is ``NoData``
    without a report. ``in_flight`` are the requests in flight now, including queued ones; None if no ready pod reports.
    ``spec`` has the scaling numbers in force: targets, windows, bounds.
    """

    now_s: float
    wall_s: float = 0.0
    algorithm: Proposal
    in_flight: float | None
    present_scale: int
    ready_count: int
    spec: ScalingSpec

    @property
    def algorithm_count(self) -> int:
        """Pods that the algorithm proposes; 0 without a report."""
        return 0 if isinstance(self.algorithm.desired, NoData) else self.algorithm.desired


class KeepReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last pod is kept, started or released in a gap (a time without requests).

    ``age_s`` is how long the gap has lasted, in seconds. The pod is kept until the gap has lasted ``until_s``; None if
    it is not kept. ``ahead_s`` is the time until then, or a minute if no pod is kept. ``probability`` is that of a
    request within ``ahead_s``. ``is_ahead``: the pod is started ahead of a periodic request, rather than kept since the
    last one. ``gaps_lasted`` counts earlier gaps that lasted at least ``age_s``, ``gaps_ended`` those of them that
    ended within the next ``ahead_s``; older gaps weigh less.
    """

    age_s: float

    until_s: float | None
    ahead_s: float
    is_ahead: bool
    probability: float
    gaps_lasted: float
    gaps_ended: float


class RegretReason(msgspec.Struct, frozen=True, kw_only=True):
    """How much more than Knative's keep-alive the learnt one has cost in recent gaps, so that it is not used."""

    pod_seconds: float
    cold_requests: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's answer to one decision.

    ``proposals`` replace the algorithm's proposal; None keeps it. ``active_min_s`` is how long the revision stays
    active before it may scale to zero; None uses the stable window. ``recheck_in_s`` is how long the advice is valid
    without requests; None has no limit. ``keep`` is why the last pod is kept; None if requests in flight decide, or no
    earlier requests are known. ``regret`` is why the learnt keep-alive is not used; None if it is, or its cost is
    unknown. ``failure`` is why Knative's policy replaced this one for the decision; None if it did not.
    """

    proposals: tuple[Proposal, ...] | None = None
    active_min_s: float | None = None
    recheck_in_s: float | None = None
    keep: KeepReason | None = None
    regret: RegretReason | None = None
    failure: str | None = None

    def proposed(self, algorithm: Proposal) -> tuple[Proposal, ...]:
        """The effective proposals: the advice's, or the algorithm's if the advice has none."""
        return (algorithm,) if self.proposals is None else self.proposals


NEUTRAL = Advice()
"""Advice that leaves the algorithm's proposal unchanged."""


class Policy(Protocol):
    """The interface of a user's scaling policy for one revision, from a package or a file.

    If the policy has a true attribute ``counts_waiting``, requests that wait for the first pod count immediately.
    """

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second; seconds without load may be skipped."""

    def propose(self, view: PolicyView) -> Advice | Proposal:
        """Return the pods to have now, with the reason; ``NEUTRAL`` keeps the count of Knative's algorithm."""


class RevisionPolicy:
    """The policy of one revision as used by the scaler. The base class is Knative's policy, which gives no advice.

    ``start_s`` is the mean time of a pod's start. ``idle_since_s`` is when the last request ended; None if there was
    none, or if the policy does not observe seconds.
    """

    name = KNATIVE_POLICY
    observes = False
    """Whether proposals depend on observed seconds."""

    counts_waiting = False
    """Whether requests that wait for the first pod count immediately, in addition to the windows."""

    failure = ""
    """Why Knative's policy replaced a user's within the last minute; "" if it did not."""

    skips_periods = True
    """Whether the simulator may skip periods.

    Required: ``Advice.recheck_in_s`` and ``unchanged_for_s`` are exact, and the advice is neutral while requests are in
    flight and the algorithm wants a pod.
    """

    def __init__(self) -> None:
        self.start_s = _START_S
        self.idle_since_s: float | None = None

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second; seconds without load may be skipped."""

    def propose(self, view: PolicyView) -> Advice:
        """The advice for one decision; the scaler combines the advice with the count of Knative's algorithm."""
        del view
        return NEUTRAL

    def started(self, took_s: float) -> None:
        """Record how many seconds a pod took to start."""
        if math.isfinite(took_s) and took_s > 0:
            self.start_s += _START_WEIGHT * (took_s - self.start_s)

    def update(self, spec: ScalingSpec) -> None:
        """Apply the changed settings of the revision."""

    def anticipated_count(self, *, ahead_s: float, now_s: float) -> int:
        """Pods needed in ``ahead_s`` seconds for an expected request."""
        del ahead_s, now_s
        return 0

    def unchanged_for_s(self, *, in_flight: float, now_s: float) -> float | None:
        """How long, in seconds, the policy keeps one ready pod unchanged; None requires a call of ``propose``."""
        del in_flight, now_s
        return None

    def due_save(self, now_s: float) -> str | None:
        """The learnt state as text for ``load``; None if it is unchanged or was saved recently."""
        del now_s
        return None

    def load(self, learnt: str) -> None:
        """Restore the learnt state. Raises ``InvalidValue``."""
