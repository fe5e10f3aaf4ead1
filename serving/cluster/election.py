"""Who leads: what a process makes of a lease as it was read, by its own clock alone.

Input: the lease's record, who we are, three times, and when we saw or did what. Output: acquire, renew, wait until then,
or lost. It follows client-go's leader election (kubernetes/client-go, tools/leaderelection) in its rules:

- A record is good for its duration from the moment at which *we* saw it change. The times that are written in it are the
  other's clock, and say nothing to us.
- A holder believes for ``renew_deadline_s`` from the moment at which it *sent* the last renewal that was confirmed. As the
  store had it later than that, and others saw it later still, nobody else can have taken it by then, whatever the delays,
  as long as no clock runs ``duration / deadline`` (1.5 by default) times faster than another.
- So belief is a function of the clock and no flag: a process that was frozen knows, at the first look, that it has lost.

It knows no store and no clock; ``leader`` is the shell around it.
"""

import enum
import math
from collections.abc import Iterator

import msgspec

__all__ = [
    "Election",
    "LeaseAction",
    "LeaseRecord",
    "LeaseStep",
    "LeaseTimes",
    "decide",
    "free_at_s",
    "held_until_s",
    "lost",
    "seen",
    "tried",
    "written",
]


# Looks of who waits in a retry period. What counts for a takeover is when the last renewal was seen; looked at as rarely as
# it is made, it may be seen a whole period late, and the takeover comes as much later.
_LOOKS = 4


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The three times, in seconds; ``retry_period_s`` < ``renew_deadline_s`` < ``duration_s``. Defaults: client-go's."""

    duration_s: float = 14.0
    """How long others leave a record alone that does not change."""

    renew_deadline_s: float = 10.0
    """How long a holder believes without another renewal, from when the last one was sent."""

    retry_period_s: float = 2.0
    """Time between two renewals, or two attempts."""

    def problems(self) -> Iterator[str]:
        """What is wrong with them."""
        if not 0 < self.retry_period_s < self.renew_deadline_s < self.duration_s:
            yield (
                f"retry {self.retry_period_s:g} s, deadline {self.renew_deadline_s:g} s, "
                f"duration {self.duration_s:g} s: each must be below the next"
            )


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease says. ``holder`` "" is nobody; the two stamps are for people and only compared for sameness."""

    holder: str
    duration_s: float
    acquired: str = ""
    renewed: str = ""
    transition_count: int = 0


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """What one process remembers of one lease; all times are of its own clock, in seconds."""

    record: LeaseRecord | None = None
    """As it was read or written last; None before the first look and while there is no lease."""

    seen_at_s: float = -math.inf
    """When it was first seen as it is."""

    tried_at_s: float = -math.inf
    """When the last attempt to write was sent."""

    renewed_at_s: float | None = None
    """When the last confirmed write of ours was sent; None while we do not lead."""


class LeaseAction(enum.StrEnum):
    """What to do."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


class LeaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. ``until_s`` is when to look again if it is to wait, and now if it is not."""

    action: LeaseAction
    until_s: float


def seen(election: Election, record: LeaseRecord | None, *, now_s: float) -> Election:
    """The lease was read. Only a change counts as a sign of life."""
    if record == election.record:
        return election
    return msgspec.structs.replace(election, record=record, seen_at_s=now_s)


def tried(election: Election, *, now_s: float) -> Election:
    """A write is about to be sent, of which nothing is known yet."""
    return msgspec.structs.replace(election, tried_at_s=now_s)


def written(election: Election, record: LeaseRecord, *, sent_s: float) -> Election:
    """A write of ours was confirmed; it was sent at ``sent_s``."""
    return msgspec.structs.replace(election, record=record, seen_at_s=sent_s, tried_at_s=sent_s, renewed_at_s=sent_s)


def lost(election: Election) -> Election:
    """We have stepped down, or are about to let go."""
    return msgspec.structs.replace(election, renewed_at_s=None)


def held_until_s(election: Election, me: str, times: LeaseTimes) -> float:
    """Until when we may act as the holder; minus infinity if we may not at all."""
    if election.renewed_at_s is None or election.record is None or election.record.holder != me:
        return -math.inf
    return election.renewed_at_s + times.renew_deadline_s


def decide(election: Election, me: str, times: LeaseTimes, *, now_s: float) -> LeaseStep:
    """What to do about a lease now."""
    pace_s = election.tried_at_s + times.retry_period_s
    if election.renewed_at_s is not None:
        until_s = held_until_s(election, me, times)
        if now_s >= until_s:
            return LeaseStep(action=LeaseAction.LOST, until_s=now_s)
        if now_s >= pace_s:
            return LeaseStep(action=LeaseAction.RENEW, until_s=now_s)
        return LeaseStep(action=LeaseAction.WAIT, until_s=min(pace_s, until_s))
    take_at_s = max(free_at_s(election, me, times), pace_s)
    if now_s >= take_at_s:
        return LeaseStep(action=LeaseAction.ACQUIRE, until_s=now_s)
    return LeaseStep(action=LeaseAction.WAIT, until_s=min(take_at_s, now_s + times.retry_period_s / _LOOKS))


def free_at_s(election: Election, me: str, times: LeaseTimes) -> float:
    """When the lease may be taken. What bears our name though we do not lead is an answer that was lost: ours to take."""
    record = election.record
    if record is None or record.holder in {"", me}:
        return -math.inf
    return election.seen_at_s + (record.duration_s or times.duration_s)
