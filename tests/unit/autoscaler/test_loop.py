"""The decision loop over the memory store on virtual time: deterministic and without waiting."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.autoscaler.decision_events import DecisionEvent
from serving.autoscaler.io.autoscaler import Autoscaler, MemorySaving
from serving.autoscaler.io.sharing import Sharing
from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.model.errors import Forbidden, NotLeading, Unavailable
from serving.core.model.knative import (
    LEARNT_ANNOTATION,
    POLICY_FAILURE_ANNOTATION,
    SAVINGS_ANNOTATION,
    SHORTAGE_ANNOTATION,
)
from serving.core.model.objects import Object
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AdaptiveSettings, AutoscalerSettings
from serving.core.settings.dormancy import MemorySettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import DEPLOYMENT, POD, POD_METRICS, REVISION, SCALING_POLICY
from serving.net.cluster.leases.shards import ShardOptions, Shards
from serving.net.cluster.port import Listing, Patch, Selection, Write
from serving.net.wire.frames import AnnouncedPod
from tests.eventually import until
from tests.integration.autoscaler_stage import NAME, Store
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.virtual_time import pass_s, run_virtually

KEY = ("default", NAME)
ADAPTIVE = AutoscalerSettings(policy=ADAPTIVE_POLICY)
KEY_OF_DEPLOYMENT = ("default", f"{NAME}-deployment")

Before = Callable[[Patch], Awaitable[None]]


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each run at a full hour, because savings are written at the start of an hour."""
    monkeypatch.setattr("serving.autoscaler.io.decision_loop.wall_s", lambda: 3600.0 + now_s())


class Interfering(MemoryCluster):
    """A store with a hook before each patch."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Before | None = None

    async def write(self, write: Write) -> Object:
        before, self.before = self.before, None
        if before is not None and isinstance(write, Patch):
            try:
                await before(write)
            finally:
                self.before = before
        return await super().write(write)


class Stage:
    """An autoscaler over a store; tests report load for its pods."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        self.cluster = Interfering()
        self.store = Store(self.cluster)
        self.is_proved = True
        self.proof_count = 0
        self.sentences: list[str] = []
        self.announced: list[AnnouncedPod] = []
        watches_memory = settings.memory.proc_folder != MemorySettings().proc_folder
        self.autoscaler = Autoscaler(
            self.cluster,
            settings=settings,
            prove=self.prove,
            on_decision=self.decided,
            saving=MemorySaving.REMOVE if watches_memory else MemorySaving.NONE,
            announce=self.announced.append,
        )

    def decided(self, event: DecisionEvent) -> None:
        self.sentences.append(explain(event.outcome))

    async def prove(self) -> bool:
        self.proof_count += 1
        return self.is_proved

    def send_report(
        self, concurrency: float, *, by: str = "activator", source: StatSource = StatSource.ACTIVATOR
    ) -> None:
        stat = Stat(pod=by, at_s=now_s(), concurrency=concurrency, request_count=concurrency)
        self.autoscaler.record(KEY, stat, source)

    async def report(self, seconds: int, **loads: float) -> None:
        """Report the load of each pod once per second."""
        for _ in range(seconds):
            for name, load in loads.items():
                self.send_report(load, by=name, source=StatSource.POD)
            await pass_s(1)

    async def synced(self) -> None:
        await until(lambda: self.autoscaler.is_synced)


@asynccontextmanager
async def staged(
    *,
    scale: int = 0,
    serving_state: str = "Reserve",
    pods: Sequence[str] = (),
    settings: AutoscalerSettings | None = None,
    annotations: dict[str, str] | None = None,
) -> AsyncIterator[Stage]:
    stage, stop = Stage(settings or AutoscalerSettings(policy=KNATIVE_POLICY)), asyncio.Event()
    await stage.store.fill(scale=scale, serving_state=serving_state, annotations=annotations)
    for name in pods:
        await stage.store.add_pod(name)
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.autoscaler.run(stop))
        try:
            await stage.synced()
            yield stage
        finally:
            stop.set()


def awake(*pods: str) -> AbstractAsyncContextManager[Stage]:
    return staged(scale=len(pods), serving_state="Active", pods=pods)


def test_activator_poke_is_scaled_without_delay() -> None:
    async def run() -> tuple[int, float]:
        async with staged() as stage:
            # The first periodic decision has passed.
            await pass_s(2.5)
            begin_s = now_s()
            stage.send_report(100.0)
            return await stage.store.scaled(15), now_s() - begin_s

    assert run_virtually(run()) == (15, 0.0)


def test_successive_pokes_are_batched() -> None:
    async def run() -> tuple[int, int]:
        async with staged() as stage:
            await pass_s(2.5)
            before = stage.autoscaler.counts.decisions
            for _ in range(100):
                stage.send_report(1.0)
                await pass_s(0.001)
            await stage.store.scaled(15)
            return stage.autoscaler.counts.decisions - before, await stage.store.scale()

    decisions, scale = run_virtually(run())
    assert scale == 15
    # One per 50 ms during 0.1 s, and one for each scale change from the watch.
    assert decisions <= 6


def test_a_woken_revision_gets_a_pod() -> None:
    async def run() -> int:
        async with staged() as stage:
            await stage.store.wake()
            return await stage.store.scaled(1)

    assert run_virtually(run()) == 1


def test_wake_right_after_a_decision_is_not_delayed() -> None:
    async def run() -> tuple[int, float]:
        async with staged() as stage:
            await pass_s(2.5)
            stage.autoscaler.changed(KEY)
            await pass_s(0.005)
            begin_s = now_s()
            await stage.store.wake()
            return await stage.store.scaled(1), now_s() - begin_s

    assert run_virtually(run()) == (1, 0.0)


def test_budget_limits_the_scale_and_changes_apply_immediately() -> None:
    async def run() -> list[int]:
        settings = AutoscalerSettings(policy=KNATIVE_POLICY, budget="5 pods")
        async with staged(scale=3, serving_state="Active", pods=["p", "q", "r"], settings=settings) as stage:
            await stage.report(20, p=30.0, q=30.0, r=30.0)
            results = [await stage.store.scale()]
            for budget in ("default=2 pods", ""):
                stage.autoscaler.reconfigure(AutoscalerSettings(policy=KNATIVE_POLICY, budget=budget))
                await stage.report(20, p=30.0, q=30.0, r=30.0)
                results.append(await stage.store.scale())
            return results

    assert run_virtually(run()) == [5, 2, 13]


def test_budget_shortage_annotation_is_written_and_removed() -> None:
    async def run() -> list[str | None]:
        settings = AutoscalerSettings(policy=KNATIVE_POLICY, budget="2 pods")
        annotations = {"autoscaling.knative.dev/min-scale": "4"}
        async with staged(
            scale=2, serving_state="Active", pods=["p", "q"], settings=settings, annotations=annotations
        ) as stage:
            await stage.report(10, p=1.0, q=1.0)
            results = [(await stage.store.revision())["metadata"]["annotations"].get(SHORTAGE_ANNOTATION)]
            assert await stage.store.scale() == 2
            stage.autoscaler.reconfigure(AutoscalerSettings(policy=KNATIVE_POLICY, budget="4 pods"))
            await stage.report(10, p=1.0, q=1.0)
            assert await stage.store.scale() == 4
            return [*results, (await stage.store.revision())["metadata"]["annotations"].get(SHORTAGE_ANNOTATION)]

    short = "the budget of 2 pods is too small: min-scale of all under it is more than it has"
    assert run_virtually(run()) == [short, None]


def test_unknown_policy_is_reported_and_knative_policy_is_used() -> None:
    async def run() -> tuple[object, int]:
        annotations = {"autoscaling.serving.dev/policy": "missing"}
        async with staged(scale=1, serving_state="Active", pods=["p"], annotations=annotations) as stage:
            await stage.report(10, p=95.0)
            failure = (await stage.store.revision())["metadata"]["annotations"].get(POLICY_FAILURE_ANNOTATION)
            return failure, await stage.store.scale()

    failure, scale = run_virtually(run())
    assert isinstance(failure, str)
    assert failure.startswith("there is no policy missing here, only knative, adaptive")
    assert scale > 1


def test_idle_revision_is_set_to_reserve_and_then_scaled_to_zero() -> None:
    async def run() -> tuple[float, str, list[str]]:
        written: list[str] = []

        async def remember(patch: Patch) -> None:
            written.append(patch.kind.name)

        async with awake("p") as stage:
            await stage.report(70, p=5.0)
            begin_s, stage.cluster.before = now_s(), remember
            async with asyncio.TaskGroup() as group:
                reports = group.create_task(stage.report(100, p=0.0))
                await stage.store.scaled(0)
                reports.cancel()
            return now_s() - begin_s, await stage.store.serving_state(), written

    idle_s, state, written = run_virtually(run())
    assert 60 <= idle_s <= 66
    assert (state, written) == ("Reserve", ["Revision", "Deployment"])


def test_learnt_policy_state_is_written_with_the_reserve_state() -> None:
    async def run() -> tuple[list[str], bool]:
        written: list[str] = []

        async def remember(write: Patch) -> None:
            written.append(write.kind.name)

        async with awake("p") as stage:
            await stage.report(2, p=1.0)
            await stage.report(30, p=0.0)
            stage.cluster.before = remember
            await stage.report(2, p=1.0)
            async with asyncio.TaskGroup() as group:
                reports = group.create_task(stage.report(100, p=0.0))
                await stage.store.scaled(0)
                reports.cancel()
            await pass_s(100)
            revision = await stage.cluster.get(REVISION, *KEY)
            return written, LEARNT_ANNOTATION in revision["metadata"]["annotations"]

    assert run_virtually(run()) == (["Revision", "Deployment"], True)


def test_unproven_activator_path_blocks_scale_to_zero_and_is_probed_again() -> None:
    async def run() -> tuple[int, str, int]:
        async with awake("p") as stage:
            stage.is_proved = False
            await stage.report(100, p=0.0)
            return await stage.store.scale(), await stage.store.serving_state(), stage.proof_count

    scale, state, proof_count = run_virtually(run())
    assert (scale, state) == (1, "Active")
    assert 20 <= proof_count <= 45


def test_request_sets_the_revision_active_in_the_scale_write() -> None:
    async def run() -> tuple[int, str, int]:
        async with staged() as stage:
            stage.send_report(1.0)
            await pass_s(1)
            wake_count = stage.autoscaler.numbers()["wake_writes_total"]
            return await stage.store.scale(), await stage.store.serving_state(), wake_count

    assert run_virtually(run()) == (1, "Active", 1)


def test_conflicting_change_during_reserve_retains_the_pod() -> None:
    async def run() -> tuple[str, int, int]:
        async with awake("p") as stage:
            touched = itertools.count()

            async def wake(write: Patch) -> None:
                # Another client changes the revision between each read and write of the autoscaler.
                if write.kind is REVISION:
                    patch = {"metadata": {"annotations": {"touched": str(next(touched))}}}
                    await stage.cluster.patch(REVISION, *KEY, patch=patch)

            stage.cluster.before = wake
            await stage.report(90, p=0.0)
            numbers = stage.autoscaler.numbers()
            return await stage.store.serving_state(), await stage.store.scale(), numbers["reserve_conflicts_total"]

    state, scale, conflicts = run_virtually(run())
    assert (state, scale) == ("Active", 1)
    assert conflicts > 0


def test_request_between_reserve_and_scale_to_zero_gets_a_pod() -> None:
    async def run() -> tuple[str, int]:
        async with awake("p") as stage:
            woken = asyncio.Event()

            async def wake(patch: Patch) -> None:
                if patch.subresource == "scale":
                    await stage.store.wake()
                    woken.set()

            stage.cluster.before = wake
            # The second of the scale write depends on the revision's place in the period.
            while not woken.is_set():
                await stage.report(1, p=0.0)
            stage.cluster.before = None
            await pass_s(2)
            return await stage.store.serving_state(), await stage.store.scale()

    assert run_virtually(run()) == ("Active", 1)


def test_scale_write_is_retried_while_the_api_server_is_unavailable() -> None:
    async def run() -> tuple[int, int]:
        async with staged() as stage:

            async def refuse(_: Patch) -> None:
                if now_s() < 30:
                    raise Unavailable("no API server")

            stage.cluster.before = refuse
            while await stage.store.scale() == 0:
                # Queued requests are reported every second.
                stage.send_report(5.0)
                await pass_s(1)
            return await stage.store.scale(), stage.autoscaler.counts.write_failures

    scale, failures = run_virtually(run())
    assert scale == 1
    assert failures > 3


def test_restarted_autoscaler_removes_no_pod_within_a_stable_window() -> None:
    async def run() -> tuple[int, int]:
        async with awake("a", "b", "c", "d") as stage:
            await stage.report(58, a=0.5, b=0, c=0, d=0)
            scale = await stage.store.scale()
            await stage.report(70, a=0.5, b=0, c=0, d=0)
            return scale, await stage.store.scale()

    # The four pods stay ready, and a decision removes at most half of them.
    assert run_virtually(run()) == (4, 2)


def test_conflicting_status_change_does_not_prevent_scaling() -> None:
    async def run() -> tuple[int, int]:
        async with staged() as stage:
            await pass_s(2.5)
            changes = itertools.count(1)

            async def before(write: Patch) -> None:
                number = next(changes)
                if write.kind is DEPLOYMENT and write.subresource == "scale" and number < 3:
                    patch = {"status": {"observedGeneration": number}}
                    await stage.cluster.patch(DEPLOYMENT, *KEY_OF_DEPLOYMENT, patch=patch, subresource="status")

            stage.cluster.before = before
            stage.send_report(100.0)
            return await stage.store.scaled(15), stage.autoscaler.numbers()["scale_conflicts_total"]

    assert run_virtually(run()) == (15, 2)


def test_conflicting_scale_write_triggers_a_new_decision() -> None:
    async def run() -> tuple[list[int], int]:
        async with staged() as stage:
            await pass_s(2.5)
            seen: list[int] = []

            async def before(write: Patch) -> None:
                if write.kind is DEPLOYMENT and write.subresource == "scale" and not seen:
                    patch = {"spec": {"replicas": 3}}
                    await stage.cluster.patch(DEPLOYMENT, *KEY_OF_DEPLOYMENT, patch=patch, subresource="scale")
                    seen.append(await stage.store.scale())

            stage.cluster.before = before
            stage.send_report(100.0)
            seen.append(await stage.store.scaled(15))
            # The write is visible in the store before its writer gets the response.
            await until(lambda: stage.autoscaler.numbers()["scale_writes_total"])
            return seen, stage.autoscaler.numbers()["scale_writes_total"]

    assert run_virtually(run()) == ([3, 15], 1)


def test_idle_pod_gets_a_deletion_cost_before_scale_down() -> None:
    async def run() -> dict[str, str | None]:
        async with awake("a", "b", "c") as stage:
            async with asyncio.TaskGroup() as group:
                reports = group.create_task(stage.report(200, a=0.0, b=5.0, c=0.0))
                await stage.store.scaled(2, 1)
                reports.cancel()
            listing = await stage.cluster.list(POD, "default")
            cost = "controller.kubernetes.io/pod-deletion-cost"
            return {
                item["metadata"]["name"]: item["metadata"].get("annotations", {}).get(cost) for item in listing.items
            }

    costs = run_virtually(run())
    assert costs["b"] is None
    assert "-1" in costs.values()


def test_decisions_of_many_revisions_are_spread_over_the_period() -> None:
    async def run() -> set[int]:
        stage, stop = Stage(AutoscalerSettings()), asyncio.Event()
        await stage.store.fill(scale=0)
        revision = await stage.store.revision()
        for number in range(100):
            name = f"r{number}"
            new_revision = await stage.cluster.create(
                REVISION, {"metadata": {"namespace": "default", "name": name}, "spec": revision["spec"]}
            )
            owner = {"apiVersion": "v1", "kind": "Revision", "name": name, "uid": new_revision["metadata"]["uid"]}
            await stage.cluster.create(
                DEPLOYMENT,
                {
                    "metadata": {
                        "namespace": "default",
                        "name": f"{name}-deployment",
                        "labels": {"serving.knative.dev/revision": name},
                        "ownerReferences": [owner],
                    },
                    "spec": {"replicas": 0},
                },
            )
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.autoscaler.run(stop))
            await pass_s(3)
            numbers = {
                int(stage.autoscaler.decisions(("default", f"r{number}"))[0].since_s * 10) for number in range(100)
            }
            stop.set()
        return numbers

    # Decisions fall into at least 15 of the 20 tenths of a second of a period.
    assert len(run_virtually(run())) >= 15


def test_deleted_revision_is_removed_and_not_decided() -> None:
    async def run() -> tuple[int, int]:
        async with awake("p") as stage:
            await pass_s(3)
            before = stage.autoscaler.numbers()["revisions"]
            await stage.store.remove_pod("p")
            await stage.cluster.delete(REVISION, *KEY)
            await stage.cluster.delete(DEPLOYMENT, "default", f"{NAME}-deployment")
            await pass_s(3)
            decisions = stage.autoscaler.counts.decisions
            await pass_s(60)
            assert stage.autoscaler.counts.decisions == decisions
            stage.send_report(5.0)
            assert stage.autoscaler.counts.unknown_stats == 1
            assert stage.autoscaler.decisions(KEY) == []
            return before, stage.autoscaler.numbers()["revisions"]

    assert run_virtually(run()) == (1, 0)


def test_recreated_revision_starts_without_previous_state() -> None:
    async def run() -> int:
        async with awake("p") as stage:
            await stage.report(10, p=5.0)
            await stage.cluster.delete(REVISION, *KEY)
            await stage.cluster.delete(DEPLOYMENT, "default", f"{NAME}-deployment")
            await stage.store.remove_pod("p")
            await stage.store.fill(scale=0, serving_state="Reserve")
            await pass_s(2.5)
            stage.send_report(100.0)
            return await stage.store.scaled(15)

    assert run_virtually(run()) == 15


def test_revision_is_scaled_once_its_deployment_exists() -> None:
    async def run() -> int:
        stage, stop = Stage(AutoscalerSettings()), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.autoscaler.run(stop))
            await stage.synced()
            await stage.store.fill(scale=0, serving_state="Active")
            scale = await stage.store.scaled(1)
            stop.set()
        return scale

    assert run_virtually(run()) == 1


def test_changed_min_scale_is_applied() -> None:
    async def run() -> int:
        async with awake("p") as stage:
            await stage.report(10, p=5.0)
            patch = {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "3"}}}
            await stage.cluster.patch(REVISION, *KEY, patch=patch)
            return await stage.store.scaled(3)

    assert run_virtually(run()) == 3


def test_revision_of_another_autoscaler_class_is_ignored() -> None:
    async def run() -> int:
        async with awake("p") as stage:
            await pass_s(3)
            patch = {"metadata": {"annotations": {"autoscaling.knative.dev/class": "mine.example.com"}}}
            await stage.cluster.patch(REVISION, *KEY, patch=patch)
            await pass_s(1)
            return stage.autoscaler.numbers()["revisions"]

    assert run_virtually(run()) == 0


def test_changed_class_replaces_the_scaler() -> None:
    async def run() -> str:
        async with awake("p") as stage:
            await stage.report(10, p=5.0)
            patch = {"metadata": {"annotations": {"autoscaling.knative.dev/class": "classic.autoscaling.serving.dev"}}}
            await stage.cluster.patch(REVISION, *KEY, patch=patch)
            await stage.report(10, p=5.0)
            return stage.autoscaler.decisions(KEY)[-1].outcome.decided.proposal.decider

    assert run_virtually(run()) == "classic"


def test_deployment_without_an_owner_revision_is_ignored() -> None:
    async def run() -> int:
        async with awake("p") as stage:
            labels = {"serving.knative.dev/revision": "other"}
            metadata = {"namespace": "default", "name": "other", "labels": labels}
            await stage.cluster.create(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": 3}})
            await pass_s(3)
            return stage.autoscaler.numbers()["revisions"]

    assert run_virtually(run()) == 1


def test_adaptive_policy_learns_in_shadow_of_the_knative_policy() -> None:
    async def run() -> None:
        async with staged(scale=1, serving_state="Active", pods=("p",)) as stage:
            for _ in range(6):
                await stage.report(2, p=1.0)
                await stage.report(20, p=0.0)
            await stage.report(2, p=1.0)
            decided = stage.autoscaler.decisions(KEY)[-1].outcome
            assert (decided.inputs.spec.policy, decided.inputs.advice.proposals) == (KNATIVE_POLICY, None)
            revision = await stage.cluster.get(REVISION, *KEY)
            assert {LEARNT_ANNOTATION, SAVINGS_ANNOTATION} <= set(revision["metadata"]["annotations"])
            # The adaptive policy, if selected now, continues with the state learnt in shadow.
            policy = adaptive_policy(spec_with(policy=ADAPTIVE_POLICY), ADAPTIVE)
            assert policy is not None
            policy.load(revision["metadata"]["annotations"][LEARNT_ANNOTATION])
            assert policy.curve() is not None

    run_virtually(run())


def test_learnt_policy_state_is_saved_after_a_failed_write() -> None:
    failed: list[Patch] = []

    async def fail(patch: Patch) -> None:
        if not failed and LEARNT_ANNOTATION in (patch.patch["metadata"].get("annotations") or {}):
            failed.append(patch)
            raise Unavailable("the server restarts")

    async def run() -> None:
        async with staged(scale=1, serving_state="Active", pods=("p",)) as stage:
            stage.cluster.before = fail
            for _ in range(6):
                await stage.report(2, p=1.0)
                await stage.report(20, p=0.0)
            await until(lambda: bool(failed))
            await stage.report(3, p=1.0)
            revision = await stage.cluster.get(REVISION, *KEY)
            assert LEARNT_ANNOTATION in revision["metadata"]["annotations"]

    run_virtually(run())


def test_learnt_policy_state_survives_an_autoscaler_restart() -> None:
    async def run() -> tuple[float, float]:
        stop = asyncio.Event()
        async with staged(scale=1, serving_state="Active", pods=("p",), settings=ADAPTIVE) as stage:
            for _ in range(20):
                await stage.report(2, p=1.0)
                await stage.report(88, p=0.0)
            await stage.report(2, p=1.0)
            await stage.report(10, p=0.0)
            before = stage.autoscaler.decisions(KEY)[-1].outcome.inputs.advice.keep
            revision = await stage.cluster.get(REVISION, *KEY)
            assert {LEARNT_ANNOTATION, SAVINGS_ANNOTATION} <= set(revision["metadata"]["annotations"])
            again = Autoscaler(stage.cluster, settings=ADAPTIVE, prove=stage.prove)
            async with asyncio.TaskGroup() as group:
                group.create_task(again.run(stop))
                for _ in range(10):
                    stat = Stat(pod="p", at_s=now_s())
                    again.record(KEY, stat, StatSource.POD)
                    await pass_s(1)
                after = again.decisions(KEY)[-1].outcome.inputs.advice.keep
                stop.set()
        assert before is not None
        assert after is not None
        return before.gaps_lasted, after.gaps_lasted

    before, after = run_virtually(run())
    # Gaps since the last save are lost; saves happen every five minutes.
    assert 0 < after <= before


def test_policy_learns_the_pod_start_time() -> None:
    async def run() -> float:
        async with staged(scale=1, serving_state="Active", pods=("p",), settings=ADAPTIVE) as stage:
            await stage.report(10, p=5.0)
            await stage.store.add_pod("q", ready=False)
            await stage.report(20, p=5.0)
            await stage.store.set_ready("q", ready=True)
            await stage.report(3, p=5.0, q=0.0)
            entry = stage.autoscaler.entry(KEY)
            assert entry is not None
            assert entry.scaler is not None
            return entry.scaler.policy.start_s

    # The default is 2 s; a start of 20 s moves the mean by a fifth of the difference.
    assert run_virtually(run()) == pytest.approx(2.0 + 0.2 * 18.0, abs=0.1)


PODS = ("p", "q", "r", "s")


def with_boot(boot_s: float) -> AutoscalerSettings:
    return AutoscalerSettings(policy=KNATIVE_POLICY, node_boot_s=boot_s)


async def published(stage: Stage) -> AnticipatedPods | None:
    revision = await stage.cluster.get(REVISION, *KEY)
    return anticipated_pods_of(revision["metadata"].get("annotations") or {})


async def climbed(stage: Stage) -> None:
    """A minute of load for 4 pods, then 1.5 times that load, below the panic threshold."""
    await stage.report(60, **dict.fromkeys(PODS, 6.5))
    await stage.report(8, **dict.fromkeys(PODS, 10.0))


def test_anticipated_pods_are_published_during_a_climb_and_withdrawn() -> None:
    async def run() -> tuple[AnticipatedPods | None, int, AnticipatedPods | None]:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(30.0)) as stage:
            await climbed(stage)
            during, scale = await published(stage), await stage.store.scale()
            await stage.report(120, **dict.fromkeys(PODS, 6.5))
            return during, scale, await published(stage)

    during, scale, after = run_virtually(run())
    assert during is not None
    # The number depends on the second of the decision.
    assert during.count in (5, 6)
    assert (scale, after) == (4, None)


def test_no_anticipated_pods_are_published_without_node_boot_time() -> None:
    async def run() -> AnticipatedPods | None:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(0.0)) as stage:
            await climbed(stage)
            return await published(stage)

    assert run_virtually(run()) is None


def test_removing_node_boot_time_withdraws_anticipated_pods() -> None:
    async def run() -> tuple[bool, AnticipatedPods | None]:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(30.0)) as stage:
            await climbed(stage)
            before = await published(stage) is not None
            stage.autoscaler.reconfigure(with_boot(0.0))
            await stage.report(3, **dict.fromkeys(PODS, 10.0))
            return before, await published(stage)

    assert run_virtually(run()) == (True, None)


ONLY = {"serving.dev/dormant": "only,after=1s"}


def short_of_memory(folder: Path, available_kib: int, **more: Any) -> AutoscalerSettings:  # noqa: ANN401 - settings
    """Settings of a machine with 1,000,000 KiB of memory."""
    (folder / "meminfo").write_text(f"MemTotal: 1000000 kB\nMemAvailable: {available_kib} kB\n")
    return AutoscalerSettings(policy=KNATIVE_POLICY, memory=MemorySettings(proc_folder=str(folder)), **more)


@pytest.mark.parametrize("annotations", [{}, ONLY, {"autoscaling.knative.dev/min-scale": "1"}])
def test_dormant_pod_is_removed_on_memory_shortage_until_a_request(tmp_path: Path, annotations: dict[str, str]) -> None:
    async def run() -> list[object]:
        settings = short_of_memory(tmp_path, 900_000)
        async with staged(
            scale=1, serving_state="Active", pods=["p"], settings=settings, annotations=annotations
        ) as stage:
            await stage.report(5, p=1.0)
            stage.autoscaler.record(KEY, Stat(pod="p", at_s=now_s(), is_dormant=True, idle_s=1.0), StatSource.POD)
            await pass_s(10)
            results: list[object] = [await stage.store.scale()]
            short_of_memory(tmp_path, 40_000)
            results.append(await stage.store.scaled(0))
            await stage.store.remove_pod("p")
            await pass_s(30)
            results += [await stage.store.scale(), await stage.store.serving_state()]
            await stage.store.wake()
            stage.send_report(1.0)
            results.append(await stage.store.scaled(1))
            return [
                *results,
                any("memory is short: 39 MiB of 976 are available" in sentence for sentence in stage.sentences),
            ]

    assert run_virtually(run()) == [1, 0, 0, "Reserve", 1, True]


def test_memory_shortage_removes_only_dormant_pods_if_memory_is_readable(tmp_path: Path) -> None:
    async def run() -> list[int]:
        settings = short_of_memory(tmp_path, 40_000)
        async with staged(scale=2, serving_state="Active", pods=["p", "q"], settings=settings) as stage:
            await stage.report(20, p=5.0, q=6.0)
            results = [await stage.store.scale()]
            (tmp_path / "meminfo").write_text("nothing")
            stage.autoscaler.record(KEY, Stat(pod="q", at_s=now_s(), is_dormant=True), StatSource.POD)
            await stage.report(5, p=5.0)
            results.append(await stage.store.scale())
            short_of_memory(tmp_path, 40_000)
            await stage.report(5, p=5.0)
            return [*results, await stage.store.scale()]

    assert run_virtually(run()) == [2, 2, 1]


def test_dormant_report_of_a_deleted_pod_expires() -> None:
    async def run() -> list[list[str]]:
        async with staged(scale=2, serving_state="Active", pods=["p", "q"]) as stage:
            await stage.report(5, p=1.0, q=1.0)
            await stage.store.remove_pod("q")
            await pass_s(1)
            for name in ("p", "q"):
                stage.autoscaler.record(KEY, Stat(pod=name, at_s=now_s(), is_dormant=True), StatSource.POD)
            results = []
            for _ in range(2):
                entry = stage.autoscaler.entry(KEY)
                assert entry is not None
                assert entry.scaler is not None
                results.append(sorted(entry.scaler.pods))
                await pass_s(10)
            return results

    assert run_virtually(run()) == [["p", "q"], ["p"]]


MIB = 2**20


LEARNT = "autoscaling.serving.dev/learnt-target"


ANNOTATION = {"autoscaling.serving.dev/target": "learnt"}


USUAL = AutoscalerSettings(policy=KNATIVE_POLICY)


QUICK = AutoscalerSettings(policy=KNATIVE_POLICY, adaptive=AdaptiveSettings(learnt_target_period_s=2.0))


@asynccontextmanager
async def staged_pod(
    annotations: dict[str, str] | None = None, settings: AutoscalerSettings = QUICK
) -> AsyncIterator[Stage]:
    """A pod with a memory limit, and a target of 100 without a hard limit."""
    async with staged(
        scale=1, serving_state="Active", pods=("p",), settings=settings, annotations=annotations
    ) as stage:
        container = {"name": "c", "image": "x", "resources": {"limits": {"memory": "160Mi"}}}
        patch = {"spec": {"containers": [container], "containerConcurrency": 0}}
        await stage.cluster.patch(REVISION, "default", NAME, patch=patch)
        yield stage


async def measure(stage: Stage, concurrency: float, *, is_first: bool) -> None:
    """Store metrics of a pod whose memory grows by 12 MiB per request."""
    metrics = {
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "PodMetrics",
        "metadata": {"namespace": "default", "name": "p", "labels": {"serving.knative.dev/revision": NAME}},
        "timestamp": f"{now_s():.3f}",
        "window": "2s",
        "containers": [{"name": "c", "usage": {"cpu": "10m", "memory": str(int((20 + 12 * concurrency) * MIB))}}],
    }
    if is_first:
        await stage.cluster.create(POD_METRICS, metrics)
    else:
        await stage.cluster.replace(POD_METRICS, metrics)


async def live(stage: Stage, *, period_s: int = 5) -> None:
    """Report a load that rises to 8 and stays, with metrics in each period."""
    for number, concurrency in enumerate((1.0, 2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0)):
        await measure(stage, concurrency, is_first=not number)
        for _ in range(period_s):
            stat = Stat(
                pod="p",
                at_s=now_s(),
                concurrency=concurrency,
                request_count=concurrency,
                ended_count=concurrency,
                response_time_s=1.0,
            )
            stage.autoscaler.record(KEY, stat, StatSource.POD)
            await stage.report(1)


async def saved(stage: Stage) -> str:
    annotations = (await stage.cluster.get(REVISION, "default", NAME))["metadata"]["annotations"]
    return str(annotations.get(LEARNT, ""))


def test_learnt_target_is_used_with_the_annotation() -> None:
    async def run() -> tuple[int, str, str]:
        async with staged_pod(ANNOTATION) as stage:
            await live(stage)
            count = await stage.store.scaled(2, 3, 4)
            outcome = stage.autoscaler.decisions(KEY)[-1].outcome
            return count, str(outcome.inputs.learnt), await saved(stage)

    count, learnt, text = run_virtually(run())
    assert count >= 2
    assert "memory" in learnt
    assert "is_used=True" in learnt
    assert '"bound":"memory"' in text


def test_shadow_learnt_target_is_saved_without_scaling() -> None:
    async def run() -> tuple[int, str, str]:
        async with staged_pod(settings=USUAL) as stage:
            # Without the annotation, usage is listed at the interval of metrics-server.
            await live(stage, period_s=30)
            learnt = stage.autoscaler.decisions(KEY)[-1].outcome.inputs.learnt
            return await stage.store.scale(), str(learnt), await saved(stage)

    count, learnt, text = run_virtually(run())
    assert count == 1
    assert "is_used=False" in learnt
    assert '"bound":"memory"' in text


def test_saved_learnt_target_is_used_immediately_and_garbage_is_ignored() -> None:
    async def run(text: str) -> float:
        async with staged_pod({**ANNOTATION, LEARNT: text}) as stage:
            await stage.report(5, p=1.0)
            return stage.autoscaler.decisions(KEY)[-1].outcome.inputs.spec.total_value

    assert run_virtually(run('{"total":7.0,"bound":"memory","above":9.0}')) == 7.0
    assert run_virtually(run("garbage")) == 100.0


def test_missing_pod_metrics_cause_no_policy_failure() -> None:
    async def run() -> tuple[int, float]:
        async with staged_pod(ANNOTATION) as stage:

            async def refuse(selection: Selection, **_: object) -> Listing:
                if selection.kind is POD_METRICS:
                    raise Forbidden("no right to read metrics")
                return await MemoryCluster.list_selection(stage.cluster, selection)

            stage.cluster.list_selection = refuse  # type: ignore[method-assign]  # a server without metrics
            await stage.report(30, p=1.0)
            outcome = stage.autoscaler.decisions(KEY)[-1].outcome
            return stage.autoscaler.numbers()["policy_failures_total"], outcome.inputs.spec.total_value

    assert run_virtually(run()) == (0, 100.0)


class Member:
    """An autoscaler that competes for the lease; ``skew_s`` advances its lease clock, as a freeze does."""

    def __init__(self, name: str, cluster: MemoryCluster) -> None:
        self.skew_s = 0.0
        self.stop = asyncio.Event()
        self.sharing = Sharing()
        self.autoscaler = Autoscaler(cluster, settings=AutoscalerSettings(), prove=self.prove, sharing=self.sharing)
        self.relay = self.autoscaler.relay
        self.shards = self.sharing.shards = Shards(
            cluster,
            ShardOptions(daemon="autoscaler", namespace="knative-serving", count=1, me=name, address="10.0.0.1:6081"),
            on_won=self.autoscaler.won,
            on_lost=self.autoscaler.lost,
            clock=lambda: now_s() + self.skew_s,
        )

    async def prove(self) -> bool:
        return True

    async def synced(self) -> None:
        await until(lambda: self.autoscaler.is_synced)

    async def release(self) -> None:
        self.stop.set()
        self.shards.wake()
        await pass_s(0.1)

    def send_report(self, concurrency: float) -> None:
        stat = Stat(pod="activator", at_s=now_s(), concurrency=concurrency, request_count=concurrency)
        self.autoscaler.record(KEY, stat, StatSource.ACTIVATOR)

    async def report(self, seconds: int, concurrency: float) -> None:
        for _ in range(seconds):
            self.send_report(concurrency)
            await pass_s(1)


@asynccontextmanager
async def at_work(member: Member, group: asyncio.TaskGroup) -> AsyncIterator[Member]:
    """Run the autoscaler, and compete for the lease."""
    ending = asyncio.Event()
    group.create_task(member.autoscaler.run(ending))
    await member.synced()
    group.create_task(member.shards.run(member.stop))
    await pass_s(0.1)
    try:
        yield member
    finally:
        ending.set()
        await member.release()


async def filled(scale: int) -> Store:
    """A revision with as many ready pods as its scale."""
    store = Store()
    await store.fill(scale=scale, serving_state="Active")
    for number in range(scale):
        await store.add_pod(f"pod-{number}")
    return store


def test_autoscaler_without_the_lease_relays_and_takes_over_with_it() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group:
            member, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(member, group), at_work(two, group):
                assert (member.shards.owned, two.shards.owned) == ([0], [])
                await two.report(3, 100.0)
                assert (await store.scale(), two.relay.relayed_count) == (1, 3)
                assert two.autoscaler.numbers()["revisions"] == 0
                await member.report(3, 100.0)
                assert await store.scale() == 15
                await member.release()
                assert (member.autoscaler.numbers()["revisions"], two.autoscaler.numbers()["revisions"]) == (0, 1)
                await member.report(1, 300.0)
                await two.report(3, 200.0)
                assert await store.scale() == 29
                assert two.autoscaler.numbers()["scale_writes_total"] >= 1

    run_virtually(run())


def test_new_lease_owner_removes_no_pod_within_a_stable_window() -> None:
    async def run() -> None:
        store = await filled(4)
        async with asyncio.TaskGroup() as group:
            member, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(member, group), at_work(two, group):
                await member.report(30, 28.0)
                await member.release()
                assert two.shards.owned == [0]
                await two.report(58, 2.0)
                assert await store.scale() == 4
                await two.report(70, 2.0)
                assert await store.scale() < 4

    run_virtually(run())


def test_autoscaler_with_an_expired_lease_decides_and_writes_nothing() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group, at_work(Member("one", store.cluster), group) as member:
            await member.report(2, 5.0)
            decisions_total = member.autoscaler.numbers()["decisions_total"]
            member.skew_s = 60.0
            stat = Stat(pod="a", at_s=now_s(), concurrency=500, request_count=1)
            member.autoscaler.record(KEY, stat, StatSource.ACTIVATOR, is_relayed=True)
            await pass_s(0)
            assert member.autoscaler.numbers()["decisions_total"] == decisions_total
            with pytest.raises(NotLeading), member.sharing.writing(member.autoscaler.group(KEY)):
                pass
            assert await store.scale() == 1

    run_virtually(run())


def test_shard_release_waits_for_a_pending_write() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group, at_work(Member("one", store.cluster), group) as member:
            with member.sharing.writing(member.autoscaler.group(KEY)):
                await member.release()
                assert member.shards.owned == []
                lost = group.create_task(member.autoscaler.lost(0))
                await pass_s(1)
                assert not lost.done()
            await lost

    run_virtually(run())


def test_policy_status_is_written_by_the_lease_owner_of_its_target() -> None:
    async def run() -> None:
        store = await filled(1)
        body: dict[str, Any] = {
            "metadata": {"namespace": "default", "name": "p"},
            "spec": {"targetRef": {"kind": "Revision", "name": NAME}, "min": 2},
        }
        await store.cluster.create(SCALING_POLICY, body)
        async with asyncio.TaskGroup() as group:
            member, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(member, group), at_work(two, group):
                await pass_s(20)
                counts = [each.autoscaler.numbers()["policy_status_writes_total"] for each in (member, two)]
                assert counts[0] >= 1
                assert counts[1] == 0
                assert await store.scale() == 2
                await member.release()
                await pass_s(20)
                assert two.autoscaler.numbers()["policy_status_writes_total"] >= 1
                assert member.autoscaler.numbers()["policy_status_writes_total"] == counts[0]

    run_virtually(run())


def test_stats_without_an_owner_are_counted_and_dropped() -> None:
    async def run() -> None:
        member = Member("one", MemoryCluster())
        member.send_report(5.0)
        numbers = member.relay.numbers
        assert (numbers["stats_ownerless_total"], numbers["stats_passed_on_total"], numbers["shards"]) == (1, 0, 0)
        assert member.relay.elsewhere({"namespace": "default", "revision": NAME}) == ""

    run_virtually(run())


def test_revision_with_an_idle_pod_is_decided_again_only_after_load() -> None:
    async def run() -> tuple[int, int, int]:
        async with awake("a") as stage:
            await stage.report(2, a=1.0)
            await stage.report(4, a=0.0)
            counts = [stage.autoscaler.counts.decisions]
            await stage.report(24, a=0.0)
            counts.append(stage.autoscaler.counts.decisions)
            await stage.report(2, a=250.0)
            counts.append(stage.autoscaler.counts.decisions)
            await stage.report(2, a=250.0)
            return counts[1] - counts[0], counts[2] - counts[1], await stage.store.scale()

    resting, awake_count, scale = run_virtually(run())
    assert resting <= 1, "not one in each of 12 periods"
    assert awake_count == 1
    assert scale > 1


def test_own_reserve_write_in_the_watch_triggers_no_decision() -> None:
    async def run(*, is_own: bool) -> int:
        async with awake("p") as stage:
            await stage.report(4, p=0.0)
            entry = stage.autoscaler.entry(KEY)
            assert entry is not None
            assert entry.latest is not None
            entry.latest = msgspec.structs.replace(entry.latest, to_reserve=is_own)
            before = stage.autoscaler.counts.decisions
            await stage.cluster.patch(REVISION, *KEY, patch={"spec": {"servingState": "Reserve"}})
            await pass_s(0.1)
            return stage.autoscaler.counts.decisions - before

    assert [run_virtually(run(is_own=is_own)) for is_own in (True, False)] == [0, 1]
