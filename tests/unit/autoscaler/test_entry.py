"""What an entry passes on to the learnt target of its revision."""

import msgspec

from serving.autoscaler.entry import RevisionEntry
from serving.model.resources import Resources
from serving.model.stat import Stat
from serving.scaling.container import ServingContainer
from serving.scaling.policies.usage import Usages
from serving.scaling.revision import ScaledPod
from serving.scaling.scaler.scaler import DecisionCause, Scaler, ScalerOutcome, StatSource
from serving.settings.adaptive import AdaptiveSettings
from serving.settings.autoscaler import AutoscalerSettings
from tests.unit.scaling.kpa_builders import spec_with
from tests.unit.scaling.scaler_builders import facts_of, revision_with

POD = ScaledPod(name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost="")
SETTINGS = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target_period_s=1.0))


def entry_with_load(*, has_scaler: bool = True) -> RevisionEntry:
    entry = RevisionEntry(10)
    container = ServingContainer(name="c", limits=Resources(memory_bytes=200_000_000))
    entry.revision = msgspec.structs.replace(revision_with(spec_with()), container=container)
    if has_scaler:
        entry.scaler = Scaler(entry.revision, facts_of(1), SETTINGS, is_restart=False, now_s=0.0)
        report(entry, 40.0, 0.5)
    return entry


def report(entry: RevisionEntry, concurrency: float, at_s: float) -> None:
    assert entry.scaler is not None
    stat = Stat(pod="p", at_s=at_s, concurrency=concurrency, ended_count=concurrency, response_time_s=1.0)
    entry.scaler.record(stat, StatSource.POD)


def decided(entry: RevisionEntry, now_s: float) -> ScalerOutcome:
    assert entry.scaler is not None
    return entry.scaler.tick(facts_of(1), DecisionCause.PERIOD, now_s)


def killed(times: int) -> ScaledPod:
    return msgspec.structs.replace(POD, oom_kill_count=times)


def test_a_kill_for_memory_is_learnt_from_once() -> None:
    entry = entry_with_load()
    entry.take_pod(POD, 0.6, is_gone=False)
    assert decided(entry, 0.7).inputs.learnt is None
    entry.take_pod(killed(1), 0.8, is_gone=False)
    entry.take_pod(killed(1), 0.9, is_gone=False)
    learnt = decided(entry, 1.5).inputs.learnt
    assert learnt is not None
    assert learnt.bound == "memory"


def test_kills_before_a_pod_was_seen_are_no_news() -> None:
    entry = entry_with_load()
    entry.take_pod(killed(3), 0.6, is_gone=False)
    assert decided(entry, 0.7).inputs.learnt is None
    entry.take_pod(killed(3), 0.8, is_gone=True)
    assert entry.oom_kill_counts == {}


def test_usage_of_a_revision_that_is_not_decided_on_is_left_alone() -> None:
    entry = entry_with_load(has_scaler=False)
    entry.measured("default", Usages(), 1.0)
    entry.take_pod(POD, 0.6, is_gone=False)
    entry.take_pod(killed(1), 0.7, is_gone=False)


def test_the_memory_of_a_pod_is_learnt_with_its_requests() -> None:
    entry, usages, learnt = entry_with_load(), Usages(), None
    for second, concurrency in enumerate((1.0, 4.0, 8.0, 2.0, 6.0, 5.0)):
        report(entry, concurrency, second + 1.5)
        used = {"cpu": "100m", "memory": str(int(20_000_000 + 10_000_000 * concurrency))}
        one = {
            "metadata": {"namespace": "default", "name": "p"},
            "timestamp": str(second),
            "containers": [{"name": "c", "usage": used}, {"name": "queue-proxy", "usage": {"memory": "900Mi"}}],
        }
        usages.take([one], second + 1.6)
        entry.measured("default", usages, second + 1.6)
        learnt = decided(entry, second + 1.7).inputs.learnt
    assert learnt is not None
    # (0.9 x 200 - 20) / 10 = 16.
    assert learnt.bound == "memory"
    assert learnt.above is not None
    assert abs(learnt.above - 16) < 0.5
