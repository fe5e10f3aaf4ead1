"""The scale lock: after the cloud was asked for nodes, nothing more is asked until they had time to come.

Inputs: when nodes were asked for and the cool-down; output: whether that time is over. It does not know whether the
nodes came: the circuit breaker looks at that. Source: atlassian/escalator 043bb1b, pkg/controller/scale_lock.go.
"""

import msgspec


class ScaleLock(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes were asked for, and when."""

    requested_count: int
    locked_at_s: float


def lock_in_force(lock: ScaleLock | None, *, cool_down_s: float, now_s: float) -> ScaleLock | None:
    """The lock if it still holds, else None: with 120 s of cool-down it holds at 119 s and no longer at 120 s."""
    if lock is None or now_s - lock.locked_at_s >= cool_down_s:
        return None
    return lock
