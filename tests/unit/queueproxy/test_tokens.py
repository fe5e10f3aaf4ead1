"""The mean number of tokens in flight."""

from serving.core.traffic.prompttokens import RequestTokens
from serving.queueproxy.tokens import EVENT_BYTES, TokenMeter


def test_mean_tokens_in_flight_are_weighted_by_time() -> None:
    meter = TokenMeter[str](10.0, sent_bytes_of=lambda _: 0)
    assert meter.report(10.0) == 0.0
    meter.arrive("a", RequestTokens(prompt=1000), 10.5)
    assert meter.report(11.0) == 500.0
    meter.arrive("b", RequestTokens(prompt=0), 11.0)
    meter.arrive("c", RequestTokens(prompt=200), 11.5)
    meter.exit("a", 11.5)
    meter.exit("b", 11.5)
    meter.exit("unknown", 11.5)
    assert meter.report(12.0) == 600.0
    # The clock stepped back, so no time has passed.
    assert meter.report(11.0) == 200.0
    meter.exit("c", 12.0)
    assert meter.report(13.0) == 0.0


def test_streamed_tokens_are_subtracted_but_not_prompt_tokens() -> None:
    sent_bytes = {"a": 0, "b": 0}
    meter = TokenMeter[str](0.0, sent_bytes_of=sent_bytes.__getitem__)
    meter.arrive("a", RequestTokens(prompt=100, answer=50), 0.0)
    meter.arrive("b", RequestTokens(prompt=10), 0.0)
    sent_bytes.update(a=20 * EVENT_BYTES, b=99 * EVENT_BYTES)
    assert meter.report(1.0) == 160.0
    assert meter.report(2.0) == 140.0
    sent_bytes["a"] = 1000 * EVENT_BYTES
    meter.report(3.0)
    assert meter.report(4.0) == 110.0
    meter.exit("a", 4.0)
    assert meter.report(5.0) == 10.0
