"""Invalid tokens per client address."""

import pytest

from serving.core.traffic.wrongtokens import COUNT_MAX, PERIOD_S, WrongTokens


def test_address_beyond_limit_waits_until_its_period_ends() -> None:
    tokens = WrongTokens()
    assert not any(tokens.record("192.0.2.1", 100.0).wait_s for _ in range(COUNT_MAX))
    first, second = tokens.record("192.0.2.1", 110.0), tokens.record("192.0.2.1", 159.0)
    assert (first.wait_s, first.is_news) == (PERIOD_S - 10.0, True)
    assert (second.wait_s, second.is_news) == (1.0, False)
    assert tokens.record("192.0.2.2", 110.0).wait_s == 0
    assert tokens.record("192.0.2.1", 100.0 + PERIOD_S).wait_s == 0


def test_backward_clock_step_starts_new_period() -> None:
    tokens = WrongTokens()
    for _ in range(COUNT_MAX + 1):
        tokens.record("192.0.2.1", 1000.0)
    assert tokens.record("192.0.2.1", 10.0).wait_s == 0


@pytest.mark.parametrize(("other", "is_same"), [("2001:db8::2", True), ("2001:db8:0:1::2", False)])
def test_addresses_of_same_ipv6_network_count_together(other: str, *, is_same: bool) -> None:
    tokens = WrongTokens()
    for _ in range(COUNT_MAX):
        tokens.record("2001:db8::1", 0.0)
    assert (tokens.record(other, 0.0).wait_s > 0) is is_same


def test_oldest_of_1000_addresses_is_dropped() -> None:
    tokens = WrongTokens()
    for _ in range(COUNT_MAX):
        tokens.record("192.0.2.1", 0.0)
    for number in range(1000):
        tokens.record(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert tokens.record("192.0.2.1", 0.0).wait_s == 0
