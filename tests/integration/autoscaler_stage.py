"""A store with a revision, its Deployment and its pods, for tests of the autoscaler."""

import contextlib

from serving.core.model.errors import AlreadyExists
from serving.core.model.knative import BECAME_READY_ANNOTATION
from serving.core.model.objects import Object
from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.scaler.registry import PolicyRegistry
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, NAMESPACE, POD, REVISION

KEY = b"k" * 32
NAME = "hello-00001"
WAITING = "waiting"
_LABELS = {"serving.knative.dev/revision": NAME, "serving.knative.dev/routingState": "active"}


class CountsWaiting:
    """Knative's policy, except that it scales from zero for all queued requests; Knative starts with one pod."""

    counts_waiting = True

    def observe(self, second: SecondOfLoad) -> None:
        """Ignore the load."""

    def propose(self, view: PolicyView) -> Advice:
        """Leave the algorithm's count."""
        del view
        return NEUTRAL


REGISTRY = PolicyRegistry({WAITING: CountsWaiting})


class Store:
    """The objects of a revision with a concurrency of 10 per pod."""

    def __init__(self, cluster: MemoryCluster | None = None, *, name: str = NAME) -> None:
        self.cluster, self.name = cluster or MemoryCluster(), name
        self.uid = ""
        self._labels = {**_LABELS, "serving.knative.dev/revision": name}

    async def fill(
        self, *, scale: int, serving_state: str = "Active", annotations: dict[str, str] | None = None
    ) -> None:
        """Create a revision that became ready before, and its Deployment."""
        with contextlib.suppress(AlreadyExists):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
            await self.cluster.create(NAMESPACE, namespace)
        revision = await self.cluster.create(
            REVISION,
            {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Revision",
                "metadata": {
                    "namespace": "default",
                    "name": self.name,
                    "labels": self._labels,
                    "annotations": {BECAME_READY_ANNOTATION: "then", **(annotations or {})},
                },
                "spec": {"containerConcurrency": 10, "containers": [{"image": "x"}], "servingState": serving_state},
            },
        )
        self.uid = revision["metadata"]["uid"]
        await self.cluster.create(
            DEPLOYMENT,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {
                    "namespace": "default",
                    "name": f"{self.name}-deployment",
                    "labels": self._labels,
                    "ownerReferences": [
                        {
                            "apiVersion": "serving.knative.dev/v1",
                            "kind": "Revision",
                            "name": self.name,
                            "uid": self.uid,
                            "controller": True,
                        }
                    ],
                },
                "spec": {"replicas": scale, "selector": {"matchLabels": self._labels}, "template": {}},
            },
        )

    async def add_pod(self, name: str, *, ready: bool = True) -> None:
        """Add a pod of the revision."""
        metadata = {"namespace": "default", "name": name, "labels": self._labels}
        await self.cluster.create(
            POD,
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}]}},
        )
        await self.set_ready(name, ready=ready)

    async def set_ready(self, name: str, *, ready: bool) -> None:
        """Report a pod's readiness, like a kubelet."""
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        await self.cluster.patch(POD, "default", name, patch={"status": status}, subresource="status")

    async def remove_pod(self, name: str) -> None:
        """Delete a pod."""
        await self.cluster.delete(POD, "default", name, grace_s=0)

    async def wake(self) -> None:
        """Set the revision to Active, like an activator."""
        await self.cluster.patch(REVISION, "default", self.name, patch={"spec": {"servingState": "Active"}})

    async def revision(self) -> Object:
        """The current Revision."""
        return await self.cluster.get(REVISION, "default", self.name)

    async def serving_state(self) -> str:
        """The serving state of the revision."""
        return str((await self.revision())["spec"]["servingState"])

    async def scale(self) -> int:
        """The scale of the Deployment."""
        deployment = await self.cluster.get(DEPLOYMENT, "default", f"{self.name}-deployment")
        return int(deployment["spec"]["replicas"])

    async def scaled(self, *wanted: int) -> int:
        """Wait until the Deployment has one of these numbers of replicas; return the number."""
        listing, count = await self.cluster.list(DEPLOYMENT, "default"), await self.scale()
        if count in wanted:
            return count
        async with self.cluster.watch(DEPLOYMENT, "default", resource_version=listing.resource_version) as events:
            async for event in events:
                count = int(event.object["spec"]["replicas"])
                if count in wanted and event.object["metadata"]["name"] == f"{self.name}-deployment":
                    return count
        raise AssertionError("the watch ended")
