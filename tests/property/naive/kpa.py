"""A naive transcription of the specification of the present decision, as a reference.

Windows are lists of points, scanned at each question; the delay is a list of answers. Behaves as the product does by
default; ``restart_may_lower`` and the length of the delay are the original's, for the caller feeds one spec.
"""

import math

from serving.core.scaling.spec import ScalingSpec


class NaiveWindow:
    """Points that may still count, each with its second."""

    def __init__(self, *, window_s: int, weighted: bool = False) -> None:
        self.window_s, self.weighted = window_s, weighted
        self.points: list[tuple[int, float]] = []
        self.first = self.last = -1

    def record(self, at_s: float, value: float) -> None:
        """Store a point unless it is too old; after a silent window no older point counts."""
        second = math.floor(at_s)
        if self.points and second + self.window_s <= self.last:
            return
        if not self.points or second - self.last >= self.window_s:
            self.points = []
            self.first = self.last = second
        self.first, self.last = min(self.first, second), max(self.last, second)
        self.points.append((second, value))

    def resize(self, window_s: int, now_s: float) -> None:
        """Keep the points inside both the old and the new width."""
        if window_s == self.window_s:
            return
        if not self.points or math.floor(now_s) - self.last > self.window_s:
            self.points = []
        self.first = max(self.first, self.last - self.window_s + 1)
        self.points = [point for point in self.points if point[0] > self.last - min(self.window_s, window_s)]
        self.window_s = window_s

    def average(self, now_s: float) -> float | None:
        """The average, or None without a point within the window."""
        now = max(self.last, math.floor(now_s))
        if not self.points or now - self.last >= self.window_s:
            return None
        self.points = [point for point in self.points if point[0] > self.last - self.window_s]
        seen = min(self.last - self.first + 1, self.window_s - (now - self.last))
        within = [(second, value) for second, value in self.points if second > now - self.window_s]
        if not self.weighted:
            return round(sum(value for _, value in within) / seen, 6)
        smoothing = max(1 - 0.0001 ** (1 / self.window_s), 0.2)
        weight: float = sum(smoothing * (1 - smoothing) ** age for age in range(seen))
        weighted: float = sum(value * smoothing * (1 - smoothing) ** (self.last - second) for second, value in within)
        return weighted / weight


class NaiveKpa:
    """One scaler with its windows: record, then scale."""

    def __init__(self, spec: ScalingSpec, *, ready_count: int, now_s: float) -> None:
        self.spec = spec
        self.panic_at: float | None = now_s if ready_count > 1 else None
        self.panic_max = ready_count
        self.responses: list[tuple[int, int]] = []
        self.windows = {
            (metric, width): NaiveWindow(window_s=int(width))
            for metric in ("concurrency", "rps")
            for width in {spec.stable_window_s, spec.panic_window_s}
        }

    def record(self, *, concurrency: float, request_count: float, now_s: float) -> None:
        """Add a stat to all windows."""
        for (metric, _), window in self.windows.items():
            window.record(now_s, concurrency if metric == "concurrency" else request_count)

    def scale_on_windows(self, *, ready: int, now_s: float) -> tuple[int, int] | None:
        """Desired pods and excess burst capacity; None without data."""
        metric = str(self.spec.metric)
        stable = self.windows[metric, self.spec.stable_window_s].average(now_s)
        panic = self.windows[metric, self.spec.panic_window_s].average(now_s) or 0.0
        return None if stable is None else self.scale(stable=stable, panic=panic, ready=ready, now_s=now_s)

    def scale(self, *, stable: float, panic: float, ready: int, now_s: float) -> tuple[int, int]:
        """Steps 3 to 10."""
        spec = self.spec
        r = max(1, ready)
        up = math.ceil(spec.max_scale_up_rate * r)
        down = math.floor(r / spec.max_scale_down_rate) if spec.reachable else 0
        ws, wp = math.ceil(stable / spec.target_value), math.ceil(panic / spec.target_value)
        s, p = min(max(ws, down), up), min(max(wp, down), up)
        if spec.activation_scale > 1:
            s = spec.activation_scale if ws > 0 and spec.activation_scale > s else s
            p = spec.activation_scale if wp > 0 and spec.activation_scale > p else p
        if wp / r >= spec.panic_threshold_ratio:
            self.panic_at = now_s
        elif self.panic_at is not None and self.panic_at + spec.stable_window_s < now_s:
            self.panic_at, self.panic_max = None, 0
        desired = s
        if self.panic_at is not None:
            self.panic_max = max(self.panic_max, s, p)
            desired = self.panic_max
        if spec.reachable and spec.scale_down_delay_s:
            slot = math.floor(now_s) // 2
            self.responses.append((slot, desired))
            self.responses = [a for a in self.responses if a[0] > slot - math.ceil(spec.scale_down_delay_s / 2)]
            desired = max(count for _, count in self.responses)
        burst = spec.target_burst_capacity
        return desired, int(burst) if burst <= 0 else math.floor(ready * spec.total_value - burst - panic)
