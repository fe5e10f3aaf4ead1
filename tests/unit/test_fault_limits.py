"""``make faults`` names broken limits with their measurements."""

import msgspec

from bench.faults import Observation, limits_broken
from bench.parts.overload import Overload
from bench.parts.start_storm import StartStorm


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
        last_failed=0,
        last_p99_ms=900,
        daemons_mib=1,
    )


def test_a_limit_that_was_not_kept_is_named() -> None:
    assert limits_broken(observed(failed=2), failed_max=2) == []
    assert limits_broken(observed(failed=3), failed_max=2) == ["clock jump: 3 of 100 requests failed; at most 2 may"]
    assert limits_broken(observed(recovered_s=None), failed_max=0) == [
        "clock jump: not recovered at the end: its last 2 s had 0 failures and a p99 of 900 ms; at most 0 and 150 ms"
    ]


def test_a_bound_of_a_storm_that_was_broken_is_named_with_its_value() -> None:
    storm = StartStorm(
        rate=300.0,
        sent=3000,
        failed=0,
        lone_start_s=0.34,
        first_response_s=0.7,
        waited_max_s=0.7,
        backlog_gone_s=1.0,
        pods_s=(0.7, 1.1),
        others_p99_ms=250.0,
    )
    assert storm.broken_bounds() == []
    broken = msgspec.structs.replace(storm, failed=1, first_response_s=1.44, backlog_gone_s=7.4, others_p99_ms=4200.0)
    assert broken.broken_bounds() == [
        "1 of 3000 requests failed; none may",
        "the first response came after 1.44 s; at most 0.7 s, or 2 times the 0.34 s of a start alone",
        "requests waited for pods until 7.4 s; at most 5 s",
        "other services had a p99 of 4200 ms; at most 250 ms",
    ]
    assert msgspec.structs.replace(storm, lone_start_s=0.8, first_response_s=1.6).broken_bounds() == []
    assert len(msgspec.structs.replace(storm, others_p99_ms=float("nan")).broken_bounds()) == 1


def test_a_bound_of_an_overload_that_was_broken_is_named_with_its_value() -> None:
    overload = Overload(
        capacity_per_s=40.0,
        responses_per_s=36.0,
        refused=9,
        other=0,
        refusal_p99_ms=100.0,
        recovered_s=10.0,
        daemons_mib=1,
    )
    assert overload.broken_bounds() == []
    broken = msgspec.structs.replace(overload, responses_per_s=35.0, other=2, refusal_p99_ms=101.0, recovered_s=11.0)
    assert broken.broken_bounds() == [
        "35 responses a second; at least 36",
        "refusals had a p99 of 101 ms; at most 100 ms",
        "normal again after 11 s; at most 10 s",
        "2 requests failed otherwise than by 503; none may",
    ]
