"""What the rivals share: Knative's pods while there are requests, and windows after the last one.

A rival sees the gaps of a revision and the calls of each second, and says from when until when a pod is ready after the
last request. Like the adaptive policy it begins with Knative's keep-alive, until five gaps are known.
"""

from collections.abc import Iterable
from typing import Any

from serving.core.scaling.adaptive.gaps import GapPlan, KeepWindow
from serving.core.scaling.adaptive.policy import AdaptivePolicy
from serving.core.scaling.adaptive.regret import KeepRegret
from serving.core.scaling.decision.policy import SecondOfLoad


class _NoRegret(KeepRegret):
    is_counted = False

    def is_worse(self, dial_s: float) -> bool:
        """Whether Knative's keep-alive decides."""
        del dial_s
        return False


class GapRival(AdaptivePolicy):
    """The policy of one revision, with other windows."""

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the policy
        super().__init__(*arguments, **more)
        # Nothing bounds the regret of a rival.
        self._regret = _NoRegret()

    def learn(self, gap_s: float) -> None:
        """A gap has ended."""

    def count(self, second: int, request_count: float) -> None:
        """A second with load is over."""

    def windows(self) -> list[KeepWindow]:
        """When a pod is ready, in seconds since the last request ended."""
        raise NotImplementedError

    def observe(self, second: SecondOfLoad) -> None:
        """A second that is over."""
        since_s = self.idle_since_s
        if since_s is not None and second.number - since_s >= 1.0:
            self.learn(second.number - since_s)
        self.count(second.number, second.request_count)
        super().observe(second)

    def _plan(self) -> GapPlan:
        return GapPlan(joined(self.windows(), self._hold_min_s), self._spec.cold_start_worth_s)


def joined(windows: Iterable[KeepWindow], min_s: float) -> tuple[KeepWindow, ...]:
    """Windows in order, without overlaps; the first begins at 0 and lasts for ``min_s`` at least."""
    keep_windows = [KeepWindow(0.0, min_s)]
    for keep_window in sorted(windows, key=lambda window: window.from_s):
        if keep_window.from_s <= keep_windows[-1].to_s:
            keep_windows[-1] = KeepWindow(keep_windows[-1].from_s, max(keep_windows[-1].to_s, keep_window.to_s))
        else:
            keep_windows.append(keep_window)
    return tuple(keep_windows)
