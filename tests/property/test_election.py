"""Electors over one store on virtual time: two never lead at once, under any delay, loss or freeze.

Each elector has its own clock, with an offset and a rate; each call may take long, be lost on its way there or on its
way back; between any two steps an elector may be frozen. Leadership is read from the pure function that the gate
before each write calls.
"""

import heapq
import itertools
from collections.abc import Callable, Generator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.net.cluster.leases.rules import (
    Election,
    LeaseAction,
    LeaseRecord,
    LeaseTimes,
    decide,
    lease_end_s,
    lost,
    seen,
    tried,
    written,
)

TIMES = LeaseTimes()
END_S = 300.0
# Beyond this ratio of clock rates there is no guarantee: duration / deadline is 1.5.
RATES = st.floats(0.85, 1.15)
# Mostly short; sometimes longer than each of the three lease times.
DELAYS = st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 0.2), st.floats(0.0, 40.0))
STALLS = st.one_of(st.just(0.0), st.just(0.0), st.just(0.0), st.floats(0.0, 60.0))
FATES = st.sampled_from(["done", "done", "done", "done", "lost there", "lost back"])


class Store:
    """One lease with a version."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.version = 0

    def write(self, record: LeaseRecord, version: int) -> bool:
        if version != self.version:
            return False
        self.record, self.version = record, version + 1
        return True


class Elector:
    """The steps of ``Leader``; each await is a yield of its duration by the world's clock."""

    def __init__(
        self, name: str, store: Store, *, offset_s: float, rate: float, chance: Callable[[], "Chance"]
    ) -> None:
        self.name = name
        self.election = Election()
        self._store, self._offset_s, self._rate, self._chance = store, offset_s, rate, chance
        self._version = 0
        self._stamps = itertools.count()
        self.now_s = 0.0
        self.terms = 0

    def clock_s(self, world_s: float) -> float:
        return self._offset_s + self._rate * world_s

    def believes(self, world_s: float) -> bool:
        return self.clock_s(world_s) < lease_end_s(self.election, self.name, TIMES)

    def run(self) -> Generator[float, None, None]:
        while True:
            yield from self._read()
            while True:
                step = decide(self.election, self.name, TIMES, now_s=self.clock_s(self.now_s))
                if step.action is LeaseAction.WAIT:
                    yield (step.until_s - self.clock_s(self.now_s)) / self._rate + self._chance().stall_s
                    if self.election.renewed_at_s is None:
                        break
                elif step.action is LeaseAction.LOST:
                    self.election = lost(self.election)
                    break
                elif not (yield from self._write(f"{self.name}-{next(self._stamps)}")):
                    break

    def _read(self) -> Generator[float, None, None]:
        chance = self._chance()
        yield chance.there_s
        record, version = self._store.record, self._store.version
        yield chance.back_s + chance.stall_s
        if chance.fate == "done":
            self._version = version
            self.election = seen(self.election, record, now_s=self.clock_s(self.now_s))

    def _write(self, stamp: str) -> Generator[float, None, bool]:
        chance = self._chance()
        sent_s = self.clock_s(self.now_s)
        before_leading = self.election.renewed_at_s is not None
        self.election = tried(self.election, now_s=sent_s)
        record = LeaseRecord(holder=self.name, duration_s=TIMES.duration_s, renewed=stamp)
        yield chance.there_s
        stored = chance.fate != "lost there" and self._store.write(record, self._version)
        yield chance.back_s + chance.stall_s
        if not stored or chance.fate == "lost back":
            return False
        self._version += 1
        self.election = written(self.election, record, sent_s=sent_s)
        self.terms += not before_leading
        return True


class Chance(msgspec.Struct, frozen=True, kw_only=True):
    there_s: float
    back_s: float
    stall_s: float
    fate: str


CHANCES = st.builds(Chance, there_s=DELAYS, back_s=DELAYS, stall_s=STALLS, fate=FATES)


def play(electors: list[Elector], observe: Callable[[float], None]) -> None:
    """Run all electors on one clock; observe after and between steps."""
    runs = [elector.run() for elector in electors]
    due = [(0.0, number) for number in range(len(runs))]
    before_s = 0.0
    while due:
        at_s, number = heapq.heappop(due)
        if at_s > END_S:
            return
        # Between two steps leadership can only end, so the moments before each step matter.
        observe((before_s + at_s) / 2)
        electors[number].now_s = at_s
        heapq.heappush(due, (at_s + max(0.001, next(runs[number])), number))
        observe(at_s)
        before_s = at_s


@settings(deadline=None, max_examples=300)
@given(data=st.data(), offsets=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), rates=st.tuples(RATES, RATES))
def test_two_electors_never_lead_at_the_same_time(
    data: st.DataObject, offsets: tuple[float, float], rates: tuple[float, float]
) -> None:
    store = Store()
    drawn = data.draw(st.lists(CHANCES, min_size=1, max_size=60))
    chances = itertools.cycle(drawn)
    electors = [
        Elector(f"elector-{number}", store, offset_s=offsets[number], rate=rates[number], chance=lambda: next(chances))
        for number in (0, 1)
    ]

    def observe(world_s: float) -> None:
        assert sum(elector.believes(world_s) for elector in electors) <= 1

    play(electors, observe)


def test_one_elector_leads_continuously_without_faults() -> None:
    store = Store()
    calm = Chance(there_s=0.005, back_s=0.005, stall_s=0.0, fate="done")
    electors = [
        Elector(f"elector-{number}", store, offset_s=5.0 * number, rate=1.0, chance=lambda: calm) for number in (0, 1)
    ]
    leaders: set[str] = set()

    def observe(world_s: float) -> None:
        names = [elector.name for elector in electors if elector.believes(world_s)]
        leaders.update(names)
        assert names or world_s < 1.0

    play(electors, observe)
    assert len(leaders) == 1
    assert sum(elector.terms for elector in electors) == 1
