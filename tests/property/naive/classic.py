"""A naive transcription of the specification of the June 2018 decision, as a reference."""

import math

from serving.core.model.stat import Stat


class NaiveClassic:
    """All points in one dict, scanned at each decision."""

    def __init__(self, *, target: float, rate: float, stable_s: float, panic_s: float, zero_s: float) -> None:
        self.target, self.rate = target, rate
        self.stable_s, self.panic_s, self.zero_s = stable_s, panic_s, zero_s
        self.points: dict[tuple[str, float], Stat] = {}
        self.panic_at: float | None = None
        self.panic_max = 0.0
        self.last_request_s = 0.0

    def record(self, stat: Stat) -> None:
        """Store a point; one of the same pod and time is replaced."""
        self.points[stat.pod, stat.at_s] = stat

    def scale(self, now_s: float) -> tuple[int, bool]:
        """Run the nine steps of the specification."""
        stable_sum = panic_sum = 0.0
        stable_n = panic_n = 0
        panic_pods, pods = set(), set()
        for key, stat in list(self.points.items()):
            if stat.at_s + self.panic_s > now_s:
                panic_sum += stat.concurrency
                panic_n += 1
                panic_pods.add(stat.pod)
            if stat.at_s + self.stable_s > now_s:
                stable_sum += stat.concurrency
                stable_n += 1
                pods.add(stat.pod)
                if stat.request_count > 0 and stat.at_s > self.last_request_s:
                    self.last_request_s = stat.at_s
            else:
                del self.points[key]
        if self.last_request_s + self.zero_s < now_s:
            return 0, True
        if self.panic_at is not None and self.panic_at + self.stable_s < now_s:
            self.panic_at, self.panic_max = None, 0.0
        if not pods:
            return 0, False
        stable = stable_sum / stable_n
        panic = panic_sum / panic_n if panic_n else math.nan
        desired_stable = min(stable / self.target, self.rate) * len(pods)
        desired_panic = min(panic / self.target, self.rate) * len(pods)
        if self.panic_at is None and panic_n and panic >= 2 * self.target:
            self.panic_at = now_s
        if self.panic_at is not None:
            if desired_panic > self.panic_max:
                self.panic_max, self.panic_at = desired_panic, now_s
            return max(1, math.ceil(self.panic_max)), True
        return max(1, math.ceil(desired_stable)), True
