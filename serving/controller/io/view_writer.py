"""Writes a PodAutoscaler and a ServerlessService per revision, derived by ``controller/revisions/views.py``.

It follows revisions, Deployments and the slices of public Services, and writes a view when it differs from the view
that was written last. A view is deleted with its revision, by its owner reference. Changes within a short time are
written together.
"""

from collections.abc import Callable

from serving.controller.revisions.public import MANAGED_BY, MANAGER, public_owner_name, slice_names
from serving.controller.revisions.views import pod_autoscaler_view, serverless_service_view
from serving.controller.values.naming import deployment_name
from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.knative import REVISION_LABEL, RevisionKey
from serving.core.model.objects import (
    Object,
    generation_of,
    is_being_deleted,
    labels_of,
    merge_difference,
    name_of,
    namespace_of,
    uid_of,
)
from serving.net.aio.clock import stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD_AUTOSCALER, REVISION, SERVERLESS_SERVICE, Kind
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.workqueue import WorkQueue

_DEBOUNCE_S = 0.05
_WORKERS = 2
_VIEWS = {POD_AUTOSCALER: pod_autoscaler_view, SERVERLESS_SERVICE: serverless_service_view}


class ViewWriter:
    """Watches revisions, Deployments and slices, and writes the views."""

    def __init__(self, cluster: Cluster, *, now: Callable[[], str] = stamp) -> None:
        self._cluster = cluster
        self._now = now
        self._queue: WorkQueue[RevisionKey] = WorkQueue("views")
        self._written: dict[tuple[Kind, RevisionKey], Object] = {}
        self._revisions = Reflector(cluster, REVISION, on_change=lambda change: self._wake(change.key))
        self._deployments = Reflector(cluster, DEPLOYMENT, on_change=self._deployment_changed)
        self._slices = Reflector(
            cluster,
            ENDPOINT_SLICE,
            label_selector=f"{MANAGED_BY}={MANAGER}",
            on_change=lambda change: self._wake((change.key[0], public_owner_name(change.key[1]))),
        )

    async def run(self) -> None:
        """Watch and write until cancelled."""
        async with supervise() as group:
            await start_synced(group, (self._revisions, self._deployments, self._slices), owner="views")
            group.start(self._queue.run(_WORKERS, self._work), name="views work")

    def _wake(self, key: RevisionKey) -> None:
        self._queue.add_after(key, _DEBOUNCE_S)

    def _deployment_changed(self, change: CacheChange) -> None:
        revision = labels_of(change.new).get(REVISION_LABEL)
        if revision:
            self._wake((change.key[0], revision))

    async def _work(self, key: RevisionKey) -> None:
        revision = self._revisions.cache.get(key)
        if revision is None or is_being_deleted(revision):
            for kind in _VIEWS:
                self._written.pop((kind, key), None)
            return
        namespace, name = key
        deployment = self._deployments.cache.get((namespace, deployment_name(name)))
        slices = [slice_ for part in slice_names(name) if (slice_ := self._slices.cache.get((namespace, part)))]
        for kind, make in _VIEWS.items():
            before = await self._known(kind, key, owner=revision)
            wanted = make(revision, deployment, slices, before=before, now=self._now())
            await self._write(kind, key, before=before, wanted=wanted)

    async def _known(self, kind: Kind, key: RevisionKey, *, owner: Object) -> Object | None:
        """The view as last written, by any process; None if this revision has none."""
        view = self._written.get((kind, key))
        if view is None:
            try:
                view = await self._cluster.get(kind, *key)
            except NotFound:
                return None
        owners = view["metadata"].get("ownerReferences") or ()
        return view if any(reference["uid"] == uid_of(owner) for reference in owners) else None

    async def _write(self, kind: Kind, key: RevisionKey, *, before: Object | None, wanted: Object) -> None:
        try:
            after = await self._written_spec(kind, before, wanted)
            status = {**wanted["status"], "observedGeneration": generation_of(after)}
            changes = merge_difference(after.get("status") or {}, status)
            if changes:
                after = await self._cluster.patch(kind, *key, patch={"status": changes}, subresource="status")
        except (NotFound, AlreadyExists):
            # An earlier revision's view that is deleted or about to be; the next check creates the new one.
            self._written.pop((kind, key), None)
            self._wake(key)
        else:
            self._written[kind, key] = after

    async def _written_spec(self, kind: Kind, before: Object | None, wanted: Object) -> Object:
        if before is None:
            return await self._cluster.create(kind, {part: wanted[part] for part in wanted if part != "status"})
        metadata = {part: before["metadata"].get(part) or {} for part in ("labels", "annotations")}
        wanted_metadata = {part: wanted["metadata"].get(part) or {} for part in metadata}
        changes = merge_difference(
            {"metadata": metadata, "spec": before.get("spec") or {}},
            {"metadata": wanted_metadata, "spec": wanted["spec"]},
        )
        if not changes:
            return before
        return await self._cluster.patch(kind, namespace_of(before), name_of(before), patch=changes)
