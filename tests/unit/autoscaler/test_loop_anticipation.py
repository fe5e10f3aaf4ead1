"""The autoscaler publishes anticipated pods, where the boot time of a node is known."""

from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.net.cluster.kinds import REVISION
from tests.unit.autoscaler.test_loop import KEY, Stage, staged
from tests.virtual_time import run_virtually

PODS = ("p", "q", "r", "s")


def with_boot(boot_s: float) -> AutoscalerSettings:
    return AutoscalerSettings(policy=KNATIVE_POLICY, node_boot_s=boot_s)


async def published(stage: Stage) -> AnticipatedPods | None:
    found = await stage.cluster.get(REVISION, *KEY)
    return anticipated_pods_of(found["metadata"].get("annotations") or {})


async def climbed(stage: Stage) -> None:
    """A minute of a load for 4 pods, then half as much again, which does not panic."""
    await stage.report(60, **dict.fromkeys(PODS, 6.5))
    await stage.report(8, **dict.fromkeys(PODS, 10.0))


def test_a_climb_is_published_before_it_is_decided_and_withdrawn_when_it_is_over() -> None:
    async def run() -> tuple[AnticipatedPods | None, int, AnticipatedPods | None]:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(30.0)) as stage:
            await climbed(stage)
            during, scale = await published(stage), await stage.store.scale()
            await stage.report(120, **dict.fromkeys(PODS, 6.5))
            return during, scale, await published(stage)

    during, scale, after = run_virtually(run())
    assert during is not None
    assert (scale, during.count, after) == (4, 5, None)


def test_without_a_boot_time_nothing_is_published() -> None:
    async def run() -> AnticipatedPods | None:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(0.0)) as stage:
            await climbed(stage)
            return await published(stage)

    assert run_virtually(run()) is None


def test_when_the_boot_time_is_taken_away_what_was_published_goes() -> None:
    async def run() -> tuple[bool, AnticipatedPods | None]:
        async with staged(scale=4, serving_state="Active", pods=PODS, settings=with_boot(30.0)) as stage:
            await climbed(stage)
            before = await published(stage) is not None
            stage.autoscaler.reconfigure(with_boot(0.0))
            await stage.report(3, **dict.fromkeys(PODS, 10.0))
            return before, await published(stage)

    assert run_virtually(run()) == (True, None)
