"""Tokens of requests that wait for a first pod."""

from serving.core.model.loadmetric import TOKENS_GAUGE
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.waitingtokens import WaitingTokens

WAITING = Stat(concurrency=4.0)


def load(tokens: float, *, concurrency: float = 2.0) -> Stat:
    return Stat(concurrency=concurrency, gauges={TOKENS_GAUGE: tokens})


def tokens_of(stat: Stat) -> float | None:
    return stat.gauges.get(TOKENS_GAUGE)


def test_waiting_request_has_mean_tokens_of_earlier_requests() -> None:
    waiting = WaitingTokens()
    assert waiting.estimated(WAITING) == WAITING
    waiting.record(load(6000.0))
    assert tokens_of(waiting.estimated(WAITING)) == 12_000.0
    # Seconds without tokens or requests say nothing about a request.
    for silent in (Stat(concurrency=5.0), load(500.0, concurrency=0.0)):
        waiting.record(silent)
    assert tokens_of(waiting.estimated(WAITING)) == 12_000.0
    for _ in range(600):
        waiting.record(load(200.0))
    estimate = tokens_of(waiting.estimated(WAITING))
    assert estimate is not None
    assert 400.0 < estimate < 420.0


def test_reported_tokens_are_not_estimated() -> None:
    waiting = WaitingTokens()
    waiting.record(load(6000.0))
    assert tokens_of(waiting.estimated(load(70.0))) == 70.0
