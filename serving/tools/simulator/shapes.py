"""Synthetic workloads of known shapes. The same seed gives the same requests."""

import enum
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec

from serving.tools.simulator.trace import FunctionTrace, Step, arrivals

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
# Number of functions per shape; each has a different rate or period.
_FUNCTIONS = 8
_LONG_S = 4 * _HOUR_S
# Requests per second at the top of a ramp, and in the middle of a step.
_TOP_RATE = 20.0


class Shape(enum.StrEnum):
    """The shape of a synthetic load over time."""

    STEP = "step"
    RAMP = "ramp"
    PERIODIC = "periodic"
    BURSTY = "bursty"
    DIURNAL = "diurnal"
    ON_OFF = "on-off"


class ShapedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a shape. Functions are numbered from 0."""

    shape: Shape
    number: int

    @property
    def name(self) -> str:
        """The shape and the number."""
        return f"{self.shape}-{self.number}"

    @property
    def request_count(self) -> int:
        """The number of requests with seed 1."""
        return sum(1 for _ in self.arrivals(1))

    def arrivals(self, seed: int) -> Iterator[tuple[float, float]]:
        """The times of arrival, with unknown durations."""
        dice = random.Random(f"{seed}:{self.name}")  # noqa: S311 - made-up load
        times_of, length_s, _ = _SHAPES[self.shape]
        return ((at_s, math.nan) for at_s in times_of(self.number, dice) if at_s < length_s)


def shaped(shape: Shape) -> tuple[Sequence[FunctionTrace], float]:
    """The functions of a shape, and its length in seconds."""
    _, length_s, count = _SHAPES[shape]
    return [ShapedFunction(shape=shape, number=number) for number in range(count)], length_s


def _step(_number: int, dice: random.Random) -> Iterator[float]:
    """1 request per second for ten minutes, 20 for twenty, and 1 again."""
    steps = [Step(from_s=0.0, rate=1.0), Step(from_s=600.0, rate=_TOP_RATE), Step(from_s=1800.0, rate=1.0)]
    return arrivals(steps, _HOUR_S, dice)


def _ramp(_number: int, dice: random.Random) -> Iterator[float]:
    """From 0 to 20 requests per second in half an hour, and back."""
    rates = (_TOP_RATE * (1 - abs(minute - 30) / 30) for minute in range(60))
    steps = [Step(from_s=_MINUTE_S * minute, rate=rate) for minute, rate in enumerate(rates)]
    return arrivals(steps, _HOUR_S, dice)


def _periodic(number: int, dice: random.Random) -> Iterator[float]:
    """A request every 2, 4, ... 16 minutes, up to a second early or late."""
    period_s = 2 * _MINUTE_S * (number + 1)
    return (index * period_s + dice.uniform(-1.0, 1.0) for index in range(1, int(_LONG_S / period_s)))


def _bursty(number: int, dice: random.Random) -> Iterator[float]:
    """Bursts of 5 to 50 requests within two seconds, at random times 5, 10, ... 40 minutes apart on average."""
    at_s = 0.0
    while (at_s := at_s + 2.0 + dice.expovariate(1 / (5 * _MINUTE_S * (number + 1)))) < _LONG_S:
        yield from sorted(at_s + dice.uniform(0.0, 2.0) for _ in range(dice.randint(5, 50)))


def _diurnal(number: int, dice: random.Random) -> Iterator[float]:
    """A wave with a period of a day: no requests at night, and 1 to 8 requests per minute at its peak."""
    parts = range(0, int(_DAY_S), int(5 * _MINUTE_S))
    top_rate = (number + 1) / _MINUTE_S
    steps = [Step(from_s=at_s, rate=max(0.0, top_rate * math.sin(2 * math.pi * at_s / _DAY_S))) for at_s in parts]
    return arrivals(steps, _DAY_S, dice)


def _on_off(number: int, dice: random.Random) -> Iterator[float]:
    """A request every two seconds for two minutes, then none for 2, 4, ... 16 minutes; both times are averages."""
    edges_s = [0.0]
    while edges_s[-1] < _LONG_S:
        mean_s = 2 * _MINUTE_S if len(edges_s) % 2 else 2 * _MINUTE_S * (number + 1)
        edges_s.append(edges_s[-1] + dice.expovariate(1 / mean_s))
    steps = [
        Step(from_s=from_s, rate=0.5 if index % 2 == 0 else 0.0) for index, (from_s, _) in enumerate(pairwise(edges_s))
    ]
    return arrivals(steps, _LONG_S, dice)


# The arrival times of a function, the length in seconds, and the number of functions.
_SHAPES: dict[Shape, tuple[Callable[[int, random.Random], Iterator[float]], float, int]] = {
    Shape.STEP: (_step, _HOUR_S, 1),
    Shape.RAMP: (_ramp, _HOUR_S, 1),
    Shape.PERIODIC: (_periodic, _LONG_S, _FUNCTIONS),
    Shape.BURSTY: (_bursty, _LONG_S, _FUNCTIONS),
    Shape.DIURNAL: (_diurnal, _DAY_S, _FUNCTIONS),
    Shape.ON_OFF: (_on_off, _LONG_S, _FUNCTIONS),
}
