"""The state of the store: all tables, one version counter, all owner references. Synchronous; every change is one step.

``writes`` and ``memory`` decide on a change; the state assigns its version and publishes it to the watches. A state
starts with the content of its journal and the namespaces that always exist.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator

from serving.core.model.errors import UNREADABLE, Gone, Invalid, JournalDamaged, NotFound
from serving.core.model.objects import Key, Object
from serving.home.schemas.records import (
    ObjectMetadata,
    Stored,
    decoded,
    encode,
    read_metadata,
    selectable_fields,
    stored,
)
from serving.home.store.durability import durable_part
from serving.home.store.former import FormerObjects
from serving.home.store.history import ObjectFilter, StoreChange, StoreLimits, Watch
from serving.home.store.journal import Journal, JournalEntry
from serving.home.store.owners import Owners, Uids, derived_uid
from serving.home.store.tables import KindTable, ListPage, page_of_token, path_of
from serving.home.store.writes import fresh
from serving.net.aio.clock import stamp
from serving.net.cluster.identity import SYSTEM_NAMESPACE
from serving.net.cluster.kinds import KINDS, NAMESPACE, Kind
from serving.net.cluster.port import Selection
from serving.net.cluster.selectors import field_selector, label_selector

_log = logging.getLogger(__name__)

FIRST_NAMESPACES = ("default", SYSTEM_NAMESPACE, "kube-system")
"""Namespaces that exist from the start and cannot be deleted."""

# The alphabet of Kubernetes' generated names: no vowels, hence no words, and no look-alikes.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
# As on a real server, a watch cannot start at version 1: changes before the start are not kept.
_FIRST_VERSION = 2
# The digits of 64 bits.
_VERSION_LENGTH_MAX = 20
_BY_RESOURCE = {kind.resource: kind for kind in KINDS}


def filter_of(selection: Selection) -> ObjectFilter:
    """Parse the selectors into a filter. Namespace None or "" selects all. Raises ``Invalid``."""
    return ObjectFilter(
        namespace=selection.namespace or None,
        labels=label_selector(selection.label_selector),
        fields=field_selector(selection.field_selector, selectable_fields(selection.kind)),
    )


class StoreState:
    """All objects of all kinds. ``dice`` generates uids and name suffixes; ``wall_s`` returns the time."""

    def __init__(
        self, journal: Journal | None, *, limits: StoreLimits, dice: random.Random, wall_s: Callable[[], float]
    ) -> None:
        self.limits = limits
        self.owners = Owners()
        self.wall_s = wall_s
        self._journal = journal
        self._dice = dice
        self._uids = Uids(dice)
        self._former = FormerObjects(None if journal is None else journal.path)
        self.version = _FIRST_VERSION if journal is None else max(_FIRST_VERSION, journal.start_version)
        self._tables = {kind: KindTable(kind, limits, floor=self.version) for kind in KINDS}
        for kind, whole in _loaded(journal) if journal is not None else ():
            self._load(kind, whole)
        absent = [name for name in FIRST_NAMESPACES if ("", name) not in self._tables[NAMESPACE].objects]
        first = [self.fresh(NAMESPACE, {"metadata": {"name": name}}) for name in absent]
        if journal is not None and first:
            # Clients identify a namespace by its uid, so it stays the same across starts.
            journal.write_now(
                [
                    JournalEntry(kind=NAMESPACE.resource, namespace="", name=name, data=encode(durable_part(namespace)))
                    for name, namespace in zip(absent, first, strict=True)
                ]
            )
        for namespace in first:
            self._load(NAMESPACE, namespace)

    def table(self, kind: Kind) -> KindTable:
        """The objects of a kind. Raises ``NotFound`` for an unknown kind."""
        table = self._tables.get(kind)
        if table is None:
            raise NotFound(f"the server could not find the requested resource {kind.resource}")
        return table

    def find(self, kind: Kind, key: Key) -> Stored:
        """One object. Raises ``NotFound``."""
        entry = self.table(kind).objects.get(key)
        if entry is None:
            raise NotFound(f'{kind.resource} "{key[1]}" not found')
        return entry

    def fresh(self, kind: Kind, body: Object) -> Object:
        """A new object with uid, creation time and, for ``generateName``, a name. It is not stored yet."""
        suffix = "".join(self._dice.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
        new = fresh(kind, body, stamp=stamp(self.wall_s()), suffix=suffix)
        new["metadata"]["uid"] = self._uids.new(kind, new)
        return new

    def resumed(self, new: Object) -> Object:
        """A new object with the creation time and generation that it had in an earlier run.

        Only derived objects, which controllers recreate after a restart, have such values. Others are returned
        unchanged.
        """
        return self._former.resumed(new)

    def derived(self) -> Iterator[Object]:
        """The derived objects: those that controllers create again after a restart, with the same uid."""
        for kind, table in self._tables.items():
            for entry in table.objects.values() if not kind.durable else ():
                whole = decoded(entry.encoded)
                if derived_uid(kind, whole) == entry.uid:
                    yield whole

    def apply(self, kind: Kind, new: Object, metadata: ObjectMetadata, *, is_removal: bool = False) -> Stored:
        """Apply a change in memory. Raises ``Invalid`` for a large object, ``Unavailable`` if no versions are left."""
        version = self.version + 1
        if self._journal is not None:
            self._journal.claim(version)
        entry = stored(kind, new, metadata, version=version)
        self.limits.check_size(kind, entry.encoded)
        self.version = version
        table = self._tables[kind]
        change = StoreChange(table.objects.get(entry.key), entry, is_removal=is_removal, at_s=self.wall_s())
        table.apply(change)
        self.owners.apply(kind, change)
        if is_removal:
            self._uids.retire(kind, entry.uid)
        return entry

    def would_be(self, kind: Kind, new: Object) -> Object:
        """A copy of the object as it would be stored. Raises ``Invalid`` if it is too large."""
        encoded = encode(new)
        self.limits.check_size(kind, encoded)
        return decoded(encoded)

    def watch(self, selection: Selection, resource_version: str) -> Watch:
        """A watch from a version. From "" or "0" it begins with all existing objects. Raises ``Invalid``."""
        wanted, table = filter_of(selection), self.table(selection.kind)
        is_number = resource_version.isascii() and resource_version.isdecimal()
        if resource_version and (not is_number or len(resource_version) > _VERSION_LENGTH_MAX):
            shown = resource_version[:_VERSION_LENGTH_MAX]
            raise Invalid(f"resourceVersion: {shown!r} is not a version of this server")
        version = int(resource_version or 0)

        def begin(watch: Watch) -> Iterable[StoreChange]:
            if version > self.version:
                raise Gone(f"too large resource version: {version}, the present one is {self.version}")
            if version == 0:
                begins_with: Iterable[StoreChange] = (
                    StoreChange(None, entry, is_removal=False) for entry in list(table.select(wanted))
                )
            else:
                begins_with = table.history.after(version)
            table.watches.append(watch)
            return begins_with

        return Watch(wanted, count_max=self.limits.watch_count_max, begin=begin, end=table.watches.remove)

    def page(self, selection: Selection, *, size: int, token: str) -> tuple[list[Stored], ListPage, bool]:
        """One page of a snapshot: at most ``size`` objects (0 means all), its end, and whether there are more.

        All pages have the version of the first page. A watch from this version delivers all writes between the pages.
        """
        start = page_of_token(token) if token else None
        selected = self.table(selection.kind).select(filter_of(selection), after=None if start is None else start.after)
        entries: list[Stored] = []
        has_more = False
        for entry in selected:
            if size and len(entries) == size:
                has_more = True
                break
            entries.append(entry)
        last = path_of(entries[-1].key) if entries else ""
        return entries, ListPage(self.version if start is None else start.version, last), has_more

    def close_watches(self) -> None:
        """End all watches without an error."""
        for table in self._tables.values():
            for watch in tuple(table.watches):
                watch.close()

    def _load(self, kind: Kind, whole: Object) -> None:
        entry = stored(kind, whole, read_metadata(whole), version=max(1, self.version))
        self.version = entry.version
        self._tables[kind].load(entry)
        self.owners.apply(kind, StoreChange(None, entry, is_removal=False))


def _loaded(journal: Journal) -> Iterator[tuple[Kind, Object]]:
    for entry in journal.entries():
        kind = _BY_RESOURCE.get(entry.kind)
        if kind is None:
            _log.warning("journal.kind_unknown", extra={"kind": entry.kind, "name_of_object": entry.name})
            continue
        try:
            whole = decoded(entry.data or b"")
            # Without an operator it is refused like a text.
            read_metadata({"metadata": whole.get("metadata", "")})
        except (*UNREADABLE, Invalid) as error:
            where = f"{entry.kind} {entry.namespace}/{entry.name}"
            raise JournalDamaged(path=str(journal.path), detail=f"{where} cannot be read: {error}") from error
        if kind == NAMESPACE:
            # The journal has no status, and no controller writes this one.
            whole["status"] = {"phase": "Terminating" if "deletionTimestamp" in whole["metadata"] else "Active"}
        yield kind, whole
