"""Derives the PodAutoscaler and ServerlessService of each revision when a client reads them.

The API server calls ``refresh`` before it reads a view, and keeps ``watched`` open during a watch of views. A view is
written to the store when it differs from the stored view, so that its version and transition times are those of its
changes. Views that are not read cost nothing. A view is deleted with its revision, by its owner reference.
``controller/revisions/views.py`` derives them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from serving.controller.io.plan_writer import UnreadWrites
from serving.controller.revisions.public import slice_names
from serving.controller.revisions.views import pod_autoscaler_view, serverless_service_view
from serving.controller.values.naming import deployment_name
from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.knative import RevisionKey
from serving.core.model.objects import Object, generation_of, merge_difference, name_of, namespace_of, uid_of
from serving.home.schemas.records import decoded
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import stamp
from serving.net.aio.cooperative import turn
from serving.net.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD_AUTOSCALER, REVISION, SERVERLESS_SERVICE, Kind

# Time between two checks for changes while a client watches views, in seconds.
_PERIOD_S = 0.1
_VIEWS = {POD_AUTOSCALER: pod_autoscaler_view, SERVERLESS_SERVICE: serverless_service_view}

VIEW_KINDS = frozenset(_VIEWS)
"""The kinds of the views."""


class RevisionViews:
    """Derives the PodAutoscaler and ServerlessService of each revision, which are its "views".

    ``run`` updates them while a client watches.
    """

    def __init__(self, cluster: MemoryCluster, *, now: Callable[[], str] = stamp) -> None:
        self.statuses = UnreadWrites()
        """The delayed statuses of revisions and their Deployments, from which views are derived."""

        self._cluster = cluster
        self._now = now
        # By revision: the versions of the objects from which its views were derived last.
        self._derived: dict[RevisionKey, tuple[int, ...]] = {}
        self._turn = asyncio.Lock()
        self._watch_count = 0
        self._has_watch = asyncio.Event()

    async def refresh(self, namespace: str | None = None, name: str = "") -> None:
        """Derive the views of changed revisions: of all namespaces (None) or one, and of all names ("") or one."""
        await self.statuses.refresh()
        async with self._turn:
            revisions = self._cluster.table(REVISION).objects
            for key in [key for key in self._derived if key not in revisions]:
                del self._derived[key]
            for key in list(revisions):
                if namespace in (None, "", key[0]) and name in ("", key[1]):
                    await self._refresh(key)
                    await turn()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A context for a watch of views: ``run`` updates the views while any such context is open."""
        self._watch_count += 1
        self._has_watch.set()
        try:
            yield
        finally:
            self._watch_count -= 1
            if not self._watch_count:
                self._has_watch.clear()

    async def run(self) -> None:
        """Update the views during watches, until cancelled."""
        while True:
            await self._has_watch.wait()
            await self.refresh()
            await asyncio.sleep(_PERIOD_S)

    async def _refresh(self, key: RevisionKey) -> None:
        namespace, name = key
        places = [(REVISION, name), (DEPLOYMENT, deployment_name(name))]
        places += [(ENDPOINT_SLICE, slice_name) for slice_name in slice_names(name)]
        entries = [self._cluster.table(kind).objects.get((namespace, place)) for kind, place in places]
        versions = tuple(entry.version if entry else 0 for entry in entries)
        if entries[0] is None or entries[0].is_deleting or self._derived.get(key) == versions:
            return
        revision, deployment, *slices = (decoded(entry.encoded) if entry else None for entry in entries)
        assert revision is not None
        try:
            for kind, make in _VIEWS.items():
                before = await self._present(kind, key, owner=revision)
                known = [slice_ for slice_ in slices if slice_ is not None]
                wanted = make(revision, deployment, known, before=before, now=self._now())
                await self._write(kind, key, before=before, wanted=wanted)
        except (NotFound, AlreadyExists):
            # An earlier revision's view that is deleted or about to be; the next call creates the new one.
            return
        self._derived[key] = versions

    async def _present(self, kind: Kind, key: RevisionKey, *, owner: Object) -> Object | None:
        """The stored view of a revision; None if there is none, or only that of an earlier revision with this name."""
        try:
            view = await self._cluster.get(kind, *key)
        except NotFound:
            return None
        owners = view["metadata"].get("ownerReferences") or ()
        return view if any(reference["uid"] == uid_of(owner) for reference in owners) else None

    async def _write(self, kind: Kind, key: RevisionKey, *, before: Object | None, wanted: Object) -> None:
        after = await self._written_spec(kind, before, wanted)
        status = {**wanted["status"], "observedGeneration": generation_of(after)}
        changes = merge_difference(after.get("status") or {}, status)
        if changes:
            await self._cluster.patch(kind, *key, patch={"status": changes}, subresource="status")

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
