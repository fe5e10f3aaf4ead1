"""Today's decision for one revision: a stat recorded, the windows asked, a decision made."""

from bench.naive.kpa import NaiveKpa
from bench.parts.timing import Comparison
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.kpa.decide import decide, starting_state
from serving.core.scaling.kpa.window import MetricWindows, Observation
from serving.core.scaling.resolve import resolve
from serving.core.scaling.spec import WindowKind
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import AutoscalerSettings

# Knative's defaults.
SPEC = resolve(AutoscalerSettings(), ScalingAnnotations(), container_concurrency=0, reachable=True)
STAT = Stat(pod="pod-1", at_s=0.0, concurrency=175.0, request_count=120.0)
READY_COUNT = 3
FILLED_S = 60
POD_COUNT = 100


class _Ours:
    """A revision with a report a second and pod, and a decision each ``tick_s``."""

    def __init__(self, kind: WindowKind = WindowKind.LINEAR, *, pod_count: int = 1, tick_s: int = 1) -> None:
        self.collection = MetricWindows(
            stable_window_s=SPEC.stable_window_s, panic_window_s=SPEC.panic_window_s, kind=kind
        )
        self.state = starting_state(ready_count=READY_COUNT, present_scale=READY_COUNT, spec=SPEC, now_s=0.0)
        self.pods, self.seconds = range(pod_count), range(tick_s)
        self.now_s = 0.0
        for _ in range(FILLED_S):
            self.record()

    def record(self) -> None:
        """One second of stats."""
        self.now_s += 1
        for _ in self.pods:
            self.collection.record(STAT, self.now_s)

    def query(self) -> Observation | NoData:
        """Ask the windows."""
        return self.collection.query(self.now_s)

    def decide(self, observed: Observation | NoData) -> None:
        """Decide on what they say."""
        self.state, _ = decide(self.state, observed=observed, ready_count=READY_COUNT, spec=SPEC, now_s=self.now_s)

    def tick(self) -> None:
        """All of it."""
        for _ in self.seconds:
            self.record()
        self.decide(self.query())


class _Peer:
    """The same with the naive scaler."""

    def __init__(self, *, pod_count: int = 1, tick_s: int = 1) -> None:
        self.scaler = NaiveKpa(SPEC, ready_count=READY_COUNT, now_s=0.0)
        self.pods, self.seconds = range(pod_count), range(tick_s)
        self.now_s = 0.0
        for _ in range(FILLED_S):
            self.tick()

    def tick(self) -> None:
        """Record and decide."""
        for _ in self.seconds:
            self.now_s += 1
            for _ in self.pods:
                self.scaler.record(concurrency=STAT.concurrency, request_count=STAT.request_count, now_s=self.now_s)
        self.scaler.scale_on_windows(ready=READY_COUNT, now_s=self.now_s)


def rows() -> list[Comparison]:
    """All three steps together against the peer, with both kinds of windows; then each step by itself."""
    linear, weighted, peer = _Ours(), _Ours(WindowKind.WEIGHTED_EXPONENTIAL), _Peer()
    many, many_peer = _Ours(pod_count=POD_COUNT, tick_s=2), _Peer(pod_count=POD_COUNT, tick_s=2)
    parts = _Ours()
    observed = Observation(stable=175.0, panic=175.0)
    return [
        Comparison(name="kpa: record, query and decision, linear windows", ours=linear.tick, peer=peer.tick, us_max=10),
        Comparison(name="kpa: record, query and decision, weighted windows", ours=weighted.tick, us_max=10),
        Comparison(
            name="kpa: 2 s of stats of 100 pods and the decision after them", ours=many.tick, peer=many_peer.tick
        ),
        Comparison(name="kpa: record", ours=parts.record, us_max=3),
        Comparison(name="kpa: query", ours=parts.query),
        Comparison(name="kpa: decision", ours=lambda: parts.decide(observed)),
    ]
