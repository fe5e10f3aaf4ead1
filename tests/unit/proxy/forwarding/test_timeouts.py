from serving.proxy.forwarding.timeouts import NO_TIMEOUTS, Timeouts


def test_without_limits_nothing_expires() -> None:
    assert NO_TIMEOUTS.due_s(10.0, written_s=10.0, has_begun=False) == float("inf")


def test_the_earliest_limit_counts() -> None:
    limits = Timeouts(total_s=100.0, answer_start_s=5.0, idle_s=20.0)
    assert limits.due_s(10.0, written_s=10.0, has_begun=False) == 15.0
    assert limits.due_s(10.0, written_s=14.0, has_begun=True) == 34.0
    assert limits.due_s(10.0, written_s=100.0, has_begun=True) == 110.0
