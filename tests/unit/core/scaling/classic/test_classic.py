from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicDecision, ClassicLimit, ClassicMode, ClassicScaler
from serving.core.settings.classic import ClassicSettings

SETTINGS = ClassicSettings()
TARGET = 10.0


def scaler_with(
    *, pods: int = 1, from_s: int = 0, to_s: int = 60, concurrency: float = 10.0, requests: float = 1.0
) -> ClassicScaler:
    """A scaler with one point per second of each pod in [from_s, to_s)."""
    scaler = ClassicScaler(started_s=0.0)
    feed(scaler, pods=pods, from_s=from_s, to_s=to_s, concurrency=concurrency, requests=requests)
    return scaler


def feed(
    scaler: ClassicScaler, *, pods: int = 1, from_s: int, to_s: int, concurrency: float, requests: float = 1.0
) -> None:
    for second in range(from_s, to_s):
        for pod in range(pods):
            scaler.record(Stat(pod=f"pod-{pod}", at_s=second, concurrency=concurrency, request_count=requests))


def decide(scaler: ClassicScaler, now_s: float, settings: ClassicSettings = SETTINGS) -> ClassicDecision:
    decision = scaler.decide(settings, target_concurrency=TARGET, now_s=now_s)
    assert isinstance(decision, ClassicDecision)
    return decision


def test_stable_mode_divides_mean_over_points_by_target() -> None:
    # docs/calculations.md: 3 pods, mean 15, target 10: ratio 1.5, 4.5 pods, so 5.
    decision = decide(scaler_with(pods=3, concurrency=15.0), now_s=59.5)
    assert (decision.desired_count, decision.mode, decision.limited_by) == (5, ClassicMode.STABLE, None)
    assert (decision.observed_stable_concurrency, decision.observed_pod_count) == (15.0, 3)
    assert decision.desired_stable_count == 4.5


def test_ceiling_depends_on_order_of_additions() -> None:
    # 1.8 added 8 times, one after the other, is 14.400000000000002: over 8 points and a target of 1.8, 9 pods, not 8.
    scaler = ClassicScaler(started_s=0.0)
    for pod in range(8):
        scaler.record(Stat(pod=str(pod), at_s=1.0, concurrency=1.8, request_count=1))
    settings = ClassicSettings(panic_window_s=6, stable_window_s=60)
    decision = scaler.decide(settings, target_concurrency=1.8, now_s=10.0)
    assert isinstance(decision, ClassicDecision)
    assert decision.desired_count == 9


def test_traffic_without_load_retains_one_pod() -> None:
    decision = decide(scaler_with(concurrency=0.0), now_s=59.5)
    assert (decision.desired_count, decision.limited_by) == (1, ClassicLimit.AT_LEAST_ONE)


def test_panic_begins_at_twice_the_target() -> None:
    scaler = scaler_with(concurrency=20.0)
    decision = decide(scaler, now_s=59.5)
    assert (decision.mode, scaler.is_panicking) == (ClassicMode.PANIC, True)


def test_panic_ends_one_stable_window_after_last_increase() -> None:
    scaler = scaler_with(concurrency=50.0)
    decide(scaler, now_s=59.5)
    feed(scaler, from_s=60, to_s=121, concurrency=1.0)
    assert decide(scaler, now_s=119.5).mode is ClassicMode.PANIC
    decision = decide(scaler, now_s=119.51)
    assert (decision.mode, decision.desired_count, scaler.panic_count_max) == (ClassicMode.STABLE, 1, 0.0)


def test_idle_time_is_counted_from_start_before_first_request() -> None:
    assert decide(ClassicScaler(started_s=100.0), now_s=400.5).desired_count == 0


def test_long_running_request_retains_its_pod() -> None:
    # One websocket, open for 400 s: no new request arrives, one is in flight. The original cuts it off at 300 s.
    scaler = scaler_with(to_s=1)
    feed(scaler, from_s=1, to_s=400, concurrency=1.0, requests=0.0)
    assert decide(scaler, now_s=399.5).desired_count == 1


def test_point_count_is_number_of_retained_points() -> None:
    assert scaler_with(pods=2, to_s=5).point_count == 10
