"""Requests of a simulated day: arrivals at a rate that changes in steps."""

import random
import re
from collections.abc import Iterator, Sequence

import msgspec

from serving.model.errors import InvalidValue

_STEP = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", re.ASCII)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From ``from_s`` on, ``rate`` requests arrive a second, until the next step."""

    from_s: float
    rate: float


def parse_steps(text: str) -> list[Step]:
    """Steps of a text such as "0:0 10:50 60:0": from second 10 on 50 requests a second, from 60 on none."""
    steps: list[Step] = []
    for word in text.split():
        match = _STEP.fullmatch(word)
        if not match or (steps and float(match[1]) <= steps[-1].from_s):
            raise InvalidValue(text=word, expected='SECOND:REQUESTS_PER_SECOND in rising order, as in "0:0 10:50 60:0"')
        steps.append(Step(from_s=float(match[1]), rate=float(match[2])))
    if not steps:
        raise InvalidValue(text=text, expected='at least one step, as in "10:50"')
    return steps


def arrivals(steps: Sequence[Step], until_s: float, dice: random.Random) -> Iterator[float]:
    """Times of arrival up to ``until_s``, in order: independent ones, at the rate of each step."""
    ends = [step.from_s for step in steps[1:]] + [until_s]
    for step, end_s in zip(steps, ends, strict=True):
        at_s = step.from_s
        while step.rate > 0:
            at_s += dice.expovariate(step.rate)
            if at_s >= min(end_s, until_s):
                break
            yield at_s
