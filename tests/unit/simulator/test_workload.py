import random

import pytest

from serving.model.errors import InvalidValue
from serving.simulator.workload import Step, arrivals, parse_steps


def test_steps_are_read() -> None:
    assert parse_steps("0:0 10:2.5") == [Step(from_s=0, rate=0), Step(from_s=10, rate=2.5)]


@pytest.mark.parametrize("text", ["", "10", "10:x", "10:1 5:2", "10:1 10:2", "-1:2"])
def test_what_is_not_steps_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_steps(text)


def test_arrivals_keep_to_the_rate_and_the_times_of_their_step() -> None:
    steps = parse_steps("10:100 20:0 30:10")
    times = list(arrivals(steps, 40.0, random.Random(1)))
    assert times == sorted(times)
    assert 850 <= sum(10 <= at_s < 20 for at_s in times) <= 1150
    assert sum(20 <= at_s < 30 for at_s in times) == 0
    assert 70 <= sum(30 <= at_s < 40 for at_s in times) <= 130


def test_the_same_dice_give_the_same_arrivals() -> None:
    steps = parse_steps("0:10")
    assert list(arrivals(steps, 9.0, random.Random(3))) == list(arrivals(steps, 9.0, random.Random(3)))
