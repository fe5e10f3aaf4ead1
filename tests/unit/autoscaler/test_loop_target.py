"""The learnt target in the loop, over the memory store, on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.core.model.errors import Forbidden
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import KNATIVE_POLICY, AdaptiveSettings, AutoscalerSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import POD_METRICS, REVISION
from serving.net.cluster.port import Listing, Selection
from tests.integration.autoscaler_stage import NAME
from tests.unit.autoscaler.test_loop import KEY, Stage, staged
from tests.virtual_time import run_virtually

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
    """The metrics of a pod to which each request adds 12 MiB."""
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
    """A load that rises to 8 and stays, measured each period."""
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


def test_a_learnt_target_scales_where_the_revision_asks_for_it() -> None:
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


def test_in_shadow_the_scale_stays_and_what_was_learnt_is_saved() -> None:
    async def run() -> tuple[int, str, str]:
        async with staged_pod(settings=USUAL) as stage:
            # Without the annotation usage is listed as often as metrics-server measures it.
            await live(stage, period_s=30)
            learnt = stage.autoscaler.decisions(KEY)[-1].outcome.inputs.learnt
            return await stage.store.scale(), str(learnt), await saved(stage)

    count, learnt, text = run_virtually(run())
    assert count == 1
    assert "is_used=False" in learnt
    assert '"bound":"memory"' in text


def test_what_was_saved_is_in_force_from_the_first_decision_and_garbage_is_learnt_again() -> None:
    async def run(text: str) -> float:
        async with staged_pod({**ANNOTATION, LEARNT: text}) as stage:
            await stage.report(5, p=1.0)
            return stage.autoscaler.decisions(KEY)[-1].outcome.inputs.spec.total_value

    assert run_virtually(run('{"total":7.0,"bound":"memory","above":9.0}')) == 7.0
    assert run_virtually(run("garbage")) == 100.0


def test_a_cluster_that_measures_nothing_fails_no_policy() -> None:
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
