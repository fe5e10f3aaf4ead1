"""Scaling policies: the protocol, what a policy sees and returns, and Knative's own policy.

A policy observes each second of load, and advises at each decision how many pods a revision has. Knative's algorithm runs under
every policy: a policy receives its proposal and replaces it, or leaves it as it is. Triggers, further metrics, bounds, budgets
and the gate to zero apply after the policy. A policy reads no clock and does no I/O: ``now_s`` is in its view.
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
"""Names of the deciders that have pods ahead of requests."""

# Time that a pod takes to start until one was measured, in seconds.
_START_S = 2.0
# Weight of the newest start in their mean: starts differ by what is cached on a node.
_START_WEIGHT = 0.2


class SecondOfLoad(msgspec.Struct, frozen=True):
    """The load of a revision in one completed second. Number 61 is the time from 61 s to 62 s."""

    number: int
    concurrency: float
    """Mean requests in flight, queued ones included."""

    request_count: float
    """Requests that arrived."""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The revision at one decision."""

    now_s: float
    """The time of the decision, on the clock of the seconds of load."""

    wall_s: float = 0.0
    """The same in seconds since the epoch; in the simulator, since the start of the trace."""

    algorithm: Proposal
    """The proposal of Knative's algorithm, or of the classic one; its count is ``NoData`` without a report."""

    in_flight: float | None
    """Requests in flight now, queued ones included; None while no ready pod reports."""

    present_scale: int
    ready_count: int
    spec: ScalingSpec
    """The numbers of the revision in force: targets, windows, bounds."""

    @property
    def algorithm_count(self) -> int:
        """Pods that the algorithm proposes; 0 without a report."""
        return 0 if isinstance(self.algorithm.desired, NoData) else self.algorithm.desired


class KeepReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reason to keep, start or release the last pod. Ages are seconds since the last request ended."""

    age_s: float

    until_s: float | None
    """Age up to which a pod is kept; None if none is kept at this age."""

    ahead_s: float
    """The horizon of the figures: until ``until_s``, or a minute if no pod is kept."""

    is_ahead: bool
    """Whether the pod is started ahead of a periodic request, rather than kept since the last one."""

    probability: float
    """Probability that the next request comes within ``ahead_s``."""

    gaps_lasted: float
    """Past gaps that lasted at least as long as this one; older ones count for less."""

    gaps_ended: float
    """Those of them that ended within ``ahead_s``."""


class RegretReason(msgspec.Struct, frozen=True, kw_only=True):
    """The excess cost of the learnt keep-alive over Knative's in the last gaps, which disables it."""

    pod_seconds: float
    cold_requests: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's result: proposals that replace the algorithm's, inputs for the gate, and the time of the next decision."""

    proposals: tuple[Proposal, ...] | None = None
    """None: the algorithm's proposal remains unchanged."""

    active_min_s: float | None = None
    """Shortest time that a revision stays active before zero; None: the stable window."""

    recheck_in_s: float | None = None
    """Time for which the advice stays the same without requests; None: for good."""

    keep: KeepReason | None = None
    """The reason to keep the last pod; None where requests in flight decide, or no earlier ones are known."""

    regret: RegretReason | None = None
    """None where the learnt keep-alive decides, or nothing is known of its cost."""

    failure: str | None = None
    """Why the policy was replaced by Knative's for this decision; None if it was not."""

    def proposed(self, algorithm: Proposal) -> tuple[Proposal, ...]:
        """The effective proposals: those of the advice, else those of the algorithm."""
        return (algorithm,) if self.proposals is None else self.proposals


NEUTRAL = Advice()
"""Advice that leaves the algorithm's proposal unchanged."""


class Policy(Protocol):
    """A scaling policy for one revision, as a package or a file provides it.

    An attribute ``counts_waiting`` that is true makes requests count at once that wait for the first pod.
    """

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second; seconds without load may be skipped."""

    def propose(self, view: PolicyView) -> Advice | Proposal:
        """Return the count of pods to have now, with its reason, or ``NEUTRAL``."""


class RevisionPolicy:
    """The policy of one revision as the scaler uses it. The base class is Knative's policy, which gives no advice.

    ``start_s`` is the mean time of a pod's start. ``idle_since_s`` is when the last request ended; None if there was none, or
    if the policy does not observe seconds.
    """

    name = KNATIVE_POLICY
    observes = False
    """Whether proposals depend on the observed seconds."""

    counts_waiting = False
    """Whether requests that wait for the first pod count at once, beside the windows."""

    failure = ""
    """Why Knative's policy decides in place of a user's, now or within the last minute; "" if it does not."""

    skips_periods = True
    """Whether ``Advice.recheck_in_s`` and ``unchanged_for_s`` are exact, so that the simulator may skip periods."""

    def __init__(self) -> None:
        self.start_s = _START_S
        self.idle_since_s: float | None = None

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second; seconds without load may be skipped."""

    def propose(self, view: PolicyView) -> Advice:
        """Advice to combine with the algorithm's count."""
        del view
        return NEUTRAL

    def started(self, took_s: float) -> None:
        """Record how many seconds a pod took to become ready."""
        if math.isfinite(took_s) and took_s > 0:
            self.start_s += _START_WEIGHT * (took_s - self.start_s)

    def update(self, spec: ScalingSpec) -> None:
        """Apply changed numbers of the revision."""

    def anticipated_count(self, *, ahead_s: float, now_s: float) -> int:
        """Pods needed in ``ahead_s`` seconds for an expected request."""
        del ahead_s, now_s
        return 0

    def unchanged_for_s(self, *, in_flight: float, now_s: float) -> float | None:
        """Time for which the policy keeps one ready pod; None: ``propose`` has to be called."""
        del in_flight, now_s
        return None

    def due_save(self, now_s: float) -> str | None:
        """The learnt state as text for ``load``; None without changes, or after a recent save."""
        del now_s
        return None

    def load(self, learnt: str) -> None:
        """Restore the learnt state. Raises ``InvalidValue``."""
