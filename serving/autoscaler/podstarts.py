"""How long the pods of a revision take to start: from the time a pod is seen first until it is ready for the first time.

Input: pods as the watch brings them, with the time. Output: the seconds that a start took, once for each pod. A pod that is
ready when it is seen first has started before, and one that is ready again has not started again: neither is measured.
"""

from serving.scaling.revision import ScaledPod


class PodStarts:
    """The pods of one revision that start."""

    __slots__ = ("_seen_s",)

    def __init__(self) -> None:
        self._seen_s: dict[str, float | None] = {}

    def __repr__(self) -> str:
        """One line."""
        starting = sum(one is not None for one in self._seen_s.values())
        return f"PodStarts({starting} of {len(self._seen_s)} pods are starting)"

    def take(self, pod: ScaledPod, now_s: float, *, is_gone: bool) -> float | None:
        """A pod as it is now, or that it is gone; the seconds that its start took if it is ready for the first time."""
        if is_gone or pod.is_ending:
            self._seen_s.pop(pod.name, None)
            return None
        seen_s = self._seen_s.setdefault(pod.name, None if pod.is_ready else now_s)
        if seen_s is None or not pod.is_ready:
            return None
        self._seen_s[pod.name] = None
        return max(0.0, now_s - seen_s)
