"""A load metric that the app reports: the length of its own queue, as the gauge ``queue_length``."""

from serving.model.load.metric import LoadMetric
from serving.model.stat import Stat

_GAUGE = "queue_length"


def _queue_length(stat: Stat) -> float:
    return stat.gauges.get(_GAUGE, 0.0)


# Ten waiting items a pod: enough to tell a queue from a moment's delay. An app whose items are long sets its own target.
QUEUE_LENGTH = LoadMetric(name="queue-length", unit="queued", of_stat=_queue_length, target_default=10.0)
