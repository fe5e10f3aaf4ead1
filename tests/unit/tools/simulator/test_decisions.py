"""Buffered seconds of load ahead of the windows."""

import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.scaler.windows import RevisionWindows
from serving.core.settings.autoscaler import SAFE
from serving.tools.simulator.decisions import LoadedSeconds
from tests.unit.core.scaling.kpa_builders import DEFAULTS


def windows() -> RevisionWindows:
    return RevisionWindows(DEFAULTS, quirks=SAFE)


def stable_load(of: RevisionWindows, now_s: float) -> float:
    observed = of.query(now_s)
    assert not isinstance(observed, NoData)
    return observed.stable


def test_late_flush_of_seconds_gives_the_same_window_average() -> None:
    late, early, at_end, each_second = LoadedSeconds(DEFAULTS), LoadedSeconds(DEFAULTS), windows(), windows()
    for number in range(100):
        if number % 7 == 0:
            for seconds in (late, early):
                seconds.record((number, 2.0, 1, 0.0), is_hot=False)
        early.flush_to(each_second, number + 1.5, has_reports=True)
    late.flush_to(at_end, 100.5, has_reports=True)
    assert stable_load(at_end, 100.5) == pytest.approx(stable_load(each_second, 100.5)) == pytest.approx(0.3)


def test_window_ends_60_s_after_the_last_load() -> None:
    seconds = LoadedSeconds(DEFAULTS)
    seconds.record((10, 1.0, 1, 0.0), is_hot=False)
    assert seconds.window_end(11.0) == 71.0
    seconds.record((70, 1.0, 1, 0.0), is_hot=False)
    assert (seconds.window_end(70.9), seconds.window_end(71.0)) == (71.0, 131.0)
    seconds.record((75, 0.0, 1, 0.0), is_hot=True)
    assert seconds.window_end(80.0) == 131.0, "no load"


def test_hot_second_counts_while_it_is_in_the_window() -> None:
    seconds = LoadedSeconds(DEFAULTS)
    assert (seconds.is_cool(0.0), seconds.was_ever_hot) == (True, False)
    seconds.record((10, 50.0, 9, 0.0), is_hot=True)
    assert (seconds.is_cool(72.0), seconds.is_cool(72.1), seconds.was_ever_hot) == (False, True, True)
    seconds.reset()
    assert (seconds.is_cool(11.0), len(seconds.pending)) == (True, 0)
