"""The controller's metrics page: reconciliations by result, their duration, and the depth of the queue.

On one machine the store's API and the kubelet run in the same process. They share the page, which then also has pods.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import Metric as Family

from serving.core.model.responses import STATUS_CLASSES
from serving.net.metrics.names import CONTROLLER_METRICS, LOCAL_METRICS, MetricSpec, named
from serving.net.metrics.page import MetricsPage, family_of

_UNAUTHORIZED = (401, 429)


class ReconcileCounts(Protocol):
    """The counts of a controller."""

    @property
    def waiting_count(self) -> int:
        """Resources that wait for a decision."""

    @property
    def writes_count(self) -> int:
        """Objects created, patched or deleted."""


class ControllerMetrics:
    """All metrics of a controller process. ``is_leading`` is read for each page."""

    def __init__(self, *, is_leading: Callable[[], bool] = lambda: True) -> None:
        self.page = MetricsPage((*CONTROLLER_METRICS, *LOCAL_METRICS))
        self._is_leading = is_leading
        self._current: ReconcileCounts | None = None
        self._earlier_writes_count = 0
        self._reconciles = self.page.counter("serving_reconciles_total")
        self._duration = self.page.histogram("serving_reconcile_duration_seconds")
        self.page.pull(self._pull)

    def term_began(self, controller: ReconcileCounts) -> None:
        """Show the counts of the controller of a new term as leader. Writes of earlier terms still count."""
        self._earlier_writes_count = self._writes_count
        self._current = controller

    def count_reconciliation(self, resource: str, duration_s: float, result: str) -> None:
        """Count a reconciliation by its result: done, conflict or failed."""
        self._reconciles.labels(resource, result).inc()
        self._duration.labels(resource).observe(duration_s)

    @property
    def _writes_count(self) -> int:
        return self._earlier_writes_count + (0 if self._current is None else self._current.writes_count)

    def _pull(self) -> Iterator[Family]:
        waiting_count = 0 if self._current is None else self._current.waiting_count
        yield _gauge(named(CONTROLLER_METRICS, "serving_reconcile_queue_depth"), waiting_count)
        yield _gauge(named(CONTROLLER_METRICS, "serving_controller_leader"), float(self._is_leading()))
        yield _gauge(named(CONTROLLER_METRICS, "serving_controller_writes_total"), self._writes_count)


class LocalMetrics:
    """Metrics added to the controller's page on a single machine. ``pods`` returns the number of running pods."""

    def __init__(self, page: MetricsPage, *, pods: Callable[[], int]) -> None:
        page.gauge("serving_local_pods").set_function(pods)
        self._requests = page.counter("serving_api_requests_total")
        self._unauthorized = page.counter("serving_api_unauthorized_total")
        self._duration = page.histogram("serving_api_request_duration_seconds")

    def record_response(self, verb: str, status: int, duration_s: float) -> None:
        """Count an API response. ``verb`` is an HTTP method or "watch"; the duration of a watch is ignored."""
        by_class = status // 100
        self._requests.labels(verb, STATUS_CLASSES[by_class] if by_class < len(STATUS_CLASSES) else "5xx").inc()
        if status in _UNAUTHORIZED:
            self._unauthorized.labels(str(status)).inc()
        if verb != "watch":
            self._duration.labels(verb).observe(duration_s)


def _gauge(metric: MetricSpec, value: float) -> Family:
    family = family_of(metric)
    family.add_sample(metric.name, {}, value)
    return family
