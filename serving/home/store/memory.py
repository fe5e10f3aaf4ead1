"""The cluster port in this process: the store itself, with a journal for durable objects.

Each write is one step of the loop: read, decide (``writes``), admit, apply, notify the watches. A write of a large object
decides and admits in a thread (``net/aio/cooperative.py``), and again if another has changed the object. Only the durable part of
durable kinds waits for its commit before it is applied, so no reader sees what a crash could lose, and the caller gets its
response after the disk. One such write per object runs at a time; status and ``servingState`` bypass it
(``home/store/durability.py``). ``resourceVersion`` is one counter for all kinds.

The store has no backends to choose from: another one is another home, which serves the port in its own way.

``home/controllers/garbage.py``, run beside the store, collects dependents and the contents of terminating namespaces.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from serving.core.model.errors import AlreadyExists, Conflict, Forbidden, NotFound, Unsupported
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
from serving.home.store.durability import Disk, disk_for
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

# How often a generated name that exists is replaced by another; one in 14 million exists.
_NAME_TRIES = 8

# How often a change is computed in a thread that others outrun, before it is made in one step.
_THREAD_TRIES = 3

# What makes an object the same one as before.
_IDENTITY = ("uid", "creationTimestamp")

# The field manager of writes inside this process.
_OWN_MANAGER = "serving-control"

_Change = Callable[[Object], Mapping[str, Any]]


class Admit(Protocol):
    """Admission, such as ``home/admission/admission.py``: defaults, schema, rules."""

    def __call__(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        """Return the object to store; neither argument is changed. Raises ``Invalid``."""
        ...


class EncodedListing(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Listing`` whose items are JSON bytes, for readers that only pass them on."""

    items: list[bytes]
    resource_version: str
    next_page: str


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """A server-side apply: ``config`` states all fields that the acting manager wants."""

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
    """The store. Create it before or inside the loop that uses it; ``close`` ends its watches and its journal."""

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
        # The first is pure and may run in a thread; the other reads the store, in one step with the write.
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
        """The owner references, for the collector."""
        return self._state.owners

    @property
    def limits(self) -> StoreLimits:
        """The bounds of the store."""
        return self._state.limits

    def table(self, kind: Kind) -> KindTable:
        """The current objects of a kind, for rules over several objects."""
        return self._state.table(kind)

    async def close(self) -> None:
        """End all watches, flush the journal and close it."""
        self._state.close_watches()
        if self._journal is not None:
            await self._journal.close()
            write_note(self._journal.path, self._state.derived())

    async def journal_copy(self) -> bytes:
        """A copy of the journal as one SQLite file. Raises ``Unsupported`` without a journal, ``Unavailable``.

        What derived objects have is noted beside the journal first.
        """
        if self._journal is None:
            raise Unsupported("this server has no journal")
        await asyncio.to_thread(write_note, self._journal.path, [*self._state.derived()])
        return await asyncio.to_thread(self._journal.copy)

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """Read one object, decoded for the caller."""
        check_subresource(kind, subresource)
        whole = decoded(self._state.find(kind, _key(kind, namespace, name)).encoded)
        return scale_of(whole) if subresource == "scale" else whole

    async def get_encoded(self, kind: Kind, namespace: str, name: str) -> bytes:
        """One object as JSON. Raises ``NotFound``."""
        return self._state.find(kind, _key(kind, namespace, name)).encoded

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        """List a snapshot, decoded in steps so that the loop keeps running."""
        found = self.list_encoded(selection, page_size=page_size, page=page)
        items: list[Object] = []
        for encoded in found.items:
            items.append(decoded(encoded))
            await turn()
        return Listing(items=items, resource_version=found.resource_version, next_page=found.next_page)

    def list_encoded(self, selection: Selection, *, page_size: int = 0, page: str = "") -> EncodedListing:
        """As ``list_selection``, as JSON and in one step."""
        found, end, has_more = self._state.page(selection, size=page_size, token=page)
        return EncodedListing(
            items=[one.encoded for one in found],
            resource_version=str(end.version),
            next_page=token_of_page(end) if has_more else "",
        )

    def watch_selection(self, selection: Selection, resource_version: str) -> Watch:
        """Watch from a version; "" and "0" begin with all objects as ADDED."""
        return self._state.watch(selection, resource_version)

    async def write(self, one: Write) -> Object:
        """Carry out a write. Fields have owners if an API request writes them."""
        match one:
            case Create():
                check_depth(one.body)
                return await self._create(one)
            case Replace():
                check_depth(one.body)
                return await self._update(one, lambda _: one.body)
            case Patch():
                check_depth(one.patch)
                return await self._update(one, functools.partial(_patched, one))
            case Delete():
                await self._delete(one)
            case Evict():
                await check_budgets(self, await self.get(POD, one.namespace, one.name))
                await self._delete(Delete(kind=POD, namespace=one.namespace, name=one.name, uid=one.uid))
        return {}

    async def restore(self, kind: Kind, body: Object) -> Object:
        """Create an object that an earlier process had: it keeps the uid and the creation time in ``body``."""
        given = body.get("metadata") or {}
        identity = {key: given[key] for key in _IDENTITY if key in given}
        return await self._create(Create(kind=kind, body=body), identity=identity)

    async def _create(
        self, one: Create, *, owners: Sequence[Object] = (), identity: Mapping[str, str] = MappingProxyType({})
    ) -> Object:
        kind = one.kind
        tries = 1 if read_metadata(one.body).name else _NAME_TRIES
        while True:
            made = self._state.fresh(kind, dict(one.body))
            made["metadata"] |= identity
            made = self._state.resumed(self._rules(kind, await computed(self._completed, kind, made, owners)))
            metadata = checked_metadata(kind, made)
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
        if one.dry_run:
            return self._state.would_be(kind, made)
        created = await self._commits.apply(kind, None, made, disk=disk_for(kind, None, made), metadata=metadata)
        await turn()
        return decoded(created.encoded)

    def _completed(self, kind: Kind, made: Object, owners: Sequence[Object]) -> Object:
        """A new object after admission, with the owners of its fields. Pure."""
        made = self._admit(kind, made)
        if owners:
            return with_entries(made, owners)
        return after_update(kind, None, made, writer=self._writer()) if acting_manager() else made

    async def apply(self, one: Apply) -> tuple[Object, bool]:
        """Apply a configuration server-side for the acting manager; return the object, and whether it is new.

        Raises:
            ApplyConflict: when other managers own fields with other values, and ``force`` is false.
            NotFound: when a subresource of a missing object is applied.
        """
        check_depth(one.config)
        given = without_nulls(one.config)
        writer = self._writer(one.subresource)

        def change(old: Object) -> Mapping[str, Any]:
            made = after_apply(one.kind, old, given, writer=writer, force=one.force)
            check_values(made)
            return made

        while True:
            try:
                return await self._update(one, change), False
            except NotFound:
                if one.subresource is not None:
                    raise
            made = after_apply(one.kind, None, given, writer=writer, force=one.force)
            new = Create(kind=one.kind, body=made, dry_run=one.dry_run)
            try:
                return await self._create(new, owners=entries_of(made)), True
            except AlreadyExists:
                # Created since it was looked for: apply to that.
                continue

    def _writer(self, subresource: Subresource | None = None) -> FieldWriter:
        manager = acting_manager() or _OWN_MANAGER
        return FieldWriter(manager=manager, subresource=subresource, stamp=stamp_of(self._state.wall_s()))

    async def _delete(self, one: Delete) -> None:
        """Delete an object, or mark it as deleted while finalizers or a grace period hold it."""
        kind, name = one.kind, one.name
        if kind == NAMESPACE and name in FIRST_NAMESPACES:
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        key = _key(kind, one.namespace, name)
        while True:
            base = self._state.find(kind, key)
            if one.uid not in (None, base.uid):
                raise Conflict(f'{kind.resource} "{name}": uid {one.uid} is not that of the object, {base.uid}')
            if one.resource_version not in (None, str(base.version)):
                raise Conflict(modified_text(kind, name))
            if not await self._commits.other(kind, key):
                break
        old = decoded(base.encoded)
        new = marked_for_deletion(one, old, wall_s=self._state.wall_s())
        metadata = read_metadata(new)
        is_removal = not is_held(kind, new, metadata)
        if is_removal or not same_json(old, new):
            disk = Disk.AWAITED if kind.durable else Disk.NONE
            await self._commits.apply(kind, old, new, disk=disk, metadata=metadata, is_removal=is_removal)
            await turn()

    async def _update(self, one: Replace | Patch | Apply, change: _Change) -> Object:
        kind, subresource, key = one.kind, one.subresource, _key(one.kind, one.namespace, one.name)
        check_subresource(kind, subresource)
        tries = _THREAD_TRIES
        while True:
            base = self._state.find(kind, key)
            work = functools.partial(self._changed, one, change, base.encoded)
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
        if one.dry_run:
            return _shown(self._state.would_be(kind, new), subresource)
        updated = await self._commits.apply(kind, old, new, disk=disk, metadata=metadata, is_removal=is_removal)
        await turn()
        return _shown(decoded(updated.encoded), subresource)

    def _changed(self, one: Replace | Patch | Apply, change: _Change, encoded: bytes) -> tuple[Object, Object]:
        """An object before and after a change, admitted, with the owners of its fields. Pure."""
        kind, subresource, old = one.kind, one.subresource, decoded(encoded)
        sent = change(old)
        # The operations of a JSON patch put one value into another.
        check_depth(sent)
        check_identity(kind, old, sent)
        new = self._admit(kind, settled(kind, old, sent, subresource=subresource), old, subresource=subresource)
        new = with_generation(kind, old, new)
        if isinstance(one, Apply):
            new = with_entries(new, entries_of(sent))
        elif "managedFields" in old["metadata"]:
            new = after_update(kind, old, new, writer=self._writer(subresource), sent=entries_of(sent))
        return old, new


def _check_namespace(found: Stored) -> None:
    if found.is_deleting:
        raise Forbidden(f"unable to create new content in namespace {found.key[1]} because it is being terminated")


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return (namespace if kind.namespaced else "", name)


def _patched(one: Patch, old: Object) -> Mapping[str, Any]:
    target = scale_of(old) if one.subresource == "scale" else old
    return patched(one.kind, target, one.patch, patch_type=one.patch_type)


def _shown(whole: Object, subresource: Subresource | None) -> Object:
    return scale_of(whole) if subresource == "scale" else whole
