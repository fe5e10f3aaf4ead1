"""Watches Revisions and Deployments while a group counts anticipated pods, and adds those pods to the daemon's book.

Without such a group neither kind is watched, because a cluster without Knative's definitions has no Revisions.
Anticipation begins when both kinds have been listed once; passes do not wait for it.
"""

import asyncio

from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION, REVISION_LABEL
from serving.core.model.objects import Object, annotations_of, labels_of, nested
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import DEPLOYMENT, REVISION
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector, ReflectorSettings
from serving.nodes.nodegroup.anticipation import AnticipatedBook
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.records import GroupPod


class PodAnticipation:
    """Watches for pods that autoscalers anticipate. ``pods`` needs the existing Pods; ``put`` adds missing ones."""

    def __init__(self, cluster: Cluster) -> None:
        self.pods = AnticipatedBook()
        self._is_wanted = asyncio.Event()
        self._counted: dict[str, GroupPod] = {}
        self._revisions = Reflector(
            cluster, REVISION, settings=ReflectorSettings(transform=_bare_revision), on_change=self._revision_changed
        )
        self._deployments = Reflector(
            cluster,
            DEPLOYMENT,
            label_selector=REVISION_LABEL,
            settings=ReflectorSettings(transform=_bare_deployment),
            on_change=self._deployment_changed,
        )

    async def watch(self) -> None:
        """Watch revisions and Deployments as soon as a group needs them, until cancelled."""
        await self._is_wanted.wait()
        async with supervise() as group:
            for reflector in (self._revisions, self._deployments):
                group.start(reflector.run(), name=f"nodegroup {reflector.kind.plural}")

    def put(self, book: NodeGroupBook, *, is_wanted: bool, now_s: float) -> None:
        """Add the anticipated pods that do not exist yet to the book, and remove all others."""
        wanted: dict[str, GroupPod] = {}
        if is_wanted:
            self._is_wanted.set()
            if self._revisions.synced.is_set() and self._deployments.synced.is_set():
                wanted = self.pods.pods(now_s)
        for name in self._counted.keys() - wanted.keys():
            book.drop_pod(name)
        for pod in wanted.values():
            book.set_pod(pod)
        self._counted = wanted

    def _revision_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.pods.drop_revision(change.key)
        else:
            self.pods.set_revision(change.new)

    def _deployment_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.pods.drop_deployment(change.new)
        else:
            self.pods.set_deployment(change.new)


def _bare_metadata(source: Object) -> Object:
    fields = ("name", "namespace", "resourceVersion", "uid", "deletionTimestamp")
    return {key: source["metadata"][key] for key in fields if key in source["metadata"]}


def _bare_revision(revision: Object) -> Object:
    published = annotations_of(revision).get(ANTICIPATED_PODS_ANNOTATION)
    annotations = {} if published is None else {ANTICIPATED_PODS_ANNOTATION: published}
    return {"metadata": {**_bare_metadata(revision), "annotations": annotations}}


def _bare_deployment(deployment: Object) -> Object:
    """Reduce a Deployment to the requests and placement of its pods."""
    pod = nested(deployment, "spec", "template", "spec") or {}
    fields = ("nodeSelector", "affinity", "overhead")
    resources = ("resources", "restartPolicy")
    bare = {
        name: [{key: container[key] for key in resources if key in container} for container in pod.get(name) or ()]
        for name in ("containers", "initContainers")
    }
    return {
        "metadata": {
            **_bare_metadata(deployment),
            "labels": {REVISION_LABEL: labels_of(deployment).get(REVISION_LABEL)},
        },
        "spec": {
            "replicas": nested(deployment, "spec", "replicas"),
            "template": {"spec": {**bare, **{key: pod[key] for key in fields if key in pod}}},
        },
    }
