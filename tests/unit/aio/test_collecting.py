import gc
from collections.abc import Iterator

import pytest

from serving.aio.collecting import collect_in_small_steps


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_not_looked_at_again_and_what_comes_is_looked_at_a_little_at_a_time() -> None:
    collect_in_small_steps()
    assert gc.get_freeze_count() > 0
    young, older, _ = gc.get_threshold()
    assert 0 < young < 1_000
    assert older == 1


def test_a_cycle_that_is_dropped_goes_soon() -> None:
    collect_in_small_steps()
    gone: list[bool] = []

    class Knot:
        def __init__(self) -> None:
            self.self = self

        def __del__(self) -> None:
            gone.append(True)

    Knot()
    kept = [[number] for number in range(2_000)]
    assert len(kept) == 2_000
    assert gone == [True]
