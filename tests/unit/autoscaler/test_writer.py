"""The writer under concurrent changes; ``test_loop.py`` tests it without them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.writer import (
    Learned,
    ReserveRefused,
    ReserveResult,
    RevisionWritten,
    ScaleResult,
    ScaleWritten,
    Writer,
    WriteView,
    cost_changes,
)
from serving.core.model.knative import RevisionKey, ServingState, TrafficPath
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.revision import ScaledDeployment, ScaledPod, ScaledRevision, Trouble, revision_of
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from tests.unit.core.scaling.policy_builders import revision
from tests.unit.core.scaling.scaler_builders import SETTINGS, facts_of, stat_of

KEY = ("default", "hello-00001")
DEPLOYMENT = ScaledDeployment(name="d", key=KEY, revision_uid="r1", replica_count=0, resource_version="5")


class World:
    """A server and a loop that record their calls."""

    def __init__(self) -> None:
        self.entry = RevisionEntry(10)
        self.scaled: list[int] = []
        self.version: str | None = "6"
        self.writer = Writer(self, view=self.view, costs=lambda *_: (), learn=self.learn, prove=self.prove)
        self.requested_causes: list[DecisionCause] = []
        self.woken_count = 0
        self.reserved_count = 0
        self.reserved = ReserveResult()
        self.during_reserve: Callable[[], None] = lambda: None
        self.written: dict[str, Any] | None = None
        self.woken_together: dict[str, Any] | None = None
        self.led: list[TrafficPath] = []

    async def prove(self) -> bool:
        return True

    async def reserve(
        self, _: ScaledRevision, __: Mapping[str, str | None], deployment: ScaledDeployment | None
    ) -> ReserveResult:
        self.reserved_count += 1
        self.during_reserve()
        return self.reserved if deployment is not None else ReserveResult(is_reserved=self.reserved.is_reserved)

    async def wake(self, _: ScaledRevision) -> Mapping[str, Any] | None:
        self.woken_count += 1
        return self.written

    async def lead(self, _: ScaledRevision, path: TrafficPath) -> Mapping[str, Any] | None:
        self.led.append(path)
        return self.written

    async def scale(
        self, _: ScaledDeployment, count: int, *, woken: ScaledRevision | None = None
    ) -> ScaleResult | None:
        self.scaled.append(count)
        if self.version is None:
            return None
        return ScaleResult(version=self.version, woken=None if woken is None else self.woken_together)

    async def mark(self, _: str, __: Iterable[tuple[str, str | None]]) -> None:
        return

    def view(self, _: RevisionKey) -> WriteView:
        entry = self.entry
        return WriteView(
            revision=entry.revision, deployment=entry.deployment, latest=entry.latest, is_woken=entry.is_woken
        )

    def learn(self, _: RevisionKey, learned: Learned) -> None:
        """Apply the results of writes, as the decision loop does."""
        match learned:
            case ReserveRefused():
                self.requested_causes.append(DecisionCause.CHANGE)
            case RevisionWritten(resource):
                self.entry.revision = revision_of(resource, SETTINGS)
            case ScaleWritten(count, version):
                assert self.entry.deployment is not None
                self.entry.deployment = msgspec.structs.replace(
                    self.entry.deployment, replica_count=count, resource_version=version
                )

    def write(self) -> None:
        asyncio.run(self.writer.write(KEY))


def wanting(count: int) -> tuple[World, ScalerOutcome]:
    """A world whose revision at zero has a decision for ``count`` pods."""
    world, scaled_revision = World(), revision()
    scaler = Scaler(scaled_revision, facts_of(0), SETTINGS, is_restart=False, now_s=0.0)
    stat = msgspec.structs.replace(stat_of(count * 7.0), at_s=0.1)
    assert scaler.record(stat, StatSource.ACTIVATOR)
    outcome = scaler.tick(facts_of(0), DecisionCause.LOAD, 0.1)
    assert outcome.apply_count == count
    world.entry.revision, world.entry.scaler, world.entry.latest = scaled_revision, scaler, outcome
    world.entry.deployment = DEPLOYMENT
    return world, outcome


def test_written_scale_is_known_before_its_watch_event() -> None:
    world, _ = wanting(2)
    world.write()
    assert world.scaled == [2]
    assert world.entry.deployment == msgspec.structs.replace(DEPLOYMENT, replica_count=2, resource_version="6")


def test_failed_scale_write_leaves_the_known_deployment_unchanged() -> None:
    world, _ = wanting(2)
    world.version = None
    world.write()
    assert world.entry.deployment == DEPLOYMENT


def test_without_a_deployment_nothing_is_scaled() -> None:
    world, _ = wanting(2)
    world.entry.deployment = None
    world.write()
    assert world.scaled == []


@pytest.mark.parametrize(("present", "scaled"), [(1, []), (0, [2])])
def test_contested_target_is_scaled_only_from_zero(present: int, scaled: list[int]) -> None:
    world, _ = wanting(2)
    world.entry.revision = msgspec.structs.replace(revision(), is_contested=True)
    world.entry.deployment = msgspec.structs.replace(DEPLOYMENT, replica_count=present)
    world.write()
    assert world.scaled == scaled


def test_failed_reserve_write_triggers_a_new_decision() -> None:
    world, outcome = wanting(2)
    world.entry.latest = msgspec.structs.replace(outcome, to_reserve=True, apply_count=0)
    world.write()
    assert (world.scaled, world.requested_causes) == ([], [DecisionCause.CHANGE])


@pytest.mark.parametrize(("version", "scaled"), [("7", []), (None, [0])])
def test_scale_is_written_separately_unless_the_reserve_write_included_it(
    version: str | None, scaled: list[int]
) -> None:
    world, outcome = wanting(2)
    world.entry.latest = msgspec.structs.replace(outcome, to_reserve=True, apply_count=0)
    world.entry.deployment = msgspec.structs.replace(DEPLOYMENT, replica_count=1)
    world.reserved = ReserveResult(is_reserved=True, scale_version=version)
    world.write()
    assert world.scaled == scaled
    assert world.entry.deployment == msgspec.structs.replace(DEPLOYMENT, resource_version=version or "6")


def test_newer_decision_during_scale_to_zero_is_written_afterwards() -> None:
    world, newer = wanting(2)
    world.entry.deployment = msgspec.structs.replace(DEPLOYMENT, replica_count=1)
    # One call writes Reserve and scale 0 and cannot be interrupted between them.
    world.reserved = ReserveResult(is_reserved=True, scale_version="6")
    world.during_reserve = lambda: setattr(world.entry, "latest", newer)
    world.entry.latest = msgspec.structs.replace(newer, to_reserve=True, apply_count=0)
    world.write()
    assert world.scaled == []
    assert world.entry.deployment == msgspec.structs.replace(DEPLOYMENT, replica_count=0, resource_version="6")
    world.write()
    assert world.scaled == [2]


def test_revision_woken_after_the_decision_is_not_reserved() -> None:
    world, outcome = wanting(2)
    world.entry.latest = msgspec.structs.replace(outcome, to_reserve=True, apply_count=0)
    world.entry.is_woken = True
    world.write()
    assert (world.reserved_count, world.scaled, world.requested_causes) == (0, [], [DecisionCause.CHANGE])


def path_of_entry(entry: RevisionEntry) -> TrafficPath | None:
    return None if entry.revision is None else entry.revision.path


def test_changed_traffic_path_is_written_until_acknowledged() -> None:
    world, outcome = wanting(2)
    world.entry.latest = msgspec.structs.replace(outcome, path=TrafficPath.SERVE)
    world.write()
    assert (world.scaled, world.led) == ([2], [TrafficPath.SERVE])
    assert path_of_entry(world.entry) is TrafficPath.PROXY, "it was not written, and comes again"
    uid = revision().uid
    annotations = {"serving.dev/traffic-path": "serve"}
    world.written = {"metadata": {"name": KEY[1], "namespace": KEY[0], "uid": uid, "annotations": annotations}}
    world.write()
    assert path_of_entry(world.entry) is TrafficPath.SERVE
    world.write()
    assert world.led == [TrafficPath.SERVE] * 2


def test_proofs_are_counted() -> None:
    world, outcome = wanting(1)
    world.entry.latest = msgspec.structs.replace(outcome, to_prove=True)
    world.write()
    assert (world.writer.proof_count, world.writer.proof_failure_count) == (1, 0)


def test_entry_stores_troubles_of_pods_until_their_deletion() -> None:
    entry = World().entry
    pod = ScaledPod(
        name="p", key=KEY, is_ready=False, is_ending=False, deletion_cost="", trouble=Trouble.FAILING
    )  # fmt: skip
    entry.set_pod(pod, 0.0, is_gone=False)
    assert entry.troubles == {"p": Trouble.FAILING}
    entry.set_pod(pod, 1.0, is_gone=True)
    assert entry.troubles == {}


def unasked() -> World:
    """A Reserve revision whose decision wants two pods without a request."""
    world, outcome = wanting(2)
    in_flight = msgspec.structs.replace(outcome.inputs.in_flight, present=Stat())
    inputs = msgspec.structs.replace(outcome.inputs, in_flight=in_flight)
    world.entry.latest = msgspec.structs.replace(outcome, inputs=inputs)
    world.entry.revision = revision(state=ServingState.RESERVE)
    return world


ACTIVE = {
    "metadata": {"namespace": "default", "name": "hello-00001", "uid": "r1", "resourceVersion": "7"},
    "spec": {"servingState": "Active"},
}


def test_reserve_revision_with_pods_but_no_requests_is_set_active() -> None:
    world = unasked()
    world.written = ACTIVE
    world.write()
    assert (world.scaled, world.woken_count) == ([2], 1)
    assert world.entry.revision is not None
    assert world.entry.revision.serving_state is ServingState.ACTIVE


def test_rejected_wake_write_leaves_the_revision_in_reserve() -> None:
    world = unasked()
    world.write()
    assert world.entry.revision is not None
    assert (world.woken_count, world.entry.revision.serving_state) == (1, ServingState.RESERVE)


def test_woken_revision_is_set_active_in_the_scale_write() -> None:
    world, _ = wanting(2)
    world.entry.revision = revision(state=ServingState.RESERVE)
    world.woken_together = ACTIVE
    world.write()
    assert (world.scaled, world.woken_count) == ([2], 0)
    assert world.entry.revision.serving_state is ServingState.ACTIVE


def test_revision_woken_by_a_request_gets_no_separate_wake_write() -> None:
    world, _ = wanting(2)
    world.entry.revision = revision(state=ServingState.RESERVE)
    world.write()
    assert world.woken_count == 0


def pod(name: str, cost: str = "") -> ScaledPod:
    return ScaledPod(name=name, key=("default", "r"), is_ready=True, is_ending=False, deletion_cost=cost)


def report(name: str, concurrency: float) -> Stat:
    return Stat(pod=name, at_s=0.0, concurrency=concurrency, request_count=0.0)


REPORTS = {name: report(name, load) for name, load in (("a", 3.0), ("b", 0.0), ("c", 1.0))}


def test_idlest_pods_get_a_deletion_cost_first() -> None:
    changes = cost_changes([pod("a"), pod("b"), pod("c")], REPORTS, victim_count=2)
    assert changes == [("b", "-1"), ("c", "-1")]


def test_pod_with_deletion_cost_is_not_marked_again() -> None:
    assert cost_changes([pod("a"), pod("b", "-1"), pod("c")], REPORTS, victim_count=1) == []


def test_deletion_cost_of_a_busy_pod_is_removed() -> None:
    assert cost_changes([pod("a", "-1"), pod("b"), pod("c")], REPORTS, victim_count=1) == [("b", "-1"), ("a", None)]


def test_foreign_deletion_cost_is_unchanged() -> None:
    assert cost_changes([pod("a", "100"), pod("b")], REPORTS, victim_count=1) == [("b", "-1")]


def test_pod_without_reports_counts_as_idle() -> None:
    assert cost_changes([pod("c"), pod("silent")], REPORTS, victim_count=1) == [("silent", "-1")]


def test_longest_dormant_pod_is_marked_first() -> None:
    reports = {
        "a": Stat(pod="a", at_s=50.0),
        "b": Stat(pod="b", at_s=90.0, is_dormant=True, idle_s=10.0),
        # It reported again after a reconnect.
        "c": Stat(pod="c", at_s=99.0, is_dormant=True, idle_s=30.0),
    }
    assert cost_changes([pod(name) for name in "abc"], reports, victim_count=1) == [("c", "-1")]
    assert cost_changes([pod(name) for name in "abc"], reports, victim_count=2) == [("c", "-1"), ("b", "-1")]


def test_equally_idle_pods_are_marked_in_name_order() -> None:
    assert cost_changes([pod("z"), pod("y"), pod("x")], {}, victim_count=2) == [("x", "-1"), ("y", "-1")]


def test_pods_with_the_highest_prompt_cache_heat_are_marked_last() -> None:
    heats = {"a": 1.0, "b": 9.0}
    pods = [pod(name) for name in "abc"]
    assert cost_changes(pods, REPORTS, victim_count=1, heats=heats) == [("c", "-1")]
    assert cost_changes(pods, REPORTS, victim_count=2, heats=heats) == [("c", "-1"), ("a", "-1")]
