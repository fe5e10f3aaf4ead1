"""``make faults`` names broken limits with their measurements."""

from bench.faults import Observation, limits_broken


def observed(*, failed: int = 0, recovered_s: float | None = 1.0) -> Observation:
    return Observation(
        fault="clock jump",
        sent=100,
        failed=failed,
        kinds={},
        cut={},
        before_p99_ms=10,
        p99_ms=900,
        recovered_s=recovered_s,
        daemons_mib=1,
    )


def test_a_limit_that_was_not_kept_is_named() -> None:
    assert limits_broken(observed(failed=2), failed_max=2) == []
    assert limits_broken(observed(failed=3), failed_max=2) == ["clock jump: 3 of 100 requests failed; at most 2 may"]
    (late,) = limits_broken(observed(recovered_s=None), failed_max=0)
    assert late.startswith("clock jump: not recovered at the end: a window had a failure or a p99 above ")
