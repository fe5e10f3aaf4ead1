"""The node group daemon's metrics page, updated after each pass of a group.

Rows of a group that is gone are dropped.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from serving.net.metrics.names import NODEGROUP_METRICS, MetricKind
from serving.net.metrics.page import MetricsPage

LOCK_DURATION: Final = "escalator_node_group_scale_lock_duration"
REGISTRATION_LAG: Final = "escalator_node_group_node_registration_lag"
# Escalator's buckets: one to 29 minutes.
_MINUTES_S = tuple(range(60, 1741, 60))

_UNLABELLED = {"escalator_run_count", "serving_nodegroup_leader"}


class NodeGroupMetrics:
    """All metrics of the node group daemon. Each page calls ``is_leading``."""

    def __init__(self, *, is_leading: Callable[[], bool] = lambda: True) -> None:
        self.page = MetricsPage(NODEGROUP_METRICS)
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for nodegroup_metric in NODEGROUP_METRICS:
            if nodegroup_metric.kind is MetricKind.GAUGE:
                self._gauges[nodegroup_metric.name] = self.page.gauge(nodegroup_metric.name)
            elif nodegroup_metric.kind is MetricKind.COUNTER:
                self._counters[nodegroup_metric.name] = self.page.counter(nodegroup_metric.name)
        self._duration = self.page.histogram("serving_nodegroup_pass_duration_seconds")
        self._lags: dict[str, Histogram] = {
            name: self.page.histogram(name, buckets=_MINUTES_S) for name in (LOCK_DURATION, REGISTRATION_LAG)
        }
        self._gauges["serving_nodegroup_leader"].set_function(lambda: float(is_leading()))
        self._rows: dict[str, tuple[str, str]] = {}

    def passed(self, duration_s: float, groups: Collection[str]) -> None:
        """Record a pass over all ``groups``, and drop the metrics of removed groups."""
        self._duration.observe(duration_s)
        self._gauges["escalator_run_count"].inc()
        for name in self._rows.keys() - set(groups):
            cloud, group_id = self._rows.pop(name)
            for metric, gauge in self._gauges.items():
                if metric.startswith("escalator_cloud_provider_"):
                    gauge.remove(cloud, group_id, name)
                elif metric not in _UNLABELLED:
                    gauge.remove(name)

    def set_gauges(self, group: str, *, cloud: str, cloud_id: str, values: Mapping[str, float]) -> None:
        """Set the gauges of a group after its pass; ``values`` are by metric name.

        ``cloud`` is the name of the cloud provider, ``cloud_id`` the group's id there; both are labels.
        """
        self._rows[group] = (cloud, cloud_id)
        for name, value in values.items():
            gauge = self._gauges[name]
            labels = (cloud, cloud_id, group) if name.startswith("escalator_cloud_provider_") else (group,)
            gauge.labels(*labels).set(value)

    def lasted(self, group: str, name: str, duration_s: float) -> None:
        """Record one duration in the histogram ``name``: ``LOCK_DURATION`` or ``REGISTRATION_LAG``."""
        self._lags[name].labels(group).observe(duration_s)

    def counted(self, group: str, name: str, count: int, *more: str) -> None:
        """Count ``count`` more occurrences in a group; ``more`` are the values of further labels."""
        if not count:
            return
        if name in self._gauges:
            self._gauges[name].labels(group).inc(count)
        else:
            self._counters[name].labels(group, *more).inc(count)
