"""A revision entry: learnt target, oom kills, pod starts and pod states."""

from typing import Any

import msgspec
import pytest

from serving.autoscaler.entry import PodStarts, PodState, PodStates, RevisionEntry, state_of
from serving.core.model.quantity import Resources
from serving.core.model.revisionnumbers import PodCounts
from serving.core.model.scaledworkload import WorkloadTarget
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.policies.usage import Usages
from serving.core.scaling.revision import ScaledDeployment, ScaledPod, ServingContainer
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.settings.autoscaler import AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import facts_of, revision_with

POD = ScaledPod(name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost="")
SETTINGS = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target_period_s=1.0))

READY = ScaledPod(name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost="")
STARTING = msgspec.structs.replace(READY, is_ready=False, phase="Pending")
ENDING = msgspec.structs.replace(READY, is_ready=False, is_ending=True)


def entry_with_load(*, has_scaler: bool = True) -> RevisionEntry:
    entry = RevisionEntry(10)
    container = ServingContainer(name="c", limits=Resources(memory_bytes=200_000_000))
    entry.revision = msgspec.structs.replace(revision_with(spec_with()), container=container)
    if has_scaler:
        entry.scaler = Scaler(entry.revision, facts_of(1), SETTINGS, is_restart=False, now_s=0.0)
        report(entry, 40.0, 0.5)
    return entry


def test_unknown_revision_is_no_budget_tenant() -> None:
    assert RevisionEntry(10).tenant() is None
    tenant = entry_with_load().tenant()
    assert tenant is not None
    assert (tenant.key, tenant.existing, tenant.ending) == (entry_with_load().revision.key, 0, 0)  # type: ignore[union-attr]


def report(entry: RevisionEntry, concurrency: float, at_s: float) -> None:
    assert entry.scaler is not None
    stat = Stat(pod="p", at_s=at_s, concurrency=concurrency, ended_count=concurrency, response_time_s=1.0)
    entry.scaler.record(stat, StatSource.POD)


def decided(entry: RevisionEntry, now_s: float) -> ScalerOutcome:
    assert entry.scaler is not None
    return entry.scaler.tick(facts_of(1), DecisionCause.PERIOD, now_s)


def killed(times: int) -> ScaledPod:
    return msgspec.structs.replace(POD, oom_kill_count=times)


def usage_of(used: dict[str, str], *, timestamp: str) -> dict[str, Any]:
    """The PodMetrics of the pod "p", with this use of the serving container."""
    return {
        "metadata": {"namespace": "default", "name": "p"},
        "timestamp": timestamp,
        "containers": [{"name": "c", "usage": used}, {"name": "queue-proxy", "usage": {"memory": "900Mi"}}],
    }


def test_oom_kill_updates_the_learnt_target_once() -> None:
    entry = entry_with_load()
    entry.set_pod(POD, 0.6, is_gone=False)
    assert decided(entry, 0.7).inputs.learnt is None
    assert entry.set_pod(killed(1), 0.8, is_gone=False)
    assert not entry.set_pod(killed(1), 0.9, is_gone=False)
    learnt = decided(entry, 1.5).inputs.learnt
    assert learnt is not None
    assert learnt.bound == "memory"


def test_oom_kills_before_the_first_observation_are_ignored() -> None:
    entry = entry_with_load()
    entry.set_pod(killed(3), 0.6, is_gone=False)
    assert decided(entry, 0.7).inputs.learnt is None
    entry.set_pod(killed(3), 0.8, is_gone=True)
    assert entry.oom_kill_counts == {}
    assert entry.pod_counts().oom_kills == 0


def test_without_a_scaler_kills_are_counted_and_usage_stays_new() -> None:
    entry, usages = entry_with_load(has_scaler=False), Usages()
    usages.replace([usage_of({"cpu": "100m", "memory": "20Mi"}, timestamp="0")], 1.0)
    entry.measured("default", usages, 1.0)
    assert usages.new_measurement(("default", "p"), 1.0).keys() == {"c", "queue-proxy"}
    assert not entry.set_pod(POD, 0.6, is_gone=False)
    assert entry.set_pod(killed(1), 0.7, is_gone=False)
    assert entry.pod_counts().oom_kills == 1


def test_oom_kills_of_deleted_pods_remain_counted() -> None:
    entry = entry_with_load()
    for pod, is_gone in ((POD, False), (killed(2), False), (killed(2), True)):
        entry.set_pod(pod, 0.6, is_gone=is_gone)
    assert entry.pod_counts().oom_kills == 2


def test_restarts_since_the_first_observation_remain_counted() -> None:
    entry = entry_with_load()
    for count, is_gone in ((3, False), (4, False), (4, False), (6, True), (1, False), (0, False)):
        entry.set_pod(msgspec.structs.replace(POD, restart_count=count), 0.6, is_gone=is_gone)
    assert entry.pod_counts().restarts == 3
    assert entry.restart_counts == {"p": 0}


def test_memory_per_request_is_learnt_from_pod_metrics() -> None:
    entry, usages, learnt = entry_with_load(), Usages(), None
    for second, concurrency in enumerate((1.0, 4.0, 8.0, 2.0, 6.0, 5.0)):
        report(entry, concurrency, second + 1.5)
        used = {"cpu": "100m", "memory": str(int(20_000_000 + 10_000_000 * concurrency))}
        usages.replace([usage_of(used, timestamp=str(second))], second + 1.6)
        entry.measured("default", usages, second + 1.6)
        learnt = decided(entry, second + 1.7).inputs.learnt
    assert learnt is not None
    # (0.9 x 200 - 20) / 10 = 16.
    assert learnt.bound == "memory"
    assert learnt.above is not None
    assert abs(learnt.above - 16) < 0.5


def test_pod_start_time_lasts_from_first_observation_to_ready() -> None:
    starts = PodStarts()
    assert starts.update(STARTING, 10.0, is_gone=False) is None
    assert starts.update(STARTING, 11.0, is_gone=False) is None
    assert starts.update(READY, 14.5, is_gone=False) == 4.5


def test_pod_that_becomes_ready_again_is_not_measured_again() -> None:
    starts = PodStarts()
    starts.update(STARTING, 0.0, is_gone=False)
    starts.update(READY, 1.0, is_gone=False)
    starts.update(STARTING, 50.0, is_gone=False)
    assert starts.update(READY, 60.0, is_gone=False) is None


def test_pod_first_seen_as_ready_is_not_measured() -> None:
    starts = PodStarts()
    assert starts.update(READY, 5.0, is_gone=False) is None
    starts.update(STARTING, 6.0, is_gone=False)
    assert starts.update(READY, 7.0, is_gone=False) is None


def test_ending_or_deleted_pod_leaves_no_start_time() -> None:
    starts = PodStarts()
    starts.update(STARTING, 0.0, is_gone=False)
    starts.update(ENDING, 1.0, is_gone=False)
    starts.update(STARTING, 2.0, is_gone=False)
    starts.update(STARTING, 3.0, is_gone=True)
    assert not starts._seen_s


def pod(name: str = "p", *, is_ready: bool = False, is_ending: bool = False, phase: str = "Running") -> ScaledPod:
    return msgspec.structs.replace(READY, name=name, is_ready=is_ready, is_ending=is_ending, phase=phase)


@pytest.mark.parametrize(
    ("scaled_pod", "state"),
    [
        (READY, PodState.READY),
        (msgspec.structs.replace(READY, is_dormant=True), PodState.DORMANT),
        (pod(), PodState.NOT_READY),
        (pod(phase="Pending"), PodState.PENDING),
        (pod(is_ending=True), PodState.TERMINATING),
        (pod(is_ending=True, phase="Pending"), PodState.TERMINATING),
        (pod(phase="Failed"), None),
        (pod(phase="Succeeded"), None),
    ],
)
def test_pod_state_is_derived_from_phase_and_conditions(scaled_pod: ScaledPod, state: PodState | None) -> None:
    assert state_of(scaled_pod) is state


def test_pod_counts_use_the_current_state_of_each_pod() -> None:
    states = PodStates()
    for scaled_pod in (pod("a", phase="Pending"), pod("b"), pod("c", is_ending=True), pod("d", is_ready=True)):
        states.update(scaled_pod, is_gone=False)
    assert states.counts() == PodCounts(not_ready=1, pending=1, terminating=1)
    states.update(pod("a"), is_gone=False)
    states.update(pod("c", is_ending=True), is_gone=True)
    states.update(pod("b", phase="Failed"), is_gone=False)
    assert states.counts() == PodCounts(not_ready=1)


def test_only_foreign_scale_changes_of_a_target_count_as_rivals() -> None:
    entry, target = RevisionEntry(10), WorkloadTarget(name="shop")

    def seen(count: int, now_s: float, *, target: WorkloadTarget | None = target) -> bool:
        deployment = ScaledDeployment(
            name="shop",
            key=("default", "r"),
            revision_uid="u",
            replica_count=count,
            resource_version="1",
            target=target,
        )
        return entry.set_deployment(deployment, now_s)

    assert seen(1, 0.0)
    assert not seen(1, 1.0)
    assert not entry.rivals.times
    assert seen(3, 2.0)
    assert seen(4, 3.0, target=None)
    assert list(entry.rivals.times) == [2.0]
    assert entry.rivals.count == 3
    scaler = Scaler(revision_with(), facts_of(0), SETTINGS, is_restart=False, now_s=0.0)
    scaler.record(Stat(pod="a", at_s=0.1, concurrency=1.0, request_count=1.0), StatSource.ACTIVATOR)
    entry.latest = scaler.tick(facts_of(0), DecisionCause.LOAD, 0.1)
    assert entry.latest.apply_count == 1
    assert not seen(1, 4.0)
    assert list(entry.rivals.times) == [2.0]
