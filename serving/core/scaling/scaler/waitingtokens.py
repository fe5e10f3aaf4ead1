"""Estimates the tokens of requests that wait for a first pod.

Queue-proxies count tokens, so requests without a pod have none. Input: the load of each completed second. Output: the
present load, with the mean tokens of a request for each waiting request.
"""

import msgspec

from serving.core.model.loadmetric import TOKENS_GAUGE
from serving.core.model.stat import Stat

# A second counts by half after 60 further seconds with tokens: the default stable window.
_KEPT = 0.5 ** (1 / 60)


class WaitingTokens:
    """The mean tokens of one revision's requests, from its pods' reports."""

    __slots__ = ("_requests", "_tokens")

    def __init__(self) -> None:
        self._requests = self._tokens = 0.0

    def record(self, load: Stat) -> None:
        """Record the summed load of a completed second. A second without tokens has no effect."""
        tokens = load.gauges.get(TOKENS_GAUGE, 0.0)
        if tokens and load.concurrency:
            self._requests = self._requests * _KEPT + load.concurrency
            self._tokens = self._tokens * _KEPT + tokens

    def estimated(self, present: Stat) -> Stat:
        """The present load of a revision without ready pods, with its estimated tokens.

        Example: if requests had 3,000 tokens in the mean, 4 waiting requests have 12,000. The load is unchanged if pods
        report tokens, or if no pod ever has.
        """
        if not self._requests or TOKENS_GAUGE in present.gauges:
            return present
        tokens = present.concurrency * self._tokens / self._requests
        return msgspec.structs.replace(present, gauges={**present.gauges, TOKENS_GAUGE: tokens})
