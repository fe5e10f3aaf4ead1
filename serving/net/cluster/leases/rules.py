"""Leader election as a pure function: one process's next action on a lease, by the process's own clock.

Input: the lease's record, the own identity, three durations, and the times of the last observations and writes. Output:
acquire, renew, wait until a time, or lost. The rules are those of client-go (tools/leaderelection):

- A record is valid for its duration after *this process* observed its last change. The record's timestamps are of
  another clock and are not used.
- A holder relies on the lease for ``renew_deadline_s`` after it *sent* the last confirmed renewal. The server stored
  the renewal later, and other processes observed it even later. So no other process can acquire the lease before this
  deadline, unless a clock runs ``duration / deadline`` (1.5 by default) times faster than another.
- Therefore whether a process has a lease is a function of the clock and not a flag. A process that was frozen detects
  the loss at its first check.

The module uses no store and no clock; ``holder`` makes the calls.
"""

import enum
import math

import msgspec

from serving.core.settings.election import ElectionSettings

# Reads per retry period while waiting. A takeover is timed from the observation of the last renewal; with a single read
# per period the observation, and the takeover, could be a whole period late.
_CHECKS = 4


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a lease, in seconds; ``retry_period_s`` < ``renew_deadline_s`` < ``duration_s``.

    The defaults are those of client-go.
    """

    duration_s: float = 14.0
    """How long other processes respect an unchanged record."""

    renew_deadline_s: float = 10.0
    """How long a holder relies on the lease after it sent the last renewal."""

    retry_period_s: float = 2.0
    """Time between two renewals, or two attempts."""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lease.

    ``holder`` is "" for a free lease. The timestamps are for people; decisions compare them only for equality.
    """

    holder: str
    duration_s: float
    acquired: str = ""
    renewed: str = ""
    transition_count: int = 0


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """One process's observations of one lease. All times are on its clock, in seconds.

    ``record`` was read or written last, and first seen at ``seen_at_s``; it is None before the first read and while the
    lease does not exist. The last write was sent at ``tried_at_s``, the last own write that was confirmed at
    ``renewed_at_s`` (None while not leading).
    """

    record: LeaseRecord | None = None
    seen_at_s: float = -math.inf
    tried_at_s: float = -math.inf
    renewed_at_s: float | None = None


class LeaseAction(enum.StrEnum):
    """The next action of an elector: acquire or renew the lease, wait, or stop acting as its holder (lost)."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"


class LeaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next action. ``until_s`` is when to decide again: now, unless the action is WAIT."""

    action: LeaseAction
    until_s: float


def seen(election: Election, record: LeaseRecord | None, *, now_s: float) -> Election:
    """Record a read of the lease. Only a changed record counts as a renewal."""
    if record == election.record:
        return election
    return msgspec.structs.replace(election, record=record, seen_at_s=now_s)


def tried(election: Election, *, now_s: float) -> Election:
    """Record that a write is sent next."""
    return msgspec.structs.replace(election, tried_at_s=now_s)


def written(election: Election, record: LeaseRecord, *, sent_s: float) -> Election:
    """Record a confirmed write that was sent at ``sent_s``."""
    return msgspec.structs.replace(election, record=record, seen_at_s=sent_s, tried_at_s=sent_s, renewed_at_s=sent_s)


def lost(election: Election) -> Election:
    """Record that this process stepped down, or is about to release the lease."""
    return msgspec.structs.replace(election, renewed_at_s=None)


def lease_end_s(election: Election, me: str, times: LeaseTimes) -> float:
    """The time until which this process may act as the holder; minus infinity if it must not."""
    if election.renewed_at_s is None or election.record is None or election.record.holder != me:
        return -math.inf
    return election.renewed_at_s + times.renew_deadline_s


def decide(election: Election, me: str, times: LeaseTimes, *, now_s: float) -> LeaseStep:
    """The next step of the election."""
    pace_s = election.tried_at_s + times.retry_period_s
    if election.renewed_at_s is not None:
        until_s = lease_end_s(election, me, times)
        if now_s >= until_s:
            return LeaseStep(action=LeaseAction.LOST, until_s=now_s)
        if now_s >= pace_s:
            return LeaseStep(action=LeaseAction.RENEW, until_s=now_s)
        return LeaseStep(action=LeaseAction.WAIT, until_s=min(pace_s, until_s))
    take_at_s = max(free_at_s(election, me, times), pace_s)
    if now_s >= take_at_s:
        return LeaseStep(action=LeaseAction.ACQUIRE, until_s=now_s)
    return LeaseStep(action=LeaseAction.WAIT, until_s=min(take_at_s, now_s + times.retry_period_s / _CHECKS))


def free_at_s(election: Election, me: str, times: LeaseTimes) -> float:
    """When the lease may be acquired.

    A lease that names this process although it does not lead is free: the response to one of its writes was lost.
    """
    record = election.record
    if record is None or record.holder in {"", me}:
        return -math.inf
    return election.seen_at_s + (record.duration_s or times.duration_s)


def lease_times(settings: ElectionSettings) -> LeaseTimes:
    """The three times of a lease from the settings."""
    return LeaseTimes(
        duration_s=settings.lease_duration_s,
        renew_deadline_s=settings.renew_deadline_s,
        retry_period_s=settings.retry_period_s,
    )
