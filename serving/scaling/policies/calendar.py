"""The schedules of one policy at work on one revision: what they propose, and what their status says.

Each is looked at when its state is over by the wall clock; a clock that jumps back makes it look again. It knows no cluster.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from serving.scaling.kpa.merge import Proposal
from serving.scaling.policies.scalingpolicy import Schedule, ScheduleState

StateAt = Callable[[Schedule, float], ScheduleState]
"""The state of a schedule at a time, in seconds since the epoch."""


class PolicyCalendar:
    """Schedules, each with its state as it was seen last and the time of that look."""

    __slots__ = ("_name", "_schedules", "_seen", "_state_at")

    def __init__(self, name: str, schedules: Sequence[Schedule], state_at: StateAt) -> None:
        """``name`` is the policy's."""
        self._name, self._schedules, self._state_at = name, schedules, state_at
        self._seen: list[tuple[float, ScheduleState]] = []

    def __repr__(self) -> str:
        """One line."""
        return f"PolicyCalendar({len(self._schedules)} schedules of {self._name})"

    @property
    def min_count(self) -> int:
        """The most pods that any asks for that holds; 0 if none does."""
        return max((one.min_count for one, (_, state) in self._pairs() if state.is_active), default=0)

    def look(self, wall_s: float) -> bool:
        """Whether any schedule is in another state than at the last look."""
        if len(self._seen) == len(self._schedules) and all(at_s <= wall_s < one.until_s for at_s, one in self._seen):
            return False
        self._seen = [(wall_s, self._state_at(one, wall_s)) for one in self._schedules]
        return True

    def proposals(self) -> tuple[Proposal, ...]:
        """What those want that hold."""
        return tuple(
            Proposal(
                decider=f"schedule {one.shown_name} of policy {self._name}",
                desired=one.min_count,
                reason=f"until {state.until}",
            )
            for one, (_, state) in self._pairs()
            if state.is_active
        )

    def status(self) -> list[dict[str, Any]]:
        """Each schedule, whether it holds, and until when."""
        return [
            {"name": one.shown_name, "active": state.is_active, "until": state.until}
            for one, (_, state) in self._pairs()
        ]

    def _pairs(self) -> Iterator[tuple[Schedule, tuple[float, ScheduleState]]]:
        """Each schedule with the time of the look and its state; nothing before the first look."""
        return zip(self._schedules, self._seen, strict=False)
