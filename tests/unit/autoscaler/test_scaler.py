from serving.autoscaler.resolve import resolve
from serving.autoscaler.scaler import Facts, Outcome, Scaler
from serving.autoscaler.zero import GateReason, Phase
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import AutoscalerSettings

SETTINGS = AutoscalerSettings()


def facts(scale: int, ready: int | None = None, *, proved_at_s: float | None = None) -> Facts:
    ready_count = scale if ready is None else ready
    return Facts(present_scale=scale, ready_count=ready_count, proxy_since_s=0.0, proved_at_s=proved_at_s)


def scaler(at: Facts, *, container_concurrency: int = 10, is_classic: bool = False, now_s: float = 0.0) -> Scaler:
    spec = resolve(SETTINGS, ScalingAnnotations(), container_concurrency=container_concurrency, reachable=True)
    return Scaler(
        spec=spec,
        settings=SETTINGS,
        is_classic=is_classic,
        container_concurrency=container_concurrency,
        facts=at,
        now_s=now_s,
    )


def load(concurrency: float, *, of: str = "activator") -> Stat:
    return Stat(pod=of, at_s=0.0, concurrency=concurrency, request_count=concurrency)


def hear(one: Scaler, concurrency: float, *, from_s: int, to_s: int) -> None:
    for second in range(from_s, to_s):
        one.record(load(concurrency), float(second), is_of_pod=False)


def test_who_waits_at_zero_is_urgent_and_gets_as_many_pods_as_it_needs() -> None:
    one = scaler(facts(0))
    one.decide(facts(0), 0.5)
    assert one.record(load(100.0), 1.0, is_of_pod=False)
    # 100 waiting, 7 aimed at per pod.
    assert one.decide(facts(0), 1.0).apply == 15


def test_history_from_before_zero_does_not_water_down_a_wake() -> None:
    one = scaler(facts(0))
    hear(one, 0.0, from_s=0, to_s=50)
    assert one.decide(facts(0), 50.0).apply is None
    assert one.record(load(100.0), 50.5, is_of_pod=False)
    assert one.decide(facts(0), 50.5).apply == 15


def test_steady_load_on_enough_pods_is_not_urgent_and_holds() -> None:
    one = scaler(facts(2))
    assert not one.record(load(14.0), 1.0, is_of_pod=False)
    assert one.decide(facts(2), 2.0).apply is None


def test_without_stats_nothing_changes() -> None:
    outcome = scaler(facts(3)).decide(facts(3), 2.0)
    assert isinstance(outcome.decision, NoData)
    assert (outcome.apply, outcome.probe) == (None, False)


def walk_to_zero(one: Scaler) -> list[Outcome]:
    """Silence from second 0 on, with every probe answered."""
    scale, outcomes = 1, []
    for second in range(0, 130, 2):
        hear(one, 0.0, from_s=second, to_s=second + 2)
        outcome = one.decide(facts(scale), float(second))
        if outcome.probe:
            outcome = one.decide(facts(scale, proved_at_s=float(second)), float(second))
        scale = scale if outcome.apply is None else outcome.apply
        outcomes.append(outcome)
    return outcomes


def test_silence_leads_to_zero_by_way_of_the_gate() -> None:
    one = scaler(facts(1))
    outcomes = walk_to_zero(one)
    applied = [outcome.at_s for outcome in outcomes if outcome.apply == 0]
    assert len(applied) == 1
    assert 60 <= applied[0] <= 64
    assert one.gate.is_inactive


def test_without_proof_the_last_pod_stays() -> None:
    one = scaler(facts(1))
    for second in range(0, 130, 2):
        hear(one, 0.0, from_s=second, to_s=second + 2)
        assert one.decide(facts(1), float(second)).apply is None
    outcome = one.decide(facts(1), 130.0)
    assert outcome.probe
    assert outcome.gate.reason is GateReason.HAND_OFF_IN_DOUBT


def test_a_restart_does_not_take_pods_away() -> None:
    one = scaler(facts(8), now_s=100.0)
    hear(one, 1.0, from_s=100, to_s=110)
    assert one.decide(facts(8), 110.0).apply is None


def test_pods_that_start_are_activating() -> None:
    assert scaler(facts(1, 0)).gate.phase is Phase.ACTIVATING


def test_the_classic_algorithm_decides_by_the_points_of_pods() -> None:
    one = scaler(facts(1), is_classic=True)
    for second in range(10):
        one.record(load(5.0, of="pod-1"), float(second), is_of_pod=True)
        one.record(load(50.0), float(second), is_of_pod=False)
    outcome = one.decide(facts(1), 9.5)
    assert outcome.apply == 5
    assert repr(one) == "Scaler(classic, scale 5, active)"


def test_the_classic_algorithm_hears_the_activator_while_there_is_no_pod() -> None:
    one = scaler(facts(0), is_classic=True)
    assert isinstance(one.decide(facts(0), 0.5).decision, NoData)
    assert one.record(load(3.0), 1.0, is_of_pod=False)
    assert one.decide(facts(0), 1.0).apply == 3


def test_repr_is_one_line_that_tells_the_state() -> None:
    assert repr(scaler(facts(0))) == "Scaler(kpa, scale 0, inactive)"
