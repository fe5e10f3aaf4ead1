"""ScaledWorkloads in the decision loop, on virtual time; their pods send no reports."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.core.model.objects import Object, annotations_of, uid_of
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadScaling, WorkloadService, WorkloadTarget
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import DEPLOYMENT, MACHINE_DEPLOYMENT, POD, REVISION, SCALED_WORKLOAD
from tests.eventually import until
from tests.unit.autoscaler.test_loop import Stage
from tests.virtual_time import pass_s, run_virtually

KEY = ("default", "shop")
LABELS = {"app": "shop"}
SETTINGS = AutoscalerSettings(policy=KNATIVE_POLICY)
READY: Object = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def workload(*, target: str = "shop", **scaling: int) -> Object:
    spec = ScaledWorkloadSpec(
        target=WorkloadTarget(name=target),
        service=WorkloadService(name="shop"),
        scaling=WorkloadScaling(target=10.0, window="10s", **scaling),  # type: ignore[arg-type]
    )
    return spec.to_object(name="shop", namespace="default")


def deployment(scale: int, *, name: str = "shop", labels: dict[str, str] = LABELS) -> Object:
    selector = {"matchLabels": labels} if labels else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"replicas": scale, "selector": selector, "template": {}},
    }


def pod_of_shop(name: str, *, labels: dict[str, str] = LABELS) -> Object:
    metadata = {"namespace": "default", "name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}]}}


class Shop:
    """The stage, with the objects of one workload."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.cluster = stage, stage.cluster

    async def add_pod(self, name: str, *, labels: dict[str, str] = LABELS) -> None:
        await self.cluster.create(POD, pod_of_shop(name, labels=labels))
        await self.cluster.patch(POD, "default", name, patch=READY, subresource="status")

    async def scale(self, name: str = "shop") -> int:
        return int((await self.cluster.get(DEPLOYMENT, "default", name))["spec"]["replicas"])

    async def report(self, load: float, *, seconds: int = 1, **pods: float) -> None:
        """Report the load of an activator once per second, with the requests in each pod."""
        for _ in range(seconds):
            stat = Stat(pod="activator", at_s=now_s(), concurrency=load, request_count=load, pod_loads=pods)
            self.stage.autoscaler.record(KEY, stat, StatSource.ACTIVATOR)
            await pass_s(1)


@asynccontextmanager
async def new_shop(*, scale: int = 0, first: Object | None = None) -> AsyncIterator[Shop]:
    """A running autoscaler and a workload created afterwards; ``first`` replaces its manifest."""
    stage, stop = Stage(SETTINGS), asyncio.Event()
    await stage.cluster.create(DEPLOYMENT, deployment(scale))
    shop = Shop(stage)
    for number in range(scale):
        await shop.add_pod(f"p{number}")
    await shop.add_pod("stranger", labels={"app": "other"})
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.autoscaler.run(stop))
        try:
            await stage.synced()
            await stage.cluster.create(SCALED_WORKLOAD, first or workload())
            await until(lambda: KEY in stage.autoscaler.keys)
            yield shop
        finally:
            stop.set()


def ready_count(shop: Shop) -> int:
    entry = shop.stage.autoscaler.entry(KEY)
    return 0 if entry is None else len(entry.ready_names)


def test_workload_scales_from_zero_with_load_and_back_to_zero() -> None:
    async def body() -> None:
        async with new_shop() as shop:
            # A new workload at zero is not started, though it has no serving state yet.
            await pass_s(5)
            assert await shop.scale() == 0
            await shop.report(1.0)
            assert await shop.scale() == 1
            await shop.add_pod("p0")
            await shop.report(25.0, seconds=20)
            assert await shop.scale() == 4
            # Activators report no load; the window of 10 s passes.
            await shop.report(0.0, seconds=30)
            assert await shop.scale() == 0
            scaled_workload = await shop.cluster.get(SCALED_WORKLOAD, *KEY)
            assert annotations_of(scaled_workload)["serving.dev/serving-state"] == "Reserve"
            assert scaled_workload["spec"] == workload()["spec"]

    run_virtually(body())


def test_ready_pod_is_announced_once_at_the_target_port_of_the_status() -> None:
    async def body() -> None:
        async with new_shop() as shop:
            ip = {"status": {"podIP": "10.1.0.7"}}
            await shop.report(1.0)
            await shop.add_pod("p0")
            await pass_s(1)
            assert shop.stage.announced == []
            await shop.cluster.patch(
                SCALED_WORKLOAD, *KEY, patch={"status": {"targetPort": 8080}}, subresource="status"
            )
            for name in ("p1", "p2"):
                await shop.cluster.create(POD, pod_of_shop(name))
                await shop.cluster.patch(POD, "default", name, patch=ip, subresource="status")
            await pass_s(1)
            assert shop.stage.announced == []
            for _ in range(2):
                await shop.cluster.patch(POD, "default", "p1", patch=READY, subresource="status")
            await pass_s(1)
            [announced] = shop.stage.announced
            assert (announced.revision, announced.pod, announced.address) == ("shop", "p1", "10.1.0.7:8080")

    run_virtually(body())


def test_pods_without_requests_are_removed_first() -> None:
    async def body() -> None:
        async with new_shop(scale=3) as shop:
            await shop.report(7.0, seconds=40, p0=3.0, p2=4.0)
            assert await shop.scale() == 1
            costs = {}
            for name in ("p0", "p1", "p2"):
                costs[name] = annotations_of(await shop.cluster.get(POD, "default", name))
            key = "controller.kubernetes.io/pod-deletion-cost"
            assert {name for name, annotations in costs.items() if annotations.get(key) == "-1"} == {"p0", "p1"}

    run_virtually(body())


def test_repeated_foreign_scale_changes_set_the_contested_annotation() -> None:
    """The autoscaler corrects each foreign change to 3 pods, because the load needs one."""

    async def body() -> None:
        async with new_shop(scale=1) as shop:
            await shop.report(5.0, seconds=20)
            for _ in range(3):
                annotations = annotations_of(await shop.cluster.get(SCALED_WORKLOAD, *KEY))
                assert "autoscaling.serving.dev/contested" not in annotations
                patch = {"spec": {"replicas": 3}}
                await shop.cluster.patch(DEPLOYMENT, "default", "shop", patch=patch, subresource="scale")
                await shop.report(5.0, seconds=20)
                assert await shop.scale() == 1
            annotations = annotations_of(await shop.cluster.get(SCALED_WORKLOAD, *KEY))
            assert "last to 3" in annotations["autoscaling.serving.dev/contested"]
            await shop.report(5.0, seconds=610)
            annotations = annotations_of(await shop.cluster.get(SCALED_WORKLOAD, *KEY))
            assert "autoscaling.serving.dev/contested" not in annotations

    run_virtually(body())


def test_workload_without_activator_reports_retains_its_scale() -> None:
    """Without activators the load is unknown, so the scale is unchanged."""

    async def body() -> None:
        async with new_shop(scale=3) as shop:
            await pass_s(120)
            assert await shop.scale() == 3
            # A decision removes at most half of the ready pods, and these pods stay ready.
            await shop.report(0.0, seconds=30)
            assert await shop.scale() == 1

    run_virtually(body())


def test_new_workload_retains_its_scale_for_a_window() -> None:
    async def body() -> None:
        async with new_shop(scale=3) as shop:
            assert ready_count(shop) == 3
            await shop.report(0.0, seconds=5)
            assert await shop.scale() == 3
            await shop.report(0.0, seconds=30)
            assert await shop.scale() == 1

    run_virtually(body())


def test_min_scale_of_a_workload_applies_without_requests() -> None:
    async def body() -> None:
        async with new_shop(first=workload(min_count=2)) as shop:
            await pass_s(5)
            assert await shop.scale() == 2

    run_virtually(body())


def test_min_scale_raised_at_zero_starts_pods_without_requests() -> None:
    async def body() -> None:
        async with new_shop(scale=1) as shop:
            await shop.report(0.0, seconds=30)
            assert await shop.scale() == 0
            await pass_s(60)
            await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch={"spec": {"scaling": {"min": 2}}})
            await pass_s(1)
            assert await shop.scale() == 2
            annotations = annotations_of(await shop.cluster.get(SCALED_WORKLOAD, *KEY))
            assert annotations["serving.dev/serving-state"] == "Active"

    run_virtually(body())


def test_changed_workload_target_is_scaled_instead() -> None:
    async def body() -> None:
        async with new_shop(scale=1) as shop:
            await shop.cluster.create(DEPLOYMENT, deployment(0, name="next", labels={"app": "next"}))
            await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch={"spec": {"target": {"name": "next"}}})
            await pass_s(1)
            assert ready_count(shop) == 0
            await shop.report(1.0)
            assert (await shop.scale("next"), await shop.scale()) == (1, 1)

    run_virtually(body())


def test_workload_scales_a_custom_kind_with_a_scale_subresource() -> None:
    async def body() -> None:
        first = workload()
        first["spec"]["target"] = {
            "apiVersion": MACHINE_DEPLOYMENT.api_version,
            "kind": "MachineDeployment",
            "name": "shop",
        }
        async with new_shop(first=first) as shop:
            target = deployment(0) | {"apiVersion": MACHINE_DEPLOYMENT.api_version, "kind": "MachineDeployment"}
            await shop.cluster.create(MACHINE_DEPLOYMENT, target)
            await shop.add_pod("p0")
            await pass_s(3)
            assert ready_count(shop) == 1
            await shop.report(1.0)
            machine_deployment = await shop.cluster.get(MACHINE_DEPLOYMENT, "default", "shop")
            assert (machine_deployment["spec"]["replicas"], await shop.scale()) == (1, 0)
            await shop.cluster.delete(MACHINE_DEPLOYMENT, "default", "shop")
            await pass_s(3)
            await shop.report(9.0)
            assert shop.stage.autoscaler.numbers()["write_failures_total"] == 0

    run_virtually(body())


def test_workload_follows_creation_and_deletion_of_its_target() -> None:
    async def body() -> None:
        async with new_shop(first=workload(target="later")) as shop:
            await shop.report(1.0)
            await shop.cluster.create(DEPLOYMENT, deployment(0, name="later", labels={}))
            await pass_s(1)
            assert ready_count(shop) == 0
            await shop.report(1.0)
            assert await shop.scale("later") == 1
            await shop.cluster.delete(DEPLOYMENT, "default", "later")
            await shop.report(9.0)
            await shop.cluster.delete(SCALED_WORKLOAD, *KEY)
            await until(lambda: KEY not in shop.stage.autoscaler.keys)

    run_virtually(body())


def test_relabeled_or_deleted_pods_are_not_counted() -> None:
    async def body() -> None:
        async with new_shop(scale=2) as shop:
            await shop.cluster.patch(POD, "default", "p0", patch={"metadata": {"labels": {"app": "x"}}})
            await until(lambda: ready_count(shop) == 1)
            await shop.cluster.delete(POD, "default", "p1", grace_s=0)
            await until(lambda: ready_count(shop) == 0)

    run_virtually(body())


def test_invalid_workload_spec_retains_the_previous_spec() -> None:
    """The workload still scales from zero, and its writes succeed."""

    async def body() -> None:
        async with new_shop() as shop:
            await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch={"spec": {"service": {"name": ""}}})
            await shop.report(1.0)
            assert await shop.scale() == 1
            await shop.add_pod("p0")
            await shop.report(0.0, seconds=60)
            assert await shop.scale() == 0
            assert shop.stage.autoscaler.numbers()["write_failures_total"] == 0

    run_virtually(body())


def test_revision_with_the_name_of_a_workload_takes_precedence() -> None:
    async def body() -> None:
        stage, stop = Stage(SETTINGS), asyncio.Event()
        shop = Shop(stage)
        metadata = {"namespace": "default", "name": "shop"}
        revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": {}}
        await stage.cluster.create(REVISION, revision)
        await stage.cluster.create(DEPLOYMENT, deployment(0))
        await stage.cluster.create(SCALED_WORKLOAD, workload())
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.autoscaler.run(stop))
            await stage.synced()
            await shop.report(1.0)
            assert await shop.scale() == 0
            stop.set()

    run_virtually(body())


def test_workload_events_do_not_replace_a_revision_of_its_name() -> None:
    async def body() -> None:
        async with new_shop() as shop:
            metadata = {"namespace": "default", "name": "shop"}
            revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": {}}
            created = await shop.cluster.create(REVISION, revision)
            await pass_s(1)
            for deleted in (False, True):
                if deleted:
                    await shop.cluster.delete(SCALED_WORKLOAD, *KEY)
                else:
                    await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch={"spec": {"scaling": {"window": "20s"}}})
                await pass_s(1)
                entry = shop.stage.autoscaler.entry(KEY)
                assert entry is not None
                assert entry.revision is not None
                assert entry.revision.uid == uid_of(created)

    run_virtually(body())


ALWAYS = [
    {"start": "0 0 * * *", "end": "59 23 * * *", "min": 3},
    {"start": "59 23 * * *", "end": "1 0 * * *", "min": 3},
]


def test_workload_schedules_set_the_minimum_until_removed() -> None:
    async def body() -> None:
        scheduled = workload()
        scheduled["spec"]["scaling"]["schedules"] = ALWAYS
        async with new_shop(first=scheduled) as shop:
            await shop.report(0.0, seconds=5)
            assert await shop.scale() == 3
            for name in ("p0", "p1", "p2"):
                await shop.add_pod(name)
            # An invalid spec changes nothing.
            await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch={"spec": {"scaling": {"window": "soon"}}})
            await shop.report(0.0, seconds=40)
            assert await shop.scale() == 3
            patch = {"spec": {"scaling": {"window": "10s", "schedules": None}}}
            await shop.cluster.patch(SCALED_WORKLOAD, *KEY, patch=patch)
            await shop.report(0.0, seconds=40)
            assert await shop.scale() < 3

    run_virtually(body())


def test_schedules_of_an_unscaled_workload_create_no_policy() -> None:
    async def body() -> None:
        stage, stop = Stage(SETTINGS), asyncio.Event()
        metadata = {"namespace": "default", "name": "shop"}
        revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": {}}
        await stage.cluster.create(REVISION, revision)
        scheduled = workload()
        scheduled["spec"]["scaling"]["schedules"] = ALWAYS
        await stage.cluster.create(SCALED_WORKLOAD, scheduled)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.autoscaler.run(stop))
            await stage.synced()
            await pass_s(2)
            assert stage.autoscaler.numbers()["policies"] == 0
            stop.set()

    run_virtually(body())
