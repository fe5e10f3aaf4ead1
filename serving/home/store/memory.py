"""The cluster port in this process: the store itself, with a journal for durable objects.

Each write is one step of the loop: read, decide (``writes``), admit, apply, notify the watches. For a large object,
decision and admission run in a thread (``net/aio/cooperative.py``), and are repeated if another write has changed the
object. A durable write is applied only after its commit, so that no reader sees state that a crash could lose; the
caller then gets its response. One such write per object runs at a time. Writes of the status and ``servingState`` do
not wait for it (``home/store/durability.py``). ``resourceVersion`` is one counter for all kinds.

The store has no exchangeable backends; another store implements the cluster port itself.

``home/controllers/garbage.py``, run beside the store, collects dependents and the contents of terminating namespaces.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from serving.core.model.errors import AlreadyExists, ClusterError, Conflict, Forbidden, NotFound, Unsupported
from serving.core.model.objects import Key, Object
from serving.home.schemas.ownership.managers import (
    FieldWriter,
    after_apply,
    after_update,
    entries_of,
    with_entries,
    without_nulls,
)
from serving.home.schemas.patch import check_depth, check_values, same_json
from serving.home.schemas.records import Stored, checked_metadata, decoded, read_metadata
from serving.home.schemas.strategic import patched
from serving.home.store.budgets import check_budgets
from serving.home.store.commits import Commits
from serving.home.store.durability import Disk, disk_for, is_durable
from serving.home.store.former import write_note
from serving.home.store.history import StoreLimits, Watch
from serving.home.store.journal import Journal
from serving.home.store.owners import Owners
from serving.home.store.requester import acting_manager
from serving.home.store.state import FIRST_NAMESPACES, StoreState
from serving.home.store.tables import KindTable, token_of_page
from serving.home.store.writes import (
    check_identity,
    check_subresource,
    is_held,
    marked_for_deletion,
    modified_text,
    scale_of,
    settled,
    with_generation,
)
from serving.net.aio.clock import stamp as stamp_of
from serving.net.aio.clock import wall_s as real_wall_s
from serving.net.aio.cooperative import computed, turn
from serving.net.cluster.kinds import NAMESPACE, POD, Kind
from serving.net.cluster.port import (
    Cluster,
    Create,
    Delete,
    Evict,
    Listing,
    Patch,
    Replace,
    Selection,
    Subresource,
    Write,
)

# Most attempts at a free generated name; one in 14 million is used.
_NAME_TRIES = 8

# Most computations of a change in a thread before it is made without yielding, if other writes interfere.
_THREAD_TRIES = 3

# Metadata that identifies an object.
_IDENTITY = ("uid", "creationTimestamp")

# The field manager of writes inside this process.
_OWN_MANAGER = "serving-control"

_Change = Callable[[Object], Mapping[str, Any]]


class Admit(Protocol):
    """Admission of a write: completes and checks an object, such as ``admit`` of ``home/admission/admission.py``."""

    def __call__(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        """Return the object to store; neither argument is changed. Raises ``Invalid``."""
        ...


class EncodedListing(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Listing`` whose items are JSON bytes, for readers that only forward them."""

    items: list[bytes]
    resource_version: str
    next_page: str


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """A server-side apply. ``config`` has all fields that the field manager of the request wants to own."""

    kind: Kind
    namespace: str
    name: str
    config: Mapping[str, Any]
    subresource: Subresource | None = None
    force: bool = False
    dry_run: bool = False


def _admit_all(_: Kind, new: Object, __: Object | None = None, *, subresource: Subresource | None = None) -> Object:
    del subresource
    return new


class MemoryCluster(Cluster):
    """The object store, for one event loop. ``close`` ends its watches and its journal."""

    is_in_process = True

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        admit: Admit | None = None,
        rules: Admit | None = None,
        limits: StoreLimits | None = None,
        dice: random.Random | None = None,
        wall_s: Callable[[], float] = real_wall_s,
    ) -> None:
        self._journal = journal
        # The first is pure and may run in a thread; the second reads the store, without yielding before the write.
        self._admit = admit or _admit_all
        self._rules = rules or _admit_all
        self._state = StoreState(
            journal,
            limits=limits or StoreLimits(),
            dice=dice or random.Random(),  # noqa: S311 - names and uids, no secrets
            wall_s=wall_s,
        )
        self._commits = Commits(self._state, journal)

    @property
    def owners(self) -> Owners:
        """The owner references of all objects, for the garbage collector."""
        return self._state.owners

    @property
    def limits(self) -> StoreLimits:
        """The limits of the store."""
        return self._state.limits

    def table(self, kind: Kind) -> KindTable:
        """The current objects of a kind, for rules that compare several objects."""
        return self._state.table(kind)

    async def close(self) -> None:
        """End all watches, flush the journal and close it."""
        self._state.close_watches()
        if self._journal is not None:
            await self._journal.close()
            write_note(self._journal.path, self._state.derived())

    async def journal_copy(self) -> bytes:
        """A copy of the journal as one SQLite file. Raises ``Unsupported`` without a journal, ``Unavailable``.

        Metadata of derived objects is first saved next to the journal.
        """
        if self._journal is None:
            raise Unsupported("this server has no journal")
        await asyncio.to_thread(write_note, self._journal.path, [*self._state.derived()])
        return await asyncio.to_thread(self._journal.copy)

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """Read one object. The caller may change the returned object."""
        check_subresource(kind, subresource)
        whole = decoded(self._state.find(kind, _key(kind, namespace, name)).encoded)
        return scale_of(whole) if subresource == "scale" else whole

    async def get_encoded(self, kind: Kind, namespace: str, name: str) -> bytes:
        """One object as JSON. Raises ``NotFound``."""
        return self._state.find(kind, _key(kind, namespace, name)).encoded

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        """A page of a list, decoded in steps, so that the event loop is not blocked."""
        listing = self.list_encoded(selection, page_size=page_size, page=page)
        items: list[Object] = []
        for encoded in listing.items:
            items.append(decoded(encoded))
            await turn()
        return Listing(items=items, resource_version=listing.resource_version, next_page=listing.next_page)

    def list_encoded(self, selection: Selection, *, page_size: int = 0, page: str = "") -> EncodedListing:
        """A page of a list as JSON, without yielding to the event loop. Parameters are those of ``list_selection``."""
        page_objects, end, has_more = self._state.page(selection, size=page_size, token=page)
        return EncodedListing(
            items=[stored.encoded for stored in page_objects],
            resource_version=str(end.version),
            next_page=token_of_page(end) if has_more else "",
        )

    def watch_selection(self, selection: Selection, resource_version: str) -> Watch:
        """Watch from a version. With "" or "0", the watch begins with all existing objects as ADDED."""
        return self._state.watch(selection, resource_version)

    async def write(self, write: Write) -> Object:
        """Execute a write. If an API request is its origin, record the owners of the changed fields."""
        match write:
            case Create():
                check_depth(write.body)
                return await self._create(write)
            case Replace():
                check_depth(write.body)
                return await self._update(write, lambda _: write.body)
            case Patch():
                check_depth(write.patch)
                return await self._update(write, functools.partial(_patched, write))
            case Delete():
                await self._delete(write)
            case Evict():
                await check_budgets(self, await self.get(POD, write.namespace, write.name))
                await self._delete(Delete(kind=POD, namespace=write.namespace, name=write.name, uid=write.uid))
        return {}

    async def write_together(self, writes: Sequence[Write]) -> list[Object]:
        """Execute writes in order until one fails; return the results of those before it."""
        results: list[Object] = []
        for write in writes:
            try:
                results.append(await self.write(write))
            except ClusterError:
                if not results:
                    raise
                break
        return results

    async def restore(self, kind: Kind, body: Object) -> Object:
        """Create an object that existed in an earlier process, with the uid and creation time in ``body``."""
        metadata = body.get("metadata") or {}
        identity = {key: metadata[key] for key in _IDENTITY if key in metadata}
        return await self._create(Create(kind=kind, body=body), identity=identity)

    async def _create(
        self, create: Create, *, owners: Sequence[Object] = (), identity: Mapping[str, str] = MappingProxyType({})
    ) -> Object:
        kind = create.kind
        tries = 1 if read_metadata(create.body).name else _NAME_TRIES
        while True:
            new = self._state.fresh(kind, dict(create.body))
            new["metadata"] |= identity
            new = self._state.resumed(self._rules(kind, await computed(self._completed, kind, new, owners)))
            metadata = checked_metadata(kind, new)
            key = (metadata.namespace or "", metadata.name or "")
            if kind.namespaced:
                _check_namespace(self._state.find(NAMESPACE, ("", key[0])))
            if await self._commits.other(kind, key):
                continue
            if key not in self._state.table(kind).objects:
                break
            tries -= 1
            if not tries:
                raise AlreadyExists(f'{kind.resource} "{key[1]}" already exists')
        if create.dry_run:
            return self._state.would_be(kind, new)
        created = await self._commits.apply(kind, None, new, disk=disk_for(kind, None, new), metadata=metadata)
        await turn()
        return decoded(created.encoded)

    def _completed(self, kind: Kind, new: Object, owners: Sequence[Object]) -> Object:
        """A new object after admission, with ``managedFields``. Pure."""
        new = self._admit(kind, new)
        if owners:
            return with_entries(new, owners)
        return after_update(kind, None, new, writer=self._writer()) if acting_manager() else new

    async def apply(self, apply: Apply) -> tuple[Object, bool]:
        """Apply a configuration for the request's field manager; return the object, and whether it is new.

        Raises:
            ApplyConflict: when other managers own fields with other values, and ``force`` is false.
            NotFound: when a subresource of a missing object is applied.
        """
        check_depth(apply.config)
        config = without_nulls(apply.config)
        writer = self._writer(apply.subresource)

        def change(old: Object) -> Mapping[str, Any]:
            applied = after_apply(apply.kind, old, config, writer=writer, force=apply.force)
            check_values(applied)
            return applied

        while True:
            try:
                return await self._update(apply, change), False
            except NotFound:
                if apply.subresource is not None:
                    raise
            applied = after_apply(apply.kind, None, config, writer=writer, force=apply.force)
            new = Create(kind=apply.kind, body=applied, dry_run=apply.dry_run)
            try:
                return await self._create(new, owners=entries_of(applied)), True
            except AlreadyExists:
                # Created since the check: apply to the existing object.
                continue

    def _writer(self, subresource: Subresource | None = None) -> FieldWriter:
        manager = acting_manager() or _OWN_MANAGER
        return FieldWriter(manager=manager, subresource=subresource, stamp=stamp_of(self._state.wall_s()))

    async def _delete(self, delete: Delete) -> None:
        """Delete an object, or mark it for deletion if finalizers or a grace period delay this."""
        kind, name = delete.kind, delete.name
        if kind == NAMESPACE and name in FIRST_NAMESPACES:
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        key = _key(kind, delete.namespace, name)
        while True:
            base = self._state.find(kind, key)
            if delete.uid not in (None, base.uid):
                raise Conflict(f'{kind.resource} "{name}": uid {delete.uid} is not that of the object, {base.uid}')
            if delete.resource_version not in (None, str(base.version)):
                raise Conflict(modified_text(kind, name))
            if not await self._commits.other(kind, key):
                break
        old = decoded(base.encoded)
        new = marked_for_deletion(delete, old, wall_s=self._state.wall_s())
        metadata = read_metadata(new)
        is_removal = not is_held(kind, new, metadata)
        if is_removal or not same_json(old, new):
            disk = Disk.AWAITED if is_durable(kind, old) else Disk.NONE
            await self._commits.apply(kind, old, new, disk=disk, metadata=metadata, is_removal=is_removal)
            await turn()

    async def _update(self, write: Replace | Patch | Apply, change: _Change) -> Object:
        kind, subresource, key = write.kind, write.subresource, _key(write.kind, write.namespace, write.name)
        check_subresource(kind, subresource)
        tries = _THREAD_TRIES
        while True:
            base = self._state.find(kind, key)
            work = functools.partial(self._changed, write, change, base.encoded)
            old, new = await computed(work) if tries else work()
            if self._state.find(kind, key) is not base:
                tries -= 1
                continue
            new = self._rules(kind, new, old, subresource=subresource)
            if same_json(old, new):
                return _shown(old, subresource)
            disk = disk_for(kind, old, new, subresource=subresource)
            if not (disk is Disk.AWAITED and await self._commits.other(kind, key)):
                break
        metadata = checked_metadata(kind, new, old)
        is_removal = metadata.deletion_timestamp is not None and not is_held(kind, new, metadata)
        if write.dry_run:
            return _shown(self._state.would_be(kind, new), subresource)
        updated = await self._commits.apply(kind, old, new, disk=disk, metadata=metadata, is_removal=is_removal)
        await turn()
        return _shown(decoded(updated.encoded), subresource)

    def _changed(self, write: Replace | Patch | Apply, change: _Change, encoded: bytes) -> tuple[Object, Object]:
        """An object before and after a write. The latter is admitted, and has updated ``managedFields``. Pure."""
        kind, subresource, old = write.kind, write.subresource, decoded(encoded)
        sent = change(old)
        check_identity(kind, old, sent)
        new = self._admit(kind, settled(kind, old, sent, subresource=subresource), old, subresource=subresource)
        new = with_generation(kind, old, new)
        if isinstance(write, Apply):
            new = with_entries(new, entries_of(sent))
        elif "managedFields" in old["metadata"]:
            new = after_update(kind, old, new, writer=self._writer(subresource), sent=entries_of(sent))
        return old, new


def _check_namespace(namespace: Stored) -> None:
    if namespace.is_deleting:
        raise Forbidden(f"unable to create new content in namespace {namespace.key[1]} because it is being terminated")


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return (namespace if kind.namespaced else "", name)


def _patched(patch: Patch, old: Object) -> Mapping[str, Any]:
    target = scale_of(old) if patch.subresource == "scale" else old
    return patched(patch.kind, target, patch.patch, patch_type=patch.patch_type)


def _shown(whole: Object, subresource: Subresource | None) -> Object:
    return scale_of(whole) if subresource == "scale" else whole
