"""The windows of one revision: the load of its metrics over the last seconds.

``record`` adds a completed second to the bucket of the next second, so that the newest bucket is never in the future.
"""

from collections.abc import Iterable, Iterator

import msgspec

from serving.core.model.loadmetric import LoadMetric
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.decision.step import RevisionState, spec_of_metric
from serving.core.scaling.kpa.decide import starting_state
from serving.core.scaling.kpa.window import MetricWindows, Observation, WindowContents
from serving.core.scaling.kpa.zero import GateState
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KpaQuirks


class RevisionWindows:
    """Windows by metric; the first metric is the algorithm's."""

    __slots__ = ("_decided", "_further", "_metric", "_quirks", "_windows")

    def __init__(self, spec: ScalingSpec, *, quirks: KpaQuirks) -> None:
        self._quirks = quirks
        self._metric: LoadMetric = spec.load_metric
        self._windows = self._decided = _windows_of(spec, quirks)
        self._further: dict[str, MetricWindows] = {}
        self._resize_further(spec, 0.0)

    def record(self, number: int, load: Stat) -> None:
        """Record the summed load of a completed second."""
        self._windows.record(load, number + 1.0)
        for windows in self._further.values():
            windows.record(load, number + 1.0)

    def record_load(self, number: int, load: float) -> None:
        """Record a second's load in the unit of the first metric. Further metrics record nothing."""
        self._windows.record_load(load, number + 1)

    def query(self, now_s: float) -> Observation | NoData:
        """The averages of the first metric's windows."""
        self._decided = self._windows
        return self._windows.query(now_s)

    def in_silence(self, times: Iterable[float]) -> Iterator[Observation]:
        """The averages of the first metric at later times, in order, if no second until then has a load."""
        return self._windows.in_silence(times)

    def query_further(self, now_s: float) -> tuple[Observation | NoData, ...]:
        """The averages of each further metric, in the order of the spec."""
        return tuple(windows.query(now_s) for windows in self._further.values())

    def resize(self, spec: ScalingSpec, now_s: float) -> None:
        """Apply the changed settings of the revision. A new metric starts with an empty window."""
        if spec.metric != self._metric.name:
            self._metric = spec.load_metric
            self._windows = _windows_of(spec, self._quirks)
        else:
            _resize(self._windows, spec, now_s)
        self._resize_further(spec, now_s)

    def reset(self, spec: ScalingSpec) -> None:
        """Drop the recorded load."""
        self._windows = _windows_of(spec, self._quirks)
        self._further = {}
        self._resize_further(spec, 0.0)

    def contents(self) -> WindowContents:
        """Contents of the first metric's windows at the last ``query``; valid until the next second is recorded."""
        return self._decided.contents()

    def restore(self, contents: WindowContents) -> None:
        """Restore recorded contents of the first metric's windows."""
        self._windows.restore(contents)

    def _resize_further(self, spec: ScalingSpec, now_s: float) -> None:
        before, self._further = self._further, {}
        for index, metric in enumerate(spec.further_metrics):
            own = spec_of_metric(spec, index)
            windows = before.get(metric.metric)
            if windows is None:
                windows = _windows_of(own, self._quirks)
            else:
                _resize(windows, own, now_s)
            self._further[metric.metric] = windows


def starting_revision_state(
    spec: ScalingSpec,
    gate: GateState,
    *,
    ready_count: int = 0,
    present_scale: int = 0,
    now_s: float,
    quirks: KpaQuirks,
) -> RevisionState:
    """The state before the first decision.

    ``present_scale`` and ``ready_count`` prevent a lower count until a window has data; 0 has no effect.
    """
    kpa = starting_state(ready_count=ready_count, present_scale=present_scale, spec=spec, now_s=now_s, quirks=quirks)
    state = RevisionState(kpa=kpa, gate=gate)
    return with_metrics(state, spec, before=None, now_s=now_s, quirks=quirks)


def with_metrics(
    state: RevisionState, spec: ScalingSpec, *, before: ScalingSpec | None, now_s: float, quirks: KpaQuirks
) -> RevisionState:
    """The state with one entry per further metric of the spec. Metrics of ``before`` keep their entries."""
    known = (
        {}
        if before is None
        else dict(zip((metric.metric for metric in before.further_metrics), state.further, strict=True))
    )
    further = tuple(
        known.get(metric.metric)
        or starting_state(ready_count=0, present_scale=0, spec=spec_of_metric(spec, index), now_s=now_s, quirks=quirks)
        for index, metric in enumerate(spec.further_metrics)
    )
    return msgspec.structs.replace(state, further=further)


def _windows_of(spec: ScalingSpec, quirks: KpaQuirks) -> MetricWindows:
    return MetricWindows(
        stable_window_s=spec.stable_window_s,
        panic_window_s=spec.panic_window_s,
        kind=spec.window_kind,
        metric=spec.load_metric,
        quirks=quirks,
    )


def _resize(windows: MetricWindows, spec: ScalingSpec, now_s: float) -> None:
    windows.resize(
        stable_window_s=spec.stable_window_s,
        panic_window_s=spec.panic_window_s,
        kind=spec.window_kind,
        now_s=now_s,
    )
