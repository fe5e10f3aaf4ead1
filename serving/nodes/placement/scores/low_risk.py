"""LowRiskOverCommitment: scores the risk that a node's pods need more than it has, from 0 (certain) to 100.

Input: a pod and all nodes; output: a score for each node, and its explanation. The risk from load does not depend on
the pending pod. It is cached for a version of the nodes, and recomputed only for changed nodes. Two pods placed between
two measurements see the same load; only the risk from limits includes the first pod when the second is placed.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/lowriskovercommitment; KEP 357.
"""

import enum
import math
from typing import ClassVar

import msgspec
import numpy as np

from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement.scores.arrays import BoolArray, FloatArray, IntArray, Resource, rounded
from serving.nodes.placement.scores.metrics import usage_ratio
from serving.nodes.placement.scores.nodes import NodeTable, Placing
from serving.nodes.placement.scores.risk import (
    LOAD_RULES,
    Commitment,
    LoadRisk,
    LoadRule,
    MeasuredLoad,
    limit_risk,
    load_risk,
    require_scipy,
    smoothed_deviation,
    total_risk,
)


class ForcedZero(enum.StrEnum):
    """Why scheduler-plugins gives the score 0 despite a lower risk.

    The pending pod has no requests and limits, or the node has no metrics.
    """

    BEST_EFFORT_POD = "best_effort_pod"
    NODE_WITHOUT_METRICS = "node_without_metrics"


class ResourceRisk(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of one node. Amounts are in millicores or bytes, requests capped at the allocatable amount.

    ``_minus_pod`` excludes the pending pod. ``deviation_ratio`` is the deviation after smoothing and bounding. Mean and
    deviation are None if not measured. Alpha and beta are None if no distribution was used.
    """

    request: int
    limit: int
    request_minus_pod: int
    limit_minus_pod: int
    allocatable: int
    mean_ratio: float | None
    deviation_ratio: float | None
    alpha: float | None
    beta: float | None
    limit_risk: float
    load_risk: float
    load_rule: LoadRule
    risk: float


class LowRiskWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Explains a score: 100 * (1 - risk of the riskier resource, ``worst``), rounded.

    ``forced_zero`` is why the score is 0 instead, or None.
    """

    cpu: ResourceRisk
    memory: ResourceRisk
    worst: Resource
    forced_zero: ForcedZero | None


class LowRiskResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Scores of all nodes, and the arrays from which they were computed: a row per resource, a column per node.

    ``limit_risk`` comes from limits above the capacity, ``load_risk`` from the measured ``load``; ``risk`` is their
    weighted sum. ``stale`` marks nodes with too old a measurement. ``best_effort_zero`` (for the pod) and
    ``unlisted_zero`` (for nodes) are quirks of scheduler-plugins: the score is 0 without requests and limits, or
    without metrics.
    """

    score: IntArray
    placing: Placing
    request: IntArray
    limit_risk: FloatArray
    load_risk: FloatArray
    risk: FloatArray
    load: LoadRisk
    stale: BoolArray
    best_effort_zero: bool
    unlisted_zero: BoolArray

    def explain(self, index: int) -> LowRiskWhy:
        """Explain the score of the node in column ``index``."""
        forced = ForcedZero.NODE_WITHOUT_METRICS if self.unlisted_zero[index] else None
        return LowRiskWhy(
            cpu=self._resource(0, index),
            memory=self._resource(1, index),
            worst=tuple(Resource)[int(self.risk[:, index].argmax())],
            forced_zero=ForcedZero.BEST_EFFORT_POD if self.best_effort_zero else forced,
        )

    def _resource(self, row: int, index: int) -> ResourceRisk:
        at = (row, index)
        table = self.placing.table
        rule = LOAD_RULES[int(self.load.rule[at])]
        measured = rule is not LoadRule.UNMEASURED
        allocatable = int(table.allocatable[at])
        return ResourceRisk(
            request=int(self.request[at]),
            limit=int(self.placing.limit[at]),
            request_minus_pod=min(int(table.request[at]), allocatable),
            limit_minus_pod=int(table.limit[at]),
            allocatable=allocatable,
            mean_ratio=float(self.load.mean[at]) if measured else None,
            deviation_ratio=_finite(self.load.deviation[at]) if measured else None,
            alpha=_finite(self.load.alpha[at]) if self.load.fitted[at] else None,
            beta=_finite(self.load.beta[at]) if self.load.fitted[at] else None,
            limit_risk=float(self.limit_risk[at]),
            load_risk=float(self.load_risk[at]),
            load_rule=LoadRule.STALE if measured and self.stale[index] else rule,
            risk=float(self.risk[at]),
        )


class LowRiskOverCommitment:
    """100 * (1 - risk of the riskier resource), rounded half up. Risks of 0.578 (cpu) and 0.539 (memory): 42.

    The object caches results for the last version of the nodes, so it should only get versions of the same table.
    """

    name: ClassVar[str] = "LowRiskOverCommitment"
    score_max: ClassVar[int] = 100

    def __init__(self, settings: PlacementSettings) -> None:
        """Raises ``SettingsError`` if scipy is missing."""
        require_scipy()
        self._settings = settings
        self._limit_weight = np.array([[settings.cpu_risk_limit_weight], [settings.memory_risk_limit_weight]])
        self._cached_version: int | None = None
        self._kept: LoadRisk | None = None

    def evaluate(self, placing: Placing) -> LowRiskResult:
        """Score all nodes."""
        table = placing.table
        quirks = self._settings.quirks
        load = self._load_of(table)
        request = np.minimum(placing.request, table.allocatable)
        from_limits = limit_risk(Commitment(request=request, limit=placing.limit, allocatable=table.allocatable))
        stale = placing.now_s - table.usage_at_s > self._settings.metrics_age_max_s
        if quirks.metrics_never_expire:
            stale = np.zeros_like(stale)
        from_load = np.where(stale, 0.0, load.risk)
        risk = total_risk(from_limits, from_load, self._limit_weight)
        best_effort_zero = quirks.best_effort_pods_score_zero and placing.pod.best_effort
        unlisted_zero = ~table.listed if quirks.unmeasured_nodes_score_zero else np.zeros_like(table.listed)
        score = rounded(100.0 * (1.0 - risk.max(axis=0)))
        return LowRiskResult(
            score=np.where(unlisted_zero | best_effort_zero, 0, score),
            placing=placing,
            request=request,
            limit_risk=from_limits,
            load_risk=from_load,
            risk=risk,
            load=load,
            stale=stale,
            best_effort_zero=best_effort_zero,
            unlisted_zero=unlisted_zero,
        )

    def _load_of(self, table: NodeTable) -> LoadRisk:
        """Risk from load of all nodes; computed only if the version has changed."""
        load_risk = self._kept
        if load_risk is not None and self._cached_version == table.version:
            return load_risk
        if load_risk is not None and table.changed is not None and self._cached_version == table.changed_from:
            load_risk = load_risk.with_columns(table.changed, self._load_risk(table, table.changed))
        else:
            load_risk = self._load_risk(table, slice(None))
        self._kept = load_risk
        self._cached_version = table.version
        return load_risk

    def _load_risk(self, table: NodeTable, columns: IntArray | slice) -> LoadRisk:
        allocatable = table.allocatable[:, columns]
        mean = usage_ratio(table.mean_percent[:, columns], allocatable)
        deviation = usage_ratio(table.deviation_percent[:, columns], allocatable)
        load = MeasuredLoad(
            mean=mean,
            deviation=smoothed_deviation(mean, deviation, self._settings.smoothing_window_size),
            measured=table.measured[:, columns],
        )
        committed = Commitment(
            request=np.minimum(table.request[:, columns], allocatable),
            limit=table.limit[:, columns],
            allocatable=allocatable,
        )
        return load_risk(load, committed, self._settings.quirks)


def _finite(value: np.float64) -> float | None:
    return float(value) if math.isfinite(value) else None
