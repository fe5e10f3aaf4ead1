from serving.core.model.stat import Stat
from serving.core.scaling.classic.points import Points
from serving.core.scaling.classic.windowsums import NANOSECONDS_PER_SECOND, WindowSums
from serving.core.settings.classic import ORIGINAL, ClassicQuirks

SAFE = ClassicQuirks()


def read(points: Points, now_s: float, *, panic_window_s: float = 6.0, quirks: ClassicQuirks = SAFE) -> WindowSums:
    return points.read(now_s=now_s, stable_window_s=60.0, panic_window_s=panic_window_s, quirks=quirks)


def point(pod: str, at_s: float, concurrency: float, requests: float) -> Stat:
    return Stat(pod=pod, at_s=at_s, concurrency=concurrency, request_count=requests)


def points_of(*rows: tuple[str, float, float, float]) -> Points:
    points = Points()
    for row in rows:
        points.record(point(*row))
    return points


def test_window_boundary_is_exact_to_nanoseconds() -> None:
    # 0.1 + 60 is not 60.1 minus nothing in every binary rounding; in whole nanoseconds it is.
    assert read(points_of(("a", 0.1, 5.0, 1.0)), 60.1).stable_point_count == 0
    assert read(points_of(("a", 0.1, 5.0, 1.0)), 60.099999).stable_point_count == 1


def test_late_points_are_ordered_by_time() -> None:
    points = points_of(("a", 10.0, 1.0, 1.0))
    read(points, 10.0)
    points.record(point("a", 3.0, 100.0, 1.0))
    sums = read(points, 10.0)
    assert (sums.stable_sum, sums.panic_sum, sums.panic_point_count) == (101.0, 1.0, 1)


def test_traffic_is_reported_once_and_only_of_points_in_window() -> None:
    points = points_of(("a", 1.0, 0.0, 1.0), ("a", 2.0, 0.0, 0.0))
    assert read(points, 2.5).traffic_at_ns == 1 * NANOSECONDS_PER_SECOND
    assert read(points, 2.5).traffic_at_ns is None
    assert read(points_of(("a", 1.0, 0.0, 1.0)), 70.0).traffic_at_ns is None


def test_request_in_flight_counts_as_traffic_except_in_original() -> None:
    assert read(points_of(("a", 1.0, 3.0, 0.0)), 2.0).traffic_at_ns == NANOSECONDS_PER_SECOND
    assert read(points_of(("a", 1.0, 3.0, 0.0)), 2.0, quirks=ORIGINAL).traffic_at_ns is None


def test_point_from_future_counts_from_present_time() -> None:
    points = points_of(("a", 1000.0, 3.0, 1.0))
    assert read(points, 10.0).panic_sum == 3.0
    assert read(points, 17.0).panic_point_count == 0
    assert read(points, 70.0).stable_point_count == 0


def test_indexes_of_departed_pods_are_reused() -> None:
    points = Points()
    for second in range(0, 1000, 10):
        points.record(point(f"pod-{second}", float(second), 1.0, 1.0))
        read(points, float(second))
    assert read(points, 995.0).stable_pod_count == 6
    assert len(points._pod_names) <= 8


def test_capacity_grows_with_points_and_is_reused() -> None:
    points = Points()
    for second in range(200):
        for pod in range(50):
            points.record(point(f"pod-{pod}", float(second), 1.0, 1.0))
        read(points, float(second))
    assert (len(points), read(points, 199.0).stable_sum) == (3000, 3000.0)
    assert len(points._at_ns) <= 8192


def test_sum_of_mixed_signs_has_no_rounding_error() -> None:
    sums = read(points_of(("a", 1.0, -1.0, 1.0), ("b", 1.0, 3.0, 1.0)), 2.0)
    assert (sums.stable_sum, sums.stable_error_ratio) == (2.0, 0.0)
