"""The two load metrics that the queue-proxy measures itself: requests in flight, and requests a second."""

from serving.model.load.metric import LoadMetric
from serving.model.stat import Stat


def _concurrency(stat: Stat) -> float:
    return stat.concurrency - stat.proxied_concurrency


def _requests(stat: Stat) -> float:
    return stat.request_count - stat.proxied_request_count


CONCURRENCY = LoadMetric(name="concurrency", unit="in flight", of_stat=_concurrency)
RPS = LoadMetric(name="rps", unit="requests a second", of_stat=_requests)
