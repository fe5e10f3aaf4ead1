"""How many pods may be started ahead of requests: a bucket of permits that fills at a steady rate."""

_MINUTE_S = 60.0


class PreWarmBudget:
    """At most ``per_minute`` starts in a minute, over all revisions that share it."""

    __slots__ = ("_at_s", "_per_minute", "_permits")

    def __init__(self, per_minute: int) -> None:
        assert per_minute >= 1, per_minute
        self._per_minute = per_minute
        self._permits = float(per_minute)
        self._at_s: float | None = None

    def __repr__(self) -> str:
        return f"PreWarmBudget({self._permits:.1f} of {self._per_minute} left)"

    def take(self, now_s: float) -> bool:
        """Whether one more pod may be started now; if so, it counts. A clock that jumps back adds nothing."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._permits = min(self._per_minute, self._permits + passed_s * self._per_minute / _MINUTE_S)
        if self._permits < 1.0:
            return False
        self._permits -= 1.0
        return True
