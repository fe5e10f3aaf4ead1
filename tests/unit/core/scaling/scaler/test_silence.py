"""When a decision changes although no request arrives."""

import math
from typing import Any

import msgspec
import pytest

from serving.core.model.knative import TargetMode
from serving.core.model.loadmetric import RPS, TOKENS
from serving.core.model.slo import Slo
from serving.core.scaling.budget import UNLIMITED
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.zero import GateReason
from serving.core.scaling.scaler.silence import change_by_clock_s, is_steady
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import World, facts_of, revision_with


def idle_world(**numbers: Any) -> World:  # noqa: ANN401 - numbers of the spec
    """A pod that had one request 10 s ago, with a stable window of 60 s."""
    world = World(revision_with(spec_with(**numbers)), facts_of(1))
    world.live(2, load=1.0)
    world.live(10, load=0.0)
    return world


def with_spec(outcome: ScalerOutcome, **numbers: Any) -> ScalerOutcome:  # noqa: ANN401 - as above
    spec = msgspec.structs.replace(outcome.inputs.spec, **numbers)
    return msgspec.structs.replace(outcome, inputs=msgspec.structs.replace(outcome.inputs, spec=spec))


def test_idle_pod_is_steady_until_load_leaves_window() -> None:
    world = idle_world()
    outcome = world.outcomes[-1]
    assert is_steady(outcome, scale=1)
    assert not is_steady(outcome, scale=2)
    times = [world.now_s + 2.0 * number for number in range(1, 40)]
    change_s = world.scaler.change_in_silence_s(outcome, times)
    world.live(round(change_s - world.now_s) - 2, load=0.0)
    assert {outcome.decided.desired_count for outcome in world.outcomes[1:]} == {1}
    world.live(2, load=0.0)
    assert world.outcomes[-1].decided.desired_count == 0
    # The window stays empty of load, so nothing changes any more.
    times = [world.now_s + 2.0 * number for number in range(1, 40)]
    assert world.scaler.change_in_silence_s(world.outcomes[-1], times) == times[-1]


@pytest.mark.parametrize(
    "numbers",
    [
        {"class_name": CLASSIC_CLASS},
        {"slo": Slo(share=0.95, limit_s=0.3)},
        {"scale_down_delay_s": 60.0},
        {"target_mode": TargetMode.USE},
        {"metric": TOKENS.name},
    ],
)
def test_spec_that_depends_on_time_or_usage_is_not_steady(numbers: dict[str, Any]) -> None:
    outcome = idle_world().outcomes[-1]
    assert not is_steady(with_spec(outcome, **numbers), scale=1)
    assert is_steady(with_spec(outcome, metric=RPS.name), scale=1)


def test_limited_or_marked_inactive_outcome_is_not_steady() -> None:
    outcome = idle_world().outcomes[-1]
    limited = msgspec.structs.replace(outcome, inputs=msgspec.structs.replace(outcome.inputs, allowance=UNLIMITED))
    marked = msgspec.structs.replace(
        outcome, gate=msgspec.structs.replace(outcome.gate, reason=GateReason.MARKED_INACTIVE)
    )
    assert not is_steady(limited, scale=1)
    assert not is_steady(marked, scale=1)


def test_change_by_clock_is_recheck_time() -> None:
    outcome = idle_world().outcomes[-1]
    assert change_by_clock_s(outcome) == math.inf
    assert change_by_clock_s(msgspec.structs.replace(outcome, recheck_in_s=3.0)) == outcome.at_s + 3.0
