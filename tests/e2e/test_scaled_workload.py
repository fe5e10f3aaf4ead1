"""An existing Deployment under ``serving up``, scaled from zero and back by requests, without a sidecar."""

import asyncio
import sys

import pytest

from serving.core.model.objects import Object, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadScaling, WorkloadService, WorkloadTarget
from serving.net.cluster.kinds import DEPLOYMENT, POD, SCALED_WORKLOAD, SERVICE
from serving.net.cluster.kube import KubeCluster
from tests.e2e.cli_stage import Stage
from tests.e2e.test_up import SAMPLE, cluster_of, until_no_pods, up_of

pytestmark = [pytest.mark.timeout(300)]

HOST = b"shop.example.com"
LABELS = {"app": "shop"}


def deployment(*, replicas: int) -> Object:
    template = {
        "metadata": {"labels": LABELS, "annotations": {"serving.dev/command": f"{sys.executable} {SAMPLE}"}},
        "spec": {"containers": [{"name": "app", "image": "shop", "ports": [{"name": "web", "containerPort": 8080}]}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template},
    }


def service() -> Object:
    ports = [{"name": "metrics", "port": 9000}, {"name": "http", "port": 80, "targetPort": "web"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"selector": LABELS, "ports": ports},
    }


def workload() -> Object:
    spec = ScaledWorkloadSpec(
        target=WorkloadTarget(name="shop"),
        service=WorkloadService(name="shop", port=80),
        hosts=(HOST.decode(),),
        scaling=WorkloadScaling(max_count=3, target=10.0, window="6s"),
    )
    return spec.to_object(name="shop", namespace="default")


async def until_conditions(cluster: KubeCluster, **wanted: str) -> Object:
    while True:
        scaled_workload = await cluster.get(SCALED_WORKLOAD, "default", "shop")
        conditions = {
            condition["type"]: condition["status"]
            for condition in nested(scaled_workload, "status", "conditions") or ()
        }
        if wanted.items() <= conditions.items():
            return scaled_workload
        await asyncio.sleep(0.05)


async def test_scaled_workload_scales_from_zero_and_back_without_failures(serving: Stage) -> None:
    up = up_of(serving)
    async with cluster_of(up) as cluster:
        await cluster.create(SERVICE, service())
        created = await cluster.create(DEPLOYMENT, deployment(replicas=1))
        await cluster.create(SCALED_WORKLOAD, workload())
        resource = await until_conditions(cluster, Ready="True")
        assert nested(resource, "status", "portName") == "http"
        assert nested(resource, "status", "url").startswith("http://shop.example.com:")
        # Without requests, the Deployment scales to zero.
        await until_no_pods(cluster)
        await up.until_status(200, HOST)
        pods: set[str] = set()
        while len(pods) < 2:
            responses = await asyncio.gather(*(up.get("/sleep/1", HOST) for _ in range(60)))
            assert {status for status, _ in responses} == {200}
            pods |= {body.split()[-1] for _, body in responses}
        await until_no_pods(cluster)
        resource = await cluster.get(DEPLOYMENT, "default", "shop")
        assert resource["spec"]["replicas"] == 0
        assert resource["spec"]["template"] == created["spec"]["template"]
        assert (await until_conditions(cluster, Active="False"))["spec"] == workload()["spec"]
        assert (await up.get(host=HOST))[0] == 200
        assert len((await cluster.list(POD, "default")).items) == 1
