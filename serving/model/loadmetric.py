"""The record of one load metric for scaling.

A load metric turns one source's report into that source's part of the load. The parts of all sources add up to the load of
the revision, which is divided by the target of one pod. A new load metric is one record and its entry in ``LOAD_METRICS``.
"""

from collections.abc import Callable, Mapping

import msgspec

from serving.model.stat import Stat

_GAUGE = "queue_length"


class LoadMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One load metric. ``name`` is the value of the annotation ``autoscaling.knative.dev/metric``."""

    name: str
    unit: str
    """The unit of the load in messages, in the plural: "in flight"."""

    of_stat: Callable[[Stat], float]
    """The load in one report, without the part that an activator reports too."""

    target_default: float | None = None
    """Load that one pod takes by default. None: a setting of the autoscaler defines it."""


def _concurrency(stat: Stat) -> float:
    return stat.concurrency - stat.proxied_concurrency


def _requests(stat: Stat) -> float:
    return stat.request_count - stat.proxied_request_count


CONCURRENCY = LoadMetric(name="concurrency", unit="in flight", of_stat=_concurrency)
RPS = LoadMetric(name="rps", unit="requests a second", of_stat=_requests)


def _queue_length(stat: Stat) -> float:
    return stat.gauges.get(_GAUGE, 0.0)


# Ten waiting items a pod: enough to tell a queue from a moment's delay. An app whose items are long sets its own target.
QUEUE_LENGTH = LoadMetric(name="queue-length", unit="queued", of_stat=_queue_length, target_default=10.0)


LOAD_METRICS: Mapping[str, LoadMetric] = {
    metric.name: metric
    for metric in (
        CONCURRENCY,
        RPS,
        QUEUE_LENGTH,
    )
}
