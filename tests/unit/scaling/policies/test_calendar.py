"""Schedules at work."""

from serving.scaling.policies.calendar import PolicyCalendar
from serving.scaling.policies.scalingpolicy import Schedule, ScheduleState


class Clock:
    """Schedules that hold from one whole hour to the next, in turns; counts the looks."""

    def __init__(self) -> None:
        self.look_count = 0

    def __call__(self, schedule: Schedule, wall_s: float) -> ScheduleState:
        self.look_count += 1
        hour = int(wall_s // 3600)
        is_active = hour % 2 == int(schedule.start)
        return ScheduleState(is_active=is_active, until_s=(hour + 1) * 3600.0, until=f"{hour + 1}:00")


def calendar(clock: Clock) -> PolicyCalendar:
    even, odd = Schedule(name="even", start="0", end="1", min_count=3), Schedule(start="1", end="0", min_count=5)
    return PolicyCalendar("p", (even, odd), clock)


def test_only_schedules_that_hold_propose_and_a_look_is_made_when_one_is_over() -> None:
    clock = Clock()
    one = calendar(clock)
    assert (one.proposals(), one.min_count, one.status()) == ((), 0, [])
    assert one.look(100.0)
    (proposal,) = one.proposals()
    assert (proposal.decider, proposal.desired, proposal.reason) == ("schedule even of policy p", 3, "until 1:00")
    assert not one.look(3599.0)
    assert one.look(3600.0)
    (proposal,) = one.proposals()
    assert (proposal.decider, proposal.desired) == ("schedule 1 to 0 of policy p", 5)
    assert (one.min_count, clock.look_count) == (5, 4)
    assert [said["active"] for said in one.status()] == [False, True]
    assert "2 schedules of p" in repr(one)


def test_a_clock_that_jumps_back_makes_it_look_again() -> None:
    one = calendar(Clock())
    one.look(7300.0)
    assert one.look(3700.0)
    assert one.min_count == 5


def test_without_schedules_there_is_nothing_to_look_at() -> None:
    one = PolicyCalendar("p", (), Clock())
    assert not one.look(0.0)
    assert one.proposals() == ()
