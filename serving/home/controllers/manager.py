"""The controller manager: creates pods for Deployments and slices for Services, in the store of this process.

It watches Deployments, Services and Pods; each change enqueues its Deployment or Service. ``workloads`` decides on the
writes. All state is read again after a restart: ``until_rebuilt`` waits until pods are ready and traffic has its
endpoints.
"""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import TypeVar

from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from serving.core.model.event import EventText, digest
from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Key, Object, conditions_of, is_true, key_of, labels_of, nested
from serving.home.controllers.scheduler import PodScheduler
from serving.home.controllers.workloads import (
    CREATE_FAILED,
    Reach,
    adoptable,
    deployment_status,
    desired_slices,
    is_ready,
    listed_address,
    new_pod,
    owner_of_pods,
    plan_pods,
)
from serving.home.pods.diskbudget import is_evicted
from serving.net.aio.clock import now_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import announce
from serving.net.cluster.kinds import DEPLOYMENT, DOMAIN_MAPPING, ENDPOINT_SLICE, POD, ROUTE, SERVICE
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.workqueue import WorkQueue

_WORKERS = 8
# A pod that the watch has not delivered by then, in seconds, was created and deleted between two events.
_WATCH_LAG_MAX_S = 5.0
# Delay of a slice's write for changes of unready pods only, in seconds: most are ready soon, and many start together.
_UNREADY_LAG_S = 1.0
# Delay of the status of a Deployment while its new pods are not ready, in seconds. It is written once they are, and
# most pods are ready sooner.
_STATUS_LAG_S = 1.0
# Retry of a refused pod, in seconds: quota or account may have changed.
_REFUSED_PAUSE_S = 1.0
_COMPONENT = "deployment-controller"
_DEPLOYMENT, _SERVICE = "deployment", "service"

WorkKey = tuple[str, str, str]
"""Kind, namespace and name."""

_Selector = tuple[str, str, str]
"""Namespace, label, value."""

_Of = TypeVar("_Of", str, _Selector)

_PAUSE_S = 0.01


class Manager:
    """Reconciles Deployments and Services. ``reach`` returns the address of a pod's container port.

    With ``statuses``, the status of a revision's Deployment is written when a client reads it.
    """

    def __init__(
        self,
        cluster: Cluster,
        scheduler: PodScheduler | None = None,
        *,
        reach: Reach = lambda _ns, _name, _port: None,
        statuses: UnreadWrites | None = None,
    ) -> None:
        self._cluster = cluster
        self._statuses = statuses
        self._reach = reach
        # By Service: its slices beside the first.
        self._further_slices: dict[Key, set[str]] = {}
        self._scheduler = scheduler or PodScheduler(cluster)
        self._deployments = Reflector(cluster, DEPLOYMENT, on_change=self._deployment_changed)
        self._services = Reflector(cluster, SERVICE, on_change=self._service_changed)
        self._pods = Reflector(cluster, POD, on_change=self._pod_changed)
        self._queue: WorkQueue[WorkKey] = WorkQueue("local-manager")
        self._pods_of: dict[str, set[Key]] = {}
        self._pods_with: dict[_Selector, set[Key]] = {}
        self._services_with: dict[_Selector, set[Key]] = {}
        self._made: dict[str, dict[Key, tuple[float, Object]]] = {}

    async def run(self) -> None:
        """Watch Deployments, Services and pods, and reconcile them until cancelled."""
        async with supervise() as group:
            await start_synced(group, (self._deployments, self._services, self._pods), owner="manager")
            group.start(self._queue.run(_WORKERS, self._work), name="manager work")

    def _deployment_changed(self, change: CacheChange) -> None:
        if change.key not in self._deployments.cache:
            self._made.pop(change.new["metadata"]["uid"], None)
            if self._statuses is not None:
                self._statuses.cancel((DEPLOYMENT, *change.key))
        # This process wrote the status, so it needs no check.
        if change.old is None or _desired(change.old) != _desired(change.new):
            self._queue.add((_DEPLOYMENT, *change.key))

    def _service_changed(self, change: CacheChange) -> None:
        namespace, _ = change.key
        for selector in _selectors(namespace, change.new["spec"].get("selector") or {}):
            _set_indexed(self._services_with, selector, change.key, is_here=change.key in self._services.cache)
        self._queue.add((_SERVICE, *change.key))

    def _pod_changed(self, change: CacheChange) -> None:
        is_here = change.key in self._pods.cache
        metadata = change.new["metadata"]
        is_counted = not is_here or change.old is None or _counted(change.old) != _counted(change.new)
        for owner in metadata.get("ownerReferences") or ():
            _set_indexed(self._pods_of, owner["uid"], change.key, is_here=is_here)
            created = self._made.get(owner["uid"], {})
            created.pop(change.key, None)
            if not created:
                self._made.pop(owner["uid"], None)
            if owner["kind"] == DEPLOYMENT.name and is_counted:
                is_new = change.old is None and is_here and not is_ready(change.new)
                self._queue.add_after((_DEPLOYMENT, change.key[0], owner["name"]), _STATUS_LAG_S if is_new else 0.0)
        # A pod without a listed address is in no slice, and an unready pod receives no requests.
        before, after = (None if pod is None else listed_address(pod) for pod in (change.old, change.new))
        is_urgent = is_counted and (after or before) is not None
        for label in _selectors(change.key[0], metadata.get("labels") or {}):
            _set_indexed(self._pods_with, label, change.key, is_here=is_here)
            for namespace, name in self._services_with.get(label, ()):
                if is_urgent:
                    self._queue.add((_SERVICE, namespace, name))
                elif before != after:
                    self._queue.add_after((_SERVICE, namespace, name), _UNREADY_LAG_S)

    async def _work(self, key: WorkKey) -> float | None:
        what, namespace, name = key
        if what == _DEPLOYMENT:
            deployment = self._deployments.cache.get((namespace, name))
            if deployment and not deployment["metadata"].get("deletionTimestamp"):
                return await self._settle_pods(deployment)
        else:
            service = self._services.cache.get((namespace, name))
            if service and service["spec"].get("selector"):
                await self._settle_slice(service)
        return None

    async def _settle_pods(self, deployment: Object) -> float | None:
        """Create and delete pods of a Deployment or, if there is nothing to do, write its status.

        Return the seconds until the next call; None if no further call is needed.
        """
        metadata, refusal = deployment["metadata"], ""
        if await self._adopt(deployment):
            return None
        pods = self._pods_owned_by(metadata["uid"])
        plan = plan_pods(deployment, pods)
        for _ in range(plan.create_count):
            try:
                pod = await self._create_pod(deployment)
            except (Forbidden, Invalid) as error:
                # A quota, LimitRange or missing account. Existing pods stay.
                refusal = str(error)
                await self._record_refusal(deployment, refusal)
                break
            key = (metadata["namespace"], pod["metadata"]["name"])
            if key not in self._pods.cache:
                # Recorded immediately: a pod that the watch has not delivered yet would be created again.
                self._made.setdefault(metadata["uid"], {})[key] = (now_s(), pod)
        for name in plan.delete_names:
            try:
                await self._cluster.delete(POD, metadata["namespace"], name)
            except NotFound:
                continue
        if (plan.create_count or plan.delete_names) and not refusal:
            # Requests wait for the start of pods, but not for the status. The watch soon delivers what was written.
            return _STATUS_LAG_S
        if self._statuses is not None and not refusal and _is_counted_by_controller(deployment):
            key = key_of(deployment)
            if self._statuses.delay((DEPLOYMENT, *key), functools.partial(self._write_unread, key)):
                return None
        await self._write_status(deployment, refusal=refusal)
        return _REFUSED_PAUSE_S if refusal else None

    async def _write_status(self, deployment: Object, *, refusal: str = "") -> None:
        metadata = deployment["metadata"]
        status = deployment_status(deployment, self._pods_owned_by(metadata["uid"]), refusal=refusal)
        if status != {key: value for key, value in (deployment.get("status") or {}).items() if key in status}:
            # Fenced by uid: a newer Deployment with this name has another status.
            patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
            await self._cluster.patch(
                DEPLOYMENT, metadata["namespace"], metadata["name"], patch=patch, subresource="status"
            )

    async def _write_unread(self, key: Key) -> None:
        deployment = self._deployments.cache.get(key)
        if deployment is not None:
            with contextlib.suppress(NotFound, Conflict):
                await self._write_status(deployment)

    async def _record_refusal(self, deployment: Object, refusal: str) -> None:
        """Write an Event about a pod that the server refused to create. A repeated refusal is not written again."""
        words = EventText(reason=CREATE_FAILED, message=f"Error creating: {refusal}", is_warning=True)
        await announce(self._cluster, deployment, words, suffix=digest(refusal), component=_COMPONENT)

    async def _create_pod(self, deployment: Object) -> Object:
        placed, pod = self._scheduler.place(new_pod(deployment)), None
        try:
            pod = await self._cluster.create(POD, placed.pod)
        finally:
            self._scheduler.created(placed, pod)
        return pod

    async def _adopt(self, deployment: Object) -> bool:
        """Adopt the pods of an earlier Deployment of this name; return whether there were any.

        The Deployment gets at least as many replicas as it has pods, until the autoscaler decides otherwise.
        """
        metadata = deployment["metadata"]
        namespace = metadata["namespace"]
        selector = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
        keys: set[Key] = set()
        for label in _selectors(namespace, selector):
            keys |= self._pods_with.get(label, set())
        adopted = adoptable(deployment, self._known(keys))
        if not adopted:
            return False
        replicas = len(adopted) + len(self._pods_owned_by(metadata["uid"]))
        if replicas > (deployment["spec"].get("replicas") or 0):
            patch = {"metadata": {"uid": metadata["uid"]}, "spec": {"replicas": replicas}}
            await self._cluster.patch(DEPLOYMENT, namespace, metadata["name"], patch=patch, subresource="scale")
        owner = {"metadata": {"ownerReferences": [owner_of_pods(deployment)]}}
        for pod in adopted:
            await self._cluster.patch(POD, namespace, pod["metadata"]["name"], patch=owner)
        return True

    async def _settle_slice(self, service: Object) -> None:
        namespace = service["metadata"]["namespace"]
        candidates: set[Key] = set()
        for label in _selectors(namespace, service["spec"]["selector"]):
            candidates |= self._pods_with.get(label, set())
        slices = desired_slices(service, self._known(candidates), reach=self._reach)
        for wanted in slices:
            patch = {"endpoints": wanted["endpoints"], "ports": wanted["ports"]}
            try:
                await self._cluster.patch(ENDPOINT_SLICE, namespace, wanted["metadata"]["name"], patch=patch)
            except NotFound:
                await self._cluster.create(ENDPOINT_SLICE, wanted)
        key = (namespace, service["metadata"]["name"])
        further = {wanted["metadata"]["name"] for wanted in slices[1:]}
        for name in self._further_slices.get(key, set()) - further:
            with contextlib.suppress(NotFound):
                await self._cluster.delete(ENDPOINT_SLICE, namespace, name)
        if further:
            self._further_slices[key] = further
        else:
            self._further_slices.pop(key, None)

    def _pods_owned_by(self, uid: str) -> list[Object]:
        """The pods from the watch, and recently created pods that the watch has not delivered yet."""
        known, created = self._pods_of.get(uid, set()), self._made.get(uid, {})
        new = [
            pod
            for key, (at_s, pod) in created.items()
            if key not in self._pods.cache and now_s() - at_s < _WATCH_LAG_MAX_S
        ]
        return self._known(known) + new

    def _known(self, keys: set[Key]) -> list[Object]:
        return [self._pods.cache[key] for key in keys if key in self._pods.cache]


def _desired(deployment: Object) -> tuple[object, ...]:
    """The fields of a Deployment that matter for reconciling: uid, generation and deletion."""
    metadata = deployment["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp")


def _is_counted_by_controller(deployment: Object) -> bool:
    """Whether no daemon uses the status of a Deployment: the controller counts the pods of a revision itself."""
    is_of_a_revision = REVISION_LABEL in labels_of(deployment) and bool(deployment["metadata"].get("ownerReferences"))
    return is_of_a_revision and not is_true(deployment, "ReplicaFailure")


def _counted(pod: Object) -> tuple[object, ...]:
    """The parts of a pod relevant to its Deployment: owner, labels, deletion, readiness, eviction."""
    metadata = pod["metadata"]
    described = (metadata.get(key) for key in ("ownerReferences", "labels", "annotations", "deletionTimestamp"))
    return (*described, is_ready(pod), is_evicted(pod))


def _set_indexed(index: dict[_Of, set[Key]], of: _Of, key: Key, *, is_here: bool) -> None:
    """Add a key to the index entry ``of`` if ``is_here``, otherwise remove it. An empty entry is removed."""
    if is_here:
        index.setdefault(of, set()).add(key)
    elif keys := index.get(of):
        keys.discard(key)
        if not keys:
            del index[of]


def _selectors(namespace: str, labels: dict[str, str]) -> list[_Selector]:
    return [(namespace, label, value) for label, value in labels.items()]


def is_rebuilt(
    routes: list[Object], pods: list[Object], slices: list[Object], *, mappings: Sequence[Object] = ()
) -> bool:
    """Whether all routes, pods and DomainMappings have reached the state that they had before a restart.

    Each route must report its traffic, or why it has none. Each pod must be ready, and listed in an EndpointSlice of
    its revision in ``slices``. Each DomainMapping must have a status.
    """
    if not all(map(_is_routed, routes)) or not all(conditions_of(mapping) for mapping in mappings):
        return False
    endpoints = [endpoint for whole in slices for endpoint in whole.get("endpoints") or ()]
    listed = {
        nested(endpoint, "targetRef", "name") for endpoint in endpoints if nested(endpoint, "conditions", "ready")
    }
    return all(is_ready(pod) and pod["metadata"]["name"] in listed for pod in pods)


def _is_routed(route: Object) -> bool:
    status = route.get("status") or {}
    has_failed = any(
        condition["type"] == "Ready" and condition["status"] == "False" for condition in status.get("conditions") or ()
    )
    return bool(status.get("traffic")) or has_failed


async def until_rebuilt(cluster: Cluster, *, within_s: float) -> None:
    """Wait until routes, and pods adopted after a restart, are ready again, for at most ``within_s`` seconds.

    The time is limited, because a pod may have been unready before the restart.
    """
    until_s = now_s() + within_s
    before = {pod["metadata"]["name"] for pod in (await cluster.list(POD)).items}
    while now_s() < until_s:
        await asyncio.sleep(_PAUSE_S)
        try:
            routes, pods, mappings = [(await cluster.list(kind)).items for kind in (ROUTE, POD, DOMAIN_MAPPING)]
            slices = (await cluster.list(ENDPOINT_SLICE, label_selector=REVISION_LABEL)).items
        except ClusterError:
            continue
        # Only adopted pods; those that start now are new.
        old = [
            pod for pod in pods if pod["metadata"]["name"] in before and not pod["metadata"].get("deletionTimestamp")
        ]
        if is_rebuilt(routes, old, slices, mappings=mappings):
            return
