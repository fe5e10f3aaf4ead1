import pytest

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.burst import (
    excess_burst_capacity,
    traffic_path,
)
from tests.unit.core.scaling.kpa_builders import spec_with

UNDECIDED = NoData(missing="no decision")

SERVE, PROXY = TrafficPath.SERVE, TrafficPath.PROXY


@pytest.mark.parametrize(
    ("target_burst_capacity", "ready_count", "load", "excess"),
    [
        # docs/calculations.md: 3 x 100 - 211 - 50.
        (211, 3, 50.0, 39),
        (211, 0, 50.0, -261),
        (211, 3, 50.5, 38),
        (0, 3, 1e6, 0),
        (-1, 300, 0.0, -1),
        (211, 3, 1e12, -(2**31)),
        (211, 10**9, 0.0, 2**31 - 1),
    ],
)
def test_excess_is_capacity_minus_burst_capacity_and_load(
    target_burst_capacity: float, ready_count: int, load: float, excess: int
) -> None:
    spec = spec_with(target_burst_capacity=target_burst_capacity)
    assert excess_burst_capacity(ready_count=ready_count, observed_panic=load, spec=spec) == excess


@pytest.mark.parametrize(
    ("wanted_count", "is_inactive", "excess", "ready", "activators", "path"),
    [
        (3, False, 0, 3, 2, SERVE),
        (3, False, -1, 3, 2, PROXY),
        (0, True, 100, 3, 2, PROXY),
        (UNDECIDED, True, 100, 3, 2, PROXY),
        (UNDECIDED, False, 100, 3, 2, SERVE),
        (3, False, 100, 0, 2, PROXY),
        (3, False, -1, 0, 2, PROXY),
        (3, False, -1, 3, 0, SERVE),
        (3, False, 100, 3, 0, SERVE),
        (3, False, 100, 0, 0, PROXY),
    ],
)
def test_path_has_activators_unless_pods_have_excess_capacity(
    *,
    wanted_count: int | NoData,
    is_inactive: bool,
    excess: int,
    ready: int,
    activators: int,
    path: TrafficPath,
) -> None:
    new_traffic_path = traffic_path(
        wanted_count=wanted_count,
        is_inactive=is_inactive,
        excess=excess,
        ready_count=ready,
        ready_activator_count=activators,
    )
    assert new_traffic_path is path
