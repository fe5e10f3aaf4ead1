"""All load metrics by name: the one table that admission, the autoscaler and messages read."""

from collections.abc import Mapping

from serving.model.load.metric import LoadMetric
from serving.model.load.queue_length import QUEUE_LENGTH
from serving.model.load.requests import CONCURRENCY, RPS

LOAD_METRICS: Mapping[str, LoadMetric] = {
    metric.name: metric
    for metric in (
        CONCURRENCY,
        RPS,
        QUEUE_LENGTH,
    )
}
