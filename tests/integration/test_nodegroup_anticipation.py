"""The daemon counts anticipated pods in groups with anticipation."""

from serving.core.model.anticipation import AnticipatedPods
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION, REVISION_LABEL
from serving.net.cluster.kinds import DEPLOYMENT, REVISION
from tests.eventually import until
from tests.integration.nodegroup_stage import NodeGroupStage, staged_groups

NAME = "hello-00001"


async def revision(stage: NodeGroupStage, *, published: int) -> None:
    """Create a revision without pods that publishes a number of anticipated pods."""
    text = AnticipatedPods(count=published, until_s=stage.now_s + 60).text()
    metadata = {"namespace": "default", "name": NAME, "annotations": {ANTICIPATED_PODS_ANNOTATION: text}}
    await stage.cluster.create(REVISION, {"metadata": metadata, "spec": {"containers": [{"image": "i"}]}})
    container = {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    template = {"spec": {"containers": [container], "nodeSelector": {"customer": "shared"}}}
    metadata = {"namespace": "default", "name": f"{NAME}-deployment", "labels": {REVISION_LABEL: NAME}}
    await stage.cluster.create(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": 0, "template": template}})


async def nodes(stage: NodeGroupStage) -> None:
    for name in ("a", "b", "c"):
        await stage.node(name)


async def test_anticipated_pods_scale_up_before_any_pod_is_pending() -> None:
    async with staged_groups(anticipation=True) as stage:
        await nodes(stage)
        await revision(stage, published=12)
        await stage.run()
        followed = stage.passes._anticipation
        await until(lambda: len(followed.pods.pods(stage.now_s)) == 12)
        group_pass = await stage.run_one(after_s=1)
        # 12 of 12 cores, as if the pods were pending: 2 nodes more.
        assert (stage.cloud.increases, group_pass.plan.anticipated_count) == ([("asg", 2)], 12)
        assert (await stage.status())["anticipatedPodCount"] == 12
        assert "12 pods are anticipated" in str(await stage.events())
        later = await stage.run_one(after_s=60)
        # The publication has expired.
        assert (later.plan.anticipated_count, (await stage.status())["anticipatedPodCount"]) == (0, 0)


async def test_groups_without_anticipation_count_existing_pods_only() -> None:
    async with staged_groups() as stage:
        await nodes(stage)
        await revision(stage, published=12)
        group_pass = await stage.run_one()
        assert (stage.cloud.increases, group_pass.plan.anticipated_count) == ([], 0)
        assert not stage.passes._anticipation._is_wanted.is_set()
