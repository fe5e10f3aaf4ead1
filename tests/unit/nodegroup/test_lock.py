"""The scale lock ends by itself."""

from serving.nodegroup.lock import ScaleLock, lock_in_force

LOCK = ScaleLock(requested_count=6, locked_at_s=1000.0)


def test_no_lock_holds_nothing() -> None:
    assert lock_in_force(None, cool_down_s=120.0, now_s=0.0) is None


def test_a_lock_holds_for_the_cool_down_and_not_at_its_end() -> None:
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1119.0) is LOCK
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1120.0) is None
