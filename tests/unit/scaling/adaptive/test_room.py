"""Pods for a load that varies."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.adaptive.forecast import LoadLevel
from serving.scaling.adaptive.room import HeldCount, PodRoom, Room, ServedLoad, margin_of, quiet_load
from serving.scaling.spec import ScalingSpec
from tests.unit.scaling.kpa_builders import spec_with

TEN = spec_with(total_value=10.0, target_value=7.0, container_concurrency=10)


def loaded(*loads: float) -> PodRoom:
    room = PodRoom()
    for second, load in enumerate(loads):
        room.take(second, load, load)
    return room


def room_at(
    room: PodRoom,
    now_s: float,
    spec: ScalingSpec = TEN,
    *,
    in_flight: float = 1.0,
    ready: int = 1,
    start_s: float = 2.0,
) -> Room:
    found = room.want(spec, in_flight=in_flight, ready_count=ready, start_s=start_s, now_s=now_s)
    assert found is not None
    return found


def test_there_is_room_for_the_mean_and_a_margin() -> None:
    found = room_at(loaded(*[27.0] * 200), 200.0, ready=4)

    # Requests of unknown time count as long as a start, 13.5 a second; 10 slots a pod, a wait worth 10.
    assert found.margin == pytest.approx((2 * math.log(10 * 13.5 * 10 / (27 * 2 * math.pi) ** 0.5) * 27) ** 0.5)
    assert found.count == 5


def test_the_level_is_that_after_the_next_decision_and_a_start() -> None:
    slow = msgspec.structs.replace(TEN, decision_period_s=10.0)

    assert room_at(loaded(*[27.0] * 200), 200.0, slow, start_s=3.0).ahead_s == 13.0


def test_a_load_that_was_seen_for_too_short_says_nothing() -> None:
    assert loaded(5.0, 5.0).want(TEN, in_flight=5.0, ready_count=1, start_s=2.0, now_s=5.0) is None


def level_of(mean: float, deviation: float) -> LoadLevel:
    return LoadLevel(mean=mean, deviation=deviation, recent=mean, slope=0.0)


def test_the_margin_weighs_a_slot_against_the_waits_that_it_saves() -> None:
    spec = spec_with(total_value=4.0, cold_start_worth_s=120.0)

    assert margin_of(spec, level_of(27.0, 5.2), request_s=2.7) == pytest.approx(14.9, rel=0.01)
    assert margin_of(spec, level_of(0.001, 0.03), request_s=2.7) < 0.01
    assert margin_of(spec, level_of(0.0, 0.0), request_s=2.7) == 0.0


@given(
    st.floats(0, 1e5),
    st.floats(1e-6, 1e4),
    st.floats(0, 100),
    st.floats(1, 1e6),
    st.sampled_from(["mean", "deviation", "worth", "arrivals"]),
)
def test_the_margin_grows_with_each_reason(
    mean: float, deviation: float, request_s: float, worth_s: float, reason: str
) -> None:
    spec, more = (
        spec_with(total_value=4.0, cold_start_worth_s=worth_s),
        spec_with(total_value=4.0, cold_start_worth_s=worth_s * (2 if reason == "worth" else 1)),
    )
    margin = margin_of(spec, level_of(mean, deviation), request_s=request_s)
    wider = margin_of(
        more,
        level_of(mean * (2 if reason == "mean" else 1), deviation * (2 if reason == "deviation" else 1)),
        request_s=request_s / (2 if reason == "arrivals" else 1),
    )

    assert 0.0 <= margin <= wider * (1 + 1e-9)


def test_pods_go_only_after_a_while() -> None:
    patient = msgspec.structs.replace(TEN, cold_start_worth_s=720.0)
    room = loaded(*[40.0] * 200)
    found = [room_at(room, 200.0, patient, ready=6)]
    for second in range(200, 400, 2):
        room.take(second, 5.0, 5.0)
        room.take(second + 1, 5.0, 5.0)
        found.append(room_at(room, second + 2.0, patient, ready=6))
    lower = next(index for index, one in enumerate(found) if one.enough_count < found[0].count)
    followed = next(index for index, one in enumerate(found) if one.count < found[0].count)

    assert followed >= lower + 14
    assert found[-1].count <= 4


def test_noise_around_a_whole_number_of_pods_moves_nothing() -> None:
    room = loaded(*[22.5] * 300)
    counts = set()
    for second in range(300, 900):
        room.take(second, 22.0 if second // 60 % 2 else 23.0, 22.0)
        counts.add(room_at(room, second + 1.0, ready=4).count)

    assert len(counts) == 1


def test_without_a_ready_pod_all_that_waits_has_room() -> None:
    room = loaded(*[1.0] * 100)

    assert room_at(room, 100.0, in_flight=95.0, ready=0).count == 10


def busy(seconds: int, *, load: float, request_s: float, pods: int = 1) -> PodRoom:
    """A load of requests of this duration, on so many pods with 10 slots each."""
    room = PodRoom()
    for second in range(seconds):
        room.want(TEN, in_flight=load, ready_count=pods, start_s=2.0, now_s=float(second))
        room.take(second, load, load / request_s)
    return room


def test_a_queue_that_is_served_before_a_pod_is_ready_needs_none() -> None:
    """40 requests more than 10 slots hold: 8 free slots serve 64 requests of 0.25 s within the 2 s of a start, and 16 of 1 s."""
    assert room_at(busy(300, load=2.0, request_s=0.25), 300.0, in_flight=50.0).count == 1
    assert room_at(busy(300, load=2.0, request_s=1.0), 300.0, in_flight=50.0).count > 1


def test_short_requests_that_wait_for_the_first_pod_share_its_slots() -> None:
    short, long = busy(300, load=5.0, request_s=0.25), busy(300, load=5.0, request_s=4.0)

    assert room_at(short, 600.0, in_flight=70.0, ready=0).count == 1
    assert room_at(long, 600.0, in_flight=69.0, ready=0).count == 7


def test_many_short_requests_get_more_room_than_few_long_ones() -> None:
    short, long = busy(300, load=27.0, request_s=0.25, pods=4), busy(300, load=27.0, request_s=4.0, pods=4)

    assert room_at(short, 300.0, in_flight=27.0, ready=4).margin > room_at(long, 300.0, in_flight=27.0, ready=4).margin


def test_no_load_needs_no_pod() -> None:
    room = loaded(*[1.0] * 100)

    assert room_at(room, 2000.0, in_flight=0.0).count == 0


def test_the_rates_and_the_activation_scale_bound_the_count() -> None:
    fast = spec_with(total_value=1.0, max_scale_up_rate=2.0, activation_scale=3)

    assert room_at(loaded(*[50.0] * 100), 100.0, fast, ready=5).count == 10
    assert room_at(loaded(*[0.1] * 100), 100.0, fast, ready=2).count == 3
    assert room_at(loaded(*[0.1] * 100), 100.0, TEN, ready=9).count == 4


def test_an_unreachable_revision_shrinks_at_once() -> None:
    assert room_at(loaded(*[0.1] * 100), 100.0, spec_with(reachable=False, total_value=10.0), ready=9).count == 1


@pytest.mark.parametrize("worth_s", [1.0, 120.0, 1e6])
@pytest.mark.parametrize("total_value", [1.0, 10.0, 100.0])
def test_a_quiet_load_never_needs_two_pods(worth_s: float, total_value: float) -> None:
    spec = spec_with(total_value=total_value, target_value=0.7 * total_value, cold_start_worth_s=worth_s)
    quiet = quiet_load(spec)

    for loads in ([quiet] * 300, [0.0] * 299 + [quiet] * 60, [0.0, quiet] * 200):
        room = loaded(*loads)
        assert room_at(room, float(len(loads)), spec, in_flight=quiet).count == 1


@pytest.mark.parametrize("load", [0.2, 3.0, 9.0])
def test_whether_one_pod_is_enough_is_what_would_be_wanted(load: float) -> None:
    room = loaded(*[load] * 200)
    found = room_at(room, 200.0)

    assert room.is_one_enough(TEN, 2.0, 200.0) == (found.count == 1)
    assert room.is_one_enough_in_silence(TEN, 2.0) == (found.count == 1)


def test_one_pod_is_enough_in_silence_only_if_the_level_stays_below_its_room() -> None:
    """After a fall the level rises for a while, because the slope fades faster than the mean."""
    room = loaded(*[7.0] * 100, *[0.0] * 20)
    was_enough = room.is_one_enough_in_silence(TEN, 2.0)

    assert not was_enough
    quiet = loaded(*[2.0] * 100, *[0.0] * 20)
    assert quiet.is_one_enough_in_silence(TEN, 2.0)
    assert all(room_at(quiet, 120.0 + after_s, in_flight=0.0).count <= 1 for after_s in range(0, 120, 2))
    assert loaded(*[1.0] * 100).is_one_enough_in_silence(TEN, 2.0)


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


def test_the_time_of_a_request_is_not_known_before_two_were_answered() -> None:
    assert steady(2, concurrency=5.0, requests=1.0).request_s is None


def test_the_time_of_long_requests_that_come_alone_is_learnt() -> None:
    """Each request takes 60 s, and a pause of a minute follows."""
    load, times = ServedLoad(), []
    for begin in range(0, 1200, 120):
        for second in range(60):
            load.take(begin + second, 1.0, float(second == 0), slot_count=10.0)
        times.append(load.request_s)

    assert times[0] is None
    assert all(time is not None and 30.0 < time < 180.0 for time in times[1:])


def test_a_queue_of_short_requests_is_no_load() -> None:
    load = steady(300, concurrency=5.0, requests=20.0)

    assert load.take(300, 60.0, 20.0, slot_count=10.0) == pytest.approx(5.0, rel=0.05)


def test_a_queue_of_long_requests_is_as_many_as_arrive() -> None:
    load = steady(900, concurrency=8.0, requests=0.2)

    assert load.take(900, 30.0, 22.0, slot_count=10.0) == pytest.approx(30.0, rel=0.1)


def test_a_queue_that_lasts_is_load() -> None:
    """6 clients on 2 slots send their next request after each response: arrivals equal responses."""
    load = steady(300, concurrency=2.0, requests=10.0, slots=2.0)
    found = [load.take(second, 6.0, 10.0, slot_count=2.0) for second in range(300, 320)]

    assert found[0] == pytest.approx(2.0, rel=0.05)
    assert found[-1] == pytest.approx(6.0, rel=0.05)


def test_an_overload_that_lasts_is_what_arrives_times_its_time_and_the_queue() -> None:
    """10 slots serve 5 requests a second of 2 s each; 8 arrive, and the queue grows by 3 a second."""
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


def held(*wanted: int, patience_s: float = 10.0, period_s: float = 2.0) -> list[int]:
    """The held count after each decision, one each period."""
    count = HeldCount()
    return [count.hold(one, patience_s=patience_s, now_s=index * period_s) for index, one in enumerate(wanted)]


def test_more_pods_come_at_once() -> None:
    assert held(1, 3, 10) == [1, 3, 10]


def test_a_large_step_down_waits_for_the_patience() -> None:
    assert held(10, 2, 2, 2, 2, 2, 2) == [10, 10, 10, 10, 10, 2, 2]


def test_a_small_step_down_waits_for_twice_as_long_more() -> None:
    found = held(10, *[8] * 20)

    assert found.index(8) * 2.0 == 30.0
    assert found[-1] == 8


def test_a_load_that_comes_back_holds_all_of_them_again() -> None:
    assert held(10, *[8] * 8, 10, *[8] * 8) == [10] * 18


def test_nothing_is_held_through_a_time_without_decisions() -> None:
    count = HeldCount()
    count.hold(4, patience_s=10.0, now_s=0.0)

    assert count.hold(3, patience_s=10.0, now_s=3600.0) == 3
    assert count.hold(2, patience_s=10.0, now_s=10.0) == 3
