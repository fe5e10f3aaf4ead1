"""Follows Revisions and Deployments while a group counts anticipated pods, and keeps those pods in the daemon's book.

Without such a group it follows neither kind: a cluster without Knative's definitions has no Revisions. No pod is anticipated
until both kinds have been listed once, and no pass waits for that.
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
    """Anticipated pods. ``pods`` gets the Pods of the daemon's own watch; ``put`` updates a book before a pass."""

    def __init__(self, cluster: Cluster) -> None:
        self.pods = AnticipatedBook()
        self._is_wanted = asyncio.Event()
        self._counted: dict[str, GroupPod] = {}
        self._revisions = Reflector(cluster, REVISION, settings=ReflectorSettings(kept=_bare_revision))
        self._deployments = Reflector(
            cluster, DEPLOYMENT, label_selector=REVISION_LABEL, settings=ReflectorSettings(kept=_bare_deployment)
        )
        self._revisions.on_change(self._revision_changed)
        self._deployments.on_change(self._deployment_changed)

    async def follow(self) -> None:
        """Follow both kinds once any group needs them, until cancelled."""
        await self._is_wanted.wait()
        async with supervise() as group:
            for one in (self._revisions, self._deployments):
                group.start(one.run(), name=f"nodegroup {one.kind.plural}")

    def put(self, book: NodeGroupBook, *, is_wanted: bool, now_s: float) -> None:
        """Add missing pods to the book, and remove the other anticipated ones."""
        wanted: dict[str, GroupPod] = {}
        if is_wanted:
            self._is_wanted.set()
            if self._revisions.synced.is_set() and self._deployments.synced.is_set():
                wanted = self.pods.pods(now_s)
        for name in self._counted.keys() - wanted.keys():
            book.drop_pod(name)
        for pod in wanted.values():
            book.take_pod(pod)
        self._counted = wanted

    def _revision_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.pods.drop_revision(change.key)
        else:
            self.pods.take_revision(change.new)

    def _deployment_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.pods.drop_deployment(change.new)
        else:
            self.pods.take_deployment(change.new)


def _bare_metadata(found: Object) -> Object:
    kept = ("name", "namespace", "resourceVersion", "uid", "deletionTimestamp")
    return {key: found["metadata"][key] for key in kept if key in found["metadata"]}


def _bare_revision(found: Object) -> Object:
    published = annotations_of(found).get(ANTICIPATED_PODS_ANNOTATION)
    annotations = {} if published is None else {ANTICIPATED_PODS_ANNOTATION: published}
    return {"metadata": {**_bare_metadata(found), "annotations": annotations}}


def _bare_deployment(found: Object) -> Object:
    """Strip a Deployment to the requests and placement of its pods."""
    pod = nested(found, "spec", "template", "spec") or {}
    kept = ("nodeSelector", "affinity", "overhead")
    resources = ("resources", "restartPolicy")
    bare = {
        name: [{key: one[key] for key in resources if key in one} for one in pod.get(name) or ()]
        for name in ("containers", "initContainers")
    }
    return {
        "metadata": {**_bare_metadata(found), "labels": {REVISION_LABEL: labels_of(found).get(REVISION_LABEL)}},
        "spec": {
            "replicas": nested(found, "spec", "replicas"),
            "template": {"spec": {**bare, **{key: pod[key] for key in kept if key in pod}}},
        },
    }
