import math

import msgspec

from serving.core.settings.election import ElectionSettings
from serving.net.cluster.leases.rules import (
    Election,
    LeaseAction,
    LeaseRecord,
    LeaseTimes,
    decide,
    lease_end_s,
    lease_times,
    lost,
    seen,
    tried,
    written,
)

TIMES = LeaseTimes()
ME, OTHER = "me", "other"
OTHERS = LeaseRecord(holder=OTHER, duration_s=15.0, renewed="a")
MINE = LeaseRecord(holder=ME, duration_s=15.0, renewed="a")


def leading(*, since_s: float) -> Election:
    return written(Election(), MINE, sent_s=since_s)


def step(election: Election, *, now_s: float) -> tuple[LeaseAction, float]:
    lease_step = decide(election, ME, TIMES, now_s=now_s)
    return lease_step.action, lease_step.until_s


def test_free_lease_is_acquired_immediately() -> None:
    assert step(Election(), now_s=5.0) == (LeaseAction.ACQUIRE, 5.0)
    assert step(seen(Election(), LeaseRecord(holder="", duration_s=1.0), now_s=5.0), now_s=5.0) == (
        LeaseAction.ACQUIRE,
        5.0,
    )


def test_foreign_lease_is_acquired_a_duration_after_its_last_change() -> None:
    election = seen(Election(), OTHERS, now_s=100.0)
    election = seen(election, OTHERS, now_s=110.0)
    assert step(election, now_s=114.75) == (LeaseAction.WAIT, 115.0)
    assert step(election, now_s=115.0) == (LeaseAction.ACQUIRE, 115.0)
    renewed = seen(election, msgspec.structs.replace(OTHERS, renewed="b"), now_s=112.0)
    assert step(renewed, now_s=115.0) == (LeaseAction.WAIT, 115.5)
    assert step(renewed, now_s=126.75) == (LeaseAction.WAIT, 127.0)


def test_holder_duration_applies_and_own_duration_if_absent() -> None:
    election = seen(Election(), msgspec.structs.replace(OTHERS, duration_s=40.0), now_s=0.0)
    assert step(election, now_s=39.75) == (LeaseAction.WAIT, 40.0)
    election = seen(Election(), msgspec.structs.replace(OTHERS, duration_s=0.0), now_s=0.0)
    assert step(election, now_s=13.75) == (LeaseAction.WAIT, 14.0)


def test_standby_rereads_lease_four_times_per_retry_period() -> None:
    assert step(seen(Election(), OTHERS, now_s=0.0), now_s=3.0) == (LeaseAction.WAIT, 3.5)


def test_failed_acquisition_is_retried_after_retry_period() -> None:
    election = tried(Election(), now_s=7.0)
    assert step(election, now_s=8.75) == (LeaseAction.WAIT, 9.0)
    assert step(election, now_s=9.0) == (LeaseAction.ACQUIRE, 9.0)


def test_lease_in_own_name_is_acquired_by_non_leader() -> None:
    assert step(seen(tried(Election(), now_s=0.0), MINE, now_s=1.0), now_s=2.0) == (LeaseAction.ACQUIRE, 2.0)


def test_holder_renews_each_retry_period() -> None:
    election = leading(since_s=10.0)
    assert step(election, now_s=10.5) == (LeaseAction.WAIT, 12.0)
    assert step(election, now_s=12.0) == (LeaseAction.RENEW, 12.0)
    assert step(tried(election, now_s=12.0), now_s=12.1) == (LeaseAction.WAIT, 14.0)


def test_holder_loses_lease_at_deadline_after_last_renewal_was_sent() -> None:
    election = tried(leading(since_s=10.0), now_s=19.0)
    assert lease_end_s(election, ME, TIMES) == 20.0
    assert step(election, now_s=19.5) == (LeaseAction.WAIT, 20.0), "it wakes at the deadline, not at the next attempt"
    assert step(election, now_s=20.0) == (LeaseAction.LOST, 20.0)


def test_frozen_holder_has_lost_lease() -> None:
    assert step(leading(since_s=10.0), now_s=3600.0) == (LeaseAction.LOST, 3600.0)


def test_holder_loses_lease_to_another_holder() -> None:
    election = seen(leading(since_s=10.0), OTHERS, now_s=11.0)
    assert lease_end_s(election, ME, TIMES) == -math.inf
    assert step(election, now_s=11.0) == (LeaseAction.LOST, 11.0)
    assert step(lost(election), now_s=12.0) == (LeaseAction.WAIT, 12.5)


def test_holder_of_deleted_lease_has_lost_it() -> None:
    assert step(seen(leading(since_s=10.0), None, now_s=11.0), now_s=11.0) == (LeaseAction.LOST, 11.0)


def test_non_leader_has_no_lease_end() -> None:
    assert lease_end_s(Election(), ME, TIMES) == -math.inf


def test_lease_times_are_read_from_settings() -> None:
    assert lease_times(ElectionSettings()) == LeaseTimes()
    settings = ElectionSettings(lease_duration_s=6.0, renew_deadline_s=4.0, retry_period_s=1.0)
    assert lease_times(settings) == LeaseTimes(duration_s=6.0, renew_deadline_s=4.0, retry_period_s=1.0)
