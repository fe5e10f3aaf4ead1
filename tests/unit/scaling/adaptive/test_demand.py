"""The load behind what waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.adaptive.demand import ServedLoad


def steady(seconds: int, *, concurrency: float, requests: float, slots: float = 10.0) -> ServedLoad:
    load = ServedLoad()
    for second in range(seconds):
        load.take(second, concurrency, requests, slot_count=slots)
    return load


def test_without_a_queue_the_load_is_what_is_in_flight() -> None:
    assert ServedLoad().take(0, 7.0, 3.0, slot_count=10.0) == 7.0


@pytest.mark.parametrize(("concurrency", "requests"), [(5.0, 20.0), (8.0, 2.0)])
def test_the_time_of_a_request_is_its_share_of_the_load(concurrency: float, requests: float) -> None:
    assert steady(300, concurrency=concurrency, requests=requests).request_s == pytest.approx(
        concurrency / requests, rel=0.05
    )


def test_the_time_of_a_request_is_not_known_before_some_were_answered() -> None:
    assert steady(3, concurrency=5.0, requests=1.0).request_s is None


def test_a_queue_of_short_requests_is_no_load() -> None:
    load = steady(300, concurrency=5.0, requests=20.0)

    assert load.take(300, 60.0, 20.0, slot_count=10.0) == pytest.approx(5.0, rel=0.05)


def test_a_queue_of_long_requests_is_as_many_as_arrive() -> None:
    load = steady(900, concurrency=8.0, requests=0.2)

    assert load.take(900, 30.0, 22.0, slot_count=10.0) == pytest.approx(30.0, rel=0.1)


def test_a_queue_that_lasts_is_load() -> None:
    """6 clients on 2 slots send their next request when the last one is answered: as many arrive as are answered."""
    load = steady(300, concurrency=2.0, requests=10.0, slots=2.0)
    found = [load.take(second, 6.0, 10.0, slot_count=2.0) for second in range(300, 320)]

    assert found[0] == pytest.approx(2.0, rel=0.05)
    assert found[-1] == pytest.approx(6.0, rel=0.05)


def test_an_overload_that_lasts_is_what_arrives_times_its_time_and_the_queue() -> None:
    """10 slots answer 5 requests a second of 2 s each; 8 come, and the queue grows by 3 a second."""
    load = steady(300, concurrency=9.0, requests=4.5)
    found = 0.0
    for second in range(300, 420):
        found = load.take(second, 10.0 + 3.0 * (second - 299), 8.0, slot_count=10.0)

    assert load.request_s == pytest.approx(2.0, rel=0.1)
    assert found == pytest.approx(16.0 + 3.0 * 115, rel=0.1)


def test_what_waits_for_the_first_pod_says_nothing_of_the_time_of_a_request() -> None:
    load = steady(20, concurrency=50.0, requests=0.0, slots=0.0)

    assert load.request_s is None
    assert load.take(20, 50.0, 0.0, slot_count=0.0) == 50.0


def test_a_pause_ends_all_requests() -> None:
    load = steady(300, concurrency=5.0, requests=20.0)
    load.take(400, 30.0, 20.0, slot_count=10.0)

    assert load.request_s == pytest.approx(0.25, rel=0.1)
    assert repr(load) == "ServedLoad(4.96 in flight)"


@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.floats(0, 1e4), st.floats(0, 1e4), st.sampled_from([0.0, 1.0, 40.0])),
        max_size=60,
    )
)
def test_the_load_is_never_more_than_what_is_inside(seconds: list[tuple[int, float, float, float]]) -> None:
    load, second = ServedLoad(), 0
    for step, concurrency, requests, slots in seconds:
        second += step
        found = load.take(second, concurrency, requests, slot_count=slots)
        assert 0.0 <= found <= concurrency
        assert found == concurrency or concurrency > slots
