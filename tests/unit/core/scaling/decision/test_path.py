"""The path of requests to a revision's public Service."""

from typing import Any

import msgspec
import pytest

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.classic.classic import ClassicDecision
from serving.core.scaling.decision.path import PublicSlice, PublicSlices, public_slice_of, wanted_path
from serving.core.scaling.decision.records import Decided
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.kpa.merge import Proposal
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.scaler_builders import World, facts_of, revision_with

PROXY, SERVE = TrafficPath.PROXY, TrafficPath.SERVE
POD = {"addresses": ["10.2.0.1"], "targetRef": {"kind": "Pod", "name": "pod"}}
ACTIVATOR = {"addresses": ["10.1.0.1"]}


def a_slice(*endpoints: dict[str, Any], owner: str = "Revision") -> dict[str, Any]:
    return {
        "metadata": {
            "name": "hello-00001-public",
            "namespace": "default",
            "ownerReferences": [{"kind": owner, "name": "hello-00001"}],
        },
        "endpoints": list(endpoints),
    }


def a_kpa_decision() -> ScaleDecision:
    world = World(revision_with(), facts_of(1))
    world.live(4, load=1)
    detail = world.outcomes[-1].decided.detail
    assert isinstance(detail, ScaleDecision)
    return detail


def decided(detail: ScaleDecision | ClassicDecision | NoData) -> Decided:
    return Decided(proposal=Proposal(decider="kpa", desired=1, reason=""), detail=detail)


@pytest.mark.parametrize(
    ("endpoints", "names_pods"), [((ACTIVATOR,), False), ((ACTIVATOR, POD), True), ((POD,), True), ((), False)]
)
def test_public_slice_reports_whether_it_has_pod_endpoints(
    endpoints: tuple[dict[str, Any], ...], *, names_pods: bool
) -> None:
    public_slice = public_slice_of(a_slice(*endpoints))
    assert public_slice == PublicSlice(name="hello-00001-public", key=("default", "hello-00001"), names_pods=names_pods)


def test_slice_of_route_belongs_to_no_revision() -> None:
    assert public_slice_of(a_slice(owner="Route")) is None


def update(slices: PublicSlices, name: str, *, names_pods: bool, now_s: float) -> bool:
    return slices.update(PublicSlice(name=name, key=("default", "x"), names_pods=names_pods), now_s)


def test_proxy_since_is_time_when_last_slice_lost_its_pods() -> None:
    slices = PublicSlices()
    steps = [("four", False), ("six", True), ("four", True), ("four", False), ("six", False), ("six", False)]
    reported = []
    for now_s, (name, names_pods) in enumerate(steps):
        is_changed = update(slices, name, names_pods=names_pods, now_s=float(now_s))
        reported.append((is_changed, slices.proxy_since_s))
    assert reported == [(True, 0.0), (True, None), (False, None), (False, None), (True, 4.0), (False, 4.0)]


def test_removed_slices_leave_no_public_service() -> None:
    slices = PublicSlices()
    public_slice = PublicSlice(name="four", key=("default", "x"), names_pods=False)
    assert slices.update(public_slice, 1.0)
    assert slices.update(public_slice, 2.0, is_gone=True)
    assert not slices.update(public_slice, 3.0, is_gone=True)
    assert (slices.is_there, slices.proxy_since_s) == (False, None)


@pytest.mark.parametrize(
    ("excess", "wanted_count", "ready_count", "path"),
    [(5, 1, 1, SERVE), (0, 1, 1, SERVE), (-1, 1, 1, PROXY), (5, 0, 1, PROXY), (5, 1, 0, PROXY)],
)
def test_pods_serve_while_excess_burst_capacity_is_not_negative(
    excess: int, wanted_count: int, ready_count: int, path: TrafficPath
) -> None:
    detail = msgspec.structs.replace(a_kpa_decision(), excess_burst_capacity=excess)
    traffic_path = wanted_path(
        decided(detail), present=PROXY, wanted_count=wanted_count, is_inactive=False, ready_count=ready_count
    )
    assert traffic_path is path


@pytest.mark.parametrize("present", TrafficPath)
def test_path_without_data_is_unchanged_unless_no_pod_is_wanted(present: TrafficPath) -> None:
    unheard = decided(NoData(missing="no stat"))
    traffic_path = wanted_path(unheard, present=present, wanted_count=1, is_inactive=False, ready_count=1)
    assert traffic_path is present
    remaining = wanted_path(unheard, present=present, wanted_count=0, is_inactive=False, ready_count=1)
    assert remaining is PROXY


def test_classic_algorithm_uses_proxy_path() -> None:
    world = World(revision_with(class_name=CLASSIC_CLASS), facts_of(1))
    world.live(4, load=1)
    detail = world.outcomes[-1].decided.detail
    assert isinstance(detail, ClassicDecision)
    traffic_path = wanted_path(decided(detail), present=SERVE, wanted_count=1, is_inactive=False, ready_count=1)
    assert traffic_path is PROXY
