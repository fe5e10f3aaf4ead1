"""The windows of the present algorithm, against a naive recount of all points."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.core.scaling.kpa.delay import DelayWindow
from serving.core.scaling.kpa.window import LinearWindow, window_of
from serving.core.scaling.spec import WindowKind
from serving.core.settings.autoscaler import ORIGINAL
from tests.invariants import validate
from tests.property.naive.kpa import NaiveWindow

WIDTHS = st.integers(1, 12)
# Times jump by more than the widest window, so points arrive late, too late, or after silence.
TIMES = st.integers(0, 8 * 40).map(lambda eighths: eighths / 8)
LOADS = st.integers(0, 640).map(lambda sixteenths: sixteenths / 16)
RECORDS = st.lists(st.tuples(TIMES, LOADS), max_size=40)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), TIMES, LOADS),
        st.tuples(st.just("query"), TIMES, st.just(0.0)),
        st.tuples(st.just("resize"), TIMES, WIDTHS.map(float)),
    ),
    max_size=60,
)


@given(kind=st.sampled_from(WindowKind), width=WIDTHS, events=EVENTS)
@example(
    kind=WindowKind.LINEAR,
    width=5,
    events=[("record", 30, 6), ("resize", 30, 12.0), ("record", 31, 6), ("query", 31, 0)],
)
def test_window_average_equals_a_naive_recount(
    kind: WindowKind, width: int, events: list[tuple[str, float, float]]
) -> None:
    ours = window_of(kind, width)
    naive = NaiveWindow(window_s=width, weighted=kind is WindowKind.WEIGHTED_EXPONENTIAL)
    for event, at_s, value in events:
        if event == "record":
            ours.record(at_s, value)
            naive.record(at_s, value)
        elif event == "resize":
            ours.resize(value, at_s)
            naive.resize(int(value), at_s)
        else:
            expected = naive.average(at_s)
            assert ours.is_empty(at_s) == (expected is None)
            assert ours.average(at_s) == pytest.approx(expected or 0.0, abs=2e-6)
        validate(ours)


@given(kind=st.sampled_from(WindowKind), width=WIDTHS, load=LOADS, start=TIMES, seen=st.integers(1, 30), silent=TIMES)
def test_steady_load_is_the_average_until_the_window_is_empty(
    *, kind: WindowKind, width: int, load: float, start: float, seen: int, silent: float
) -> None:
    window = window_of(kind, width)
    for second in range(seen):
        window.record(start + second, load)
    now_s = start + seen - 1 + silent
    assert window.is_empty(now_s) or window.average(now_s) == pytest.approx(load, abs=1e-6)


@given(kind=st.sampled_from(WindowKind), width=WIDTHS, records=RECORDS, at=st.integers(0, 39), more=LOADS, now_s=TIMES)
def test_more_load_never_lowers_the_average(
    *, kind: WindowKind, width: int, records: list[tuple[float, float]], at: int, more: float, now_s: float
) -> None:
    less_loaded, more_loaded = window_of(kind, width), window_of(kind, width)
    for place, (at_s, load) in enumerate(records):
        less_loaded.record(at_s, load)
        more_loaded.record(at_s, load + more if place == at else load)
    assert more_loaded.average(now_s) >= less_loaded.average(now_s) - 1e-9


@given(width=WIDTHS, records=RECORDS, now_s=TIMES)
def test_linear_averages_equal_the_originals_without_resizes(
    width: int, records: list[tuple[float, float]], now_s: float
) -> None:
    ours, original = LinearWindow(width), LinearWindow(width, quirks=ORIGINAL)
    for at_s, load in records:
        ours.record(at_s, load)
        original.record(at_s, load)
    assert ours.average(now_s) == original.average(now_s)
    assert original.is_empty(now_s) <= ours.is_empty(now_s)


@given(
    wants=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=40), slots=st.integers(1, 6)
)
def test_delay_window_returns_the_maximum_of_its_slots(wants: list[tuple[int, int]], slots: int) -> None:
    window, now_s, responses = DelayWindow(), 0, []
    for step_s, count in wants:
        now_s += step_s
        window = window.record(count, slot_count=slots, now_s=now_s)
        responses.append((now_s // 2, count))
        assert window.maximum == max(count for slot, count in responses if slot > now_s // 2 - slots)
        assert len(window.peaks) <= slots
