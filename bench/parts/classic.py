"""The classic decision at 1,000 pods with 60 s of points, as it runs: each 2 s."""

import random
from collections.abc import Callable

from bench.naive.classic import NaiveClassic
from bench.parts.timing import Comparison
from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicScaler
from serving.core.settings.classic import ClassicSettings

POD_COUNT = 1000
SETTINGS = ClassicSettings()
TARGET = 10.0
LEVEL_TARGET = 0.7
STEP_S = 2
NOW_S = 59.9


class _Fed:
    """A scaler with a minute of stats of all pods, at slightly different instants; all at ``level`` if it is given."""

    def __init__(
        self, record: Callable[[Stat], object], decide: Callable[[float], object], level: float | None
    ) -> None:
        self.record, self.decide, self.now_s = record, decide, 0
        dice = random.Random(1)
        self._seconds = [
            [(f"pod-{pod}", dice.random() / 2, dice.uniform(0, 15)) for pod in range(POD_COUNT)] for _ in range(64)
        ]
        self._level = level
        self.feed(60)

    def feed(self, seconds: int) -> None:
        """Record the next seconds of stats."""
        for _ in range(seconds):
            for pod, shift_s, drawn in self._seconds[self.now_s % 64]:
                concurrency = drawn if self._level is None else self._level
                self.record(Stat(pod=pod, at_s=self.now_s + shift_s, concurrency=concurrency, request_count=3.0))
            self.now_s += 1

    def decide_again(self) -> object:
        """Decide on unchanged points."""
        return self.decide(NOW_S)

    def tick(self) -> object:
        """Record the stats of a period, and decide."""
        self.feed(STEP_S)
        return self.decide(float(self.now_s))


def _sides(target: float, level: float | None = None) -> tuple[_Fed, _Fed]:
    """The product's scaler and the naive one."""
    ours = ClassicScaler(started_s=0.0)
    peer = NaiveClassic(target=target, rate=10.0, stable_s=60.0, panic_s=6.0, zero_s=300.0)
    return (
        _Fed(ours.record, lambda now_s: ours.decide(SETTINGS, target_concurrency=target, now_s=now_s), level),
        _Fed(peer.record, peer.scale, level),
    )


def rows() -> list[Comparison]:
    """Decision on unchanged points, decision with its 2,000 new points, and one record."""
    ours, peer = _sides(TARGET)
    # All pods at exactly the target, in tenths: the demand is a whole number of pods, so its last bit decides.
    level, level_peer = _sides(LEVEL_TARGET, LEVEL_TARGET)
    name = "classic: decision, 1,000 pods x 60 s of points"
    ticking = "classic: 2,000 records and the decision after them"
    stat, scaler = Stat(pod="pod-1", at_s=1.0, concurrency=2.0, request_count=3.0), ClassicScaler(started_s=0.0)
    return [
        Comparison(name=name, ours=ours.decide_again, peer=peer.decide_again, ratio_min=50),
        Comparison(
            name="classic: the same, where the answer hangs on the order of additions",
            ours=level.decide_again,
            peer=level_peer.decide_again,
        ),
        Comparison(name=ticking, ours=ours.tick, peer=peer.tick),
        Comparison(name="classic: record", ours=lambda: scaler.record(stat), us_max=3),
    ]
