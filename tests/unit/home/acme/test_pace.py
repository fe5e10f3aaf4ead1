import pytest

from serving.home.acme.pace import Failures, host_failed, renewal_at_s, server_failed

DAY_S = 86_400.0


def test_renewal_is_at_two_thirds_of_lifetime_spread_by_host() -> None:
    times = {renewal_at_s(f"h{n}.example", not_before_s=0, not_after_s=90 * DAY_S) / DAY_S for n in range(200)}
    assert 55.5 <= min(times) < 56.5
    assert 59 < max(times) <= 60
    assert len(times) > 150


def test_retry_pauses_double_up_to_a_maximum() -> None:
    failures, pauses = None, []
    for _ in range(12):
        failures = host_failed(failures, 1000.0, retry_after_s=0)
        pauses.append(failures.retry_at_s - 1000)
    assert pauses[:4] == [120, 240, 480, 960]
    assert pauses[-1] == 12 * 3600
    # Let's Encrypt counts five failed validations of a host an hour.
    assert sum(pauses[:5]) >= 3600
    assert server_failed(Failures(count=20, retry_at_s=0), 0.0) == Failures(count=21, retry_at_s=3600)
    assert server_failed(None, 5.0) == Failures(count=1, retry_at_s=65)


@pytest.mark.parametrize(("asked_s", "pause_s"), [(10, 120), (7200, 7200), (-5, 120)])
def test_retry_after_of_the_server_extends_the_pause(asked_s: float, pause_s: float) -> None:
    assert host_failed(None, 0.0, retry_after_s=asked_s).retry_at_s == pause_s
