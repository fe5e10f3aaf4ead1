"""The autoscaler's metrics page: the last decision of each revision, decisions by rule, and the daemon's counts.

The numbers of a decision are stored, and read when the page is rendered; the stats reporter then records counts and
desired pods. A decision costs less than 10 µs, independent of the number of revisions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec
from prometheus_client.core import Metric as Family

from serving.core.model.loadmetric import ANY_GAUGE, LOAD_METRICS
from serving.core.model.revisionnumbers import PodCounts, PolicyCosts, RevisionNumbers
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY
from serving.net.metrics.names import (
    AUTOSCALER_METRICS,
    REVISION_LABELS,
    MetricKind,
    MetricSpec,
    load_prefix,
)
from serving.net.metrics.page import MetricsPage, family_of
from serving.net.metrics.reporter import Row, StatsReporter

_BY_NAME = {metric.name: metric for metric in AUTOSCALER_METRICS}
# While the page is not read, series beyond twice the current ones, and this many, are dropped.
_GONE_MAX = 100
_POD_STATES = {
    "not_ready": "kn_revision_pods_not_ready_count",
    "pending": "kn_revision_pods_pending_count",
    "terminating": "kn_revision_pods_terminating_count",
    "dormant": "serving_revision_pods_dormant",
    "oom_kills": "serving_revision_oom_kills_total",
    "restarts": "serving_revision_restarts_total",
}
_PREFIX = "autoscaler_"
_TOTAL = "_total"


class AutoscalerMetrics:
    """All metrics of an autoscaler.

    ``keys`` returns the current revisions; ``counts`` returns the daemon's counters, whose names end in _total.
    ``pods`` returns the unready pods of a revision by reason. ``costs`` returns the costs of a revision's policies,
    None for a class without policies.
    """

    def __init__(
        self,
        *,
        keys: Callable[[], Collection[tuple[str, str]]],
        counts: Callable[[], Mapping[str, int]],
        pods: Callable[[tuple[str, str]], PodCounts],
        costs: Callable[[tuple[str, str]], PolicyCosts | None],
    ) -> None:
        self.page = MetricsPage(AUTOSCALER_METRICS)
        self._keys = keys
        self._counts = counts
        self._pods = pods
        self._costs = costs
        self._reporter = StatsReporter()
        self._latest: dict[tuple[str, str], RevisionNumbers] = {}
        # Recording costs more than a decision, so it waits for a reader of the page.
        self._unreported: dict[tuple[str, str], RevisionNumbers] = {}
        self._rows_max = _GONE_MAX
        self._decisions = self.page.counter("serving_decisions_total")
        self.page.pull(self._pull)

    def decided(self, numbers: RevisionNumbers) -> None:
        """Record the numbers of a decision."""
        self._decisions.labels(numbers.rule).inc()
        key = (numbers.namespace, numbers.revision)
        if self._latest.get(key) == numbers:
            # An idle revision repeats its numbers in each period.
            return
        self._latest[key] = numbers
        waiting = self._unreported.get(key)
        if waiting is not None and numbers.desired_count is None:
            numbers = msgspec.structs.replace(numbers, desired_count=waiting.desired_count)
        self._unreported[key] = numbers
        if len(self._latest) > self._rows_max:
            self._retain_known()

    def _retain_known(self) -> None:
        keys = set(self._keys())
        self._reporter.retain(keys)
        self._latest = {key: numbers for key, numbers in self._latest.items() if key in keys}
        self._unreported = {key: numbers for key, numbers in self._unreported.items() if key in keys}
        self._rows_max = 2 * len(self._latest) + _GONE_MAX

    def _pull(self) -> Iterator[Family]:
        self._retain_known()
        for numbers in self._unreported.values():
            self._reporter.report(numbers)
        self._unreported = {}
        for name, rows in (*self._reporter.pull(), *self._loads()):
            yield _family(_BY_NAME[name], rows)
        yield from self._of_policies()
        for name, value in self._counts().items():
            yield _counted(_PREFIX + name, value)

    def _of_policies(self) -> Iterator[Family]:
        pods, cold = (family_of(_BY_NAME[f"serving_policy_day_{what}"]) for what in ("pod_seconds", "cold_requests"))
        for numbers in self._latest.values():
            costs = self._costs((numbers.namespace, numbers.revision))
            if costs is None:
                continue
            labels = dict(zip(REVISION_LABELS, _labels(numbers), strict=True))
            for policy, pod_seconds, cold_requests in (
                (ADAPTIVE_POLICY, costs.adaptive_pod_seconds, costs.adaptive_cold_requests),
                (KNATIVE_POLICY, costs.knative_pod_seconds, costs.knative_cold_requests),
            ):
                pods.add_sample(pods.name, labels | {"policy": policy}, pod_seconds)
                cold.add_sample(cold.name, labels | {"policy": policy}, cold_requests)
        yield from (pods, cold)

    def _loads(self) -> Iterator[tuple[str, list[Row]]]:
        """The loads in the latest decisions, for which opencensus has no measure."""
        latest = list(self._latest.values())
        for metric in (*LOAD_METRICS, ANY_GAUGE.name):
            measured, prefix = (
                [numbers for numbers in latest if _kind_of(numbers.metric) == metric],
                load_prefix(metric),
            )
            yield f"{prefix}_stable", _rows(measured, lambda numbers: numbers.stable_load)
            yield f"{prefix}_panic", _rows(measured, lambda numbers: numbers.panic_load)
            yield f"{prefix}_target", _rows(measured, lambda numbers: numbers.target_load)
        pods = {key: self._pods(key) for key in self._latest}
        for state, name in _POD_STATES.items():
            yield (
                name,
                [(_labels(numbers), getattr(pods[numbers.namespace, numbers.revision], state)) for numbers in latest],
            )
        yield "serving_learnt_target", _rows(latest, lambda numbers: numbers.learnt_target)
        yield "kn_revision_capacity_excess", _rows(latest, lambda numbers: numbers.excess_burst_capacity)


def _kind_of(metric: str) -> str:
    return metric if metric in LOAD_METRICS else ANY_GAUGE.name


def _labels(numbers: RevisionNumbers) -> tuple[str, str, str]:
    return numbers.namespace, numbers.configuration, numbers.revision


def _rows(latest: list[RevisionNumbers], value_of: Callable[[RevisionNumbers], float | None]) -> list[Row]:
    return [(_labels(numbers), value) for numbers in latest if (value := value_of(numbers)) is not None]


def _family(metric: MetricSpec, rows: list[Row]) -> Family:
    family = family_of(metric)
    for labels, value in rows:
        family.add_sample(metric.name, dict(zip(REVISION_LABELS, labels, strict=True)), value)
    return family


def _counted(name: str, value: int) -> Family:
    kind = MetricKind.COUNTER if name.endswith(_TOTAL) else MetricKind.GAUGE
    metric = _BY_NAME.get(name, MetricSpec(name=name, kind=kind, help_text="See the autoscaler's counts."))
    family = family_of(metric)
    family.add_sample(name, {}, value)
    return family
