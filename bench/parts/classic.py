"""The classic decision at 1,000 pods with 60 s of points, as it runs: 2 s of new points, then a decision."""

import random

from bench.naive.classic import NaiveClassic
from bench.parts.timing import Comparison
from serving.model.stat import Stat
from serving.scaling.classic.classic import ClassicScaler
from serving.settings.classic import ClassicSettings

POD_COUNT = 1000
SETTINGS = ClassicSettings()
TARGET = 10.0
LEVEL_TARGET = 0.7
STEP_S = 2


class _Feed:
    """One second after the other of stats from all pods, at slightly different instants, for ours and the peer alike."""

    def __init__(self) -> None:
        self.ours = ClassicScaler(started_s=0.0)
        self.peer = NaiveClassic(target=TARGET, rate=10.0, stable_s=60.0, panic_s=6.0, zero_s=300.0)
        dice = random.Random(1)
        self.seconds = [
            [(f"pod-{pod}", dice.random() / 2, dice.uniform(0, 15), 3.0) for pod in range(POD_COUNT)] for _ in range(64)
        ]
        self.ours_now_s = self.peer_now_s = 0
        for _ in range(60):
            self.feed_ours()
            self.feed_peer()

    def feed_ours(self) -> None:
        for pod, shift_s, concurrency, count in self.seconds[self.ours_now_s % 64]:
            at_s = self.ours_now_s + shift_s
            self.ours.record(Stat(pod=pod, at_s=at_s, concurrency=concurrency, request_count=count))
        self.ours_now_s += 1

    def feed_peer(self) -> None:
        for pod, shift_s, concurrency, count in self.seconds[self.peer_now_s % 64]:
            at_s = self.peer_now_s + shift_s
            self.peer.record(Stat(pod=pod, at_s=at_s, concurrency=concurrency, request_count=count))
        self.peer_now_s += 1


class _Level(_Feed):
    """All pods at exactly the target, in tenths: the demand is a whole number of pods, so its last bit decides."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = ClassicScaler(started_s=0.0)
        self.peer = NaiveClassic(target=LEVEL_TARGET, rate=10.0, stable_s=60.0, panic_s=6.0, zero_s=300.0)
        self.seconds = [[(pod, shift_s, LEVEL_TARGET, count) for pod, shift_s, _, count in row] for row in self.seconds]
        self.ours_now_s = self.peer_now_s = 0
        for _ in range(60):
            self.feed_ours()
            self.feed_peer()


def rows() -> list[Comparison]:
    """Decision on unchanged points, decision with its 2,000 new points, and one record."""
    feed = _Feed()
    decide = feed.ours.decide
    decide(SETTINGS, target_concurrency=TARGET, now_s=59.9)
    feed.peer.scale(59.9)
    standing = Comparison(
        name="classic: decision, 1,000 pods x 60 s of points",
        ours=lambda: decide(SETTINGS, target_concurrency=TARGET, now_s=59.9),
        peer=lambda: feed.peer.scale(59.9),
        ratio_min=50,
    )

    def tick_ours() -> None:
        for _ in range(STEP_S):
            feed.feed_ours()
        decide(SETTINGS, target_concurrency=TARGET, now_s=float(feed.ours_now_s))

    def tick_peer() -> None:
        for _ in range(STEP_S):
            feed.feed_peer()
        feed.peer.scale(float(feed.peer_now_s))

    ticking = Comparison(name="classic: 2,000 records and the decision after them", ours=tick_ours, peer=tick_peer)
    stat = Stat(pod="pod-1", at_s=1.0, concurrency=2.0, request_count=3.0)
    scaler = ClassicScaler(started_s=0.0)
    recording = Comparison(name="classic: record", ours=lambda: scaler.record(stat), us_max=3)
    level = _Level()
    in_order = Comparison(
        name="classic: the same, where the answer hangs on the order of additions",
        ours=lambda: level.ours.decide(SETTINGS, target_concurrency=LEVEL_TARGET, now_s=59.9),
        peer=lambda: level.peer.scale(59.9),
    )
    return [standing, in_order, ticking, recording]
