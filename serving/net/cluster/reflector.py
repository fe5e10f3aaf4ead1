"""A local copy of objects, kept up to date by list and watch.

Works over any ``port.Cluster``. ``cache`` is the copy; ``synced`` is set once it contains the first list. Callbacks get
each change in order, with the object before and after. A watch that ends is resumed. After ``Gone`` or a failure the
objects are listed again, after a jittered wait that doubles with each failure. Repeated events are dropped. A list
every ``relist_s`` finds changes that the watch missed. Times are the loop's.

An object that cannot be read, or that a callback cannot process, is counted, logged and skipped. The copy keeps its
last state, and the list or watch continues.

The copy is packed as JSON unless the cluster's store is in this process. JSON needs about a tenth of the memory of maps
and lists, and the garbage collector does not traverse it. Few of the objects are read again.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

import msgspec

from serving.core.model.errors import ClusterError, Forbidden, Gone
from serving.core.model.objects import Key, Object, is_older_version, key_of, name_of, namespace_of, version_of
from serving.core.traffic.backoff import backoff_s
from serving.net.aio.clock import now_s
from serving.net.aio.cooperative import turn
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster, EventType, Selection, WatchEvent

_log = logging.getLogger(__name__)

# Events per loop iteration: about half a millisecond. Writers make fewer in theirs, so the cache stays close to the
# cluster.
_EVENTS_PER_TURN = 16
# A watch that lasted this long (seconds), or delivered an event, did not fail.
_SOUND_S = 5.0


UNREADABLE: Counter[str] = Counter()
"""Objects that reflectors of this process could not parse or process, by resource."""

_UNPACKED_MAX = 32
_DECODER = msgspec.json.Decoder(dict[str, Any])


class PackedObjects(MutableMapping[Key, Object]):
    """Objects by namespace and name, encoded except for the latest one. Readers must not change the shared objects."""

    def __init__(self) -> None:
        self._packed: dict[Key, tuple[str, bytes]] = {}
        self._unpacked: dict[Key, Object] = {}

    def __getitem__(self, key: Key) -> Object:
        resource = self._unpacked.get(key)
        if resource is None:
            resource = _DECODER.decode(self._packed[key][1])
            self._store(key, resource)
        return resource

    def __setitem__(self, key: Key, resource: Object) -> None:
        self._packed[key] = version_of(resource), msgspec.json.encode(resource)
        self._store(key, resource)

    def __delitem__(self, key: Key) -> None:
        del self._packed[key]
        self._unpacked.pop(key, None)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, key: object) -> bool:
        return key in self._packed

    def version(self, key: Key) -> str:
        """The version of an object, without unpacking."""
        return self._packed[key][0]

    def _store(self, key: Key, resource: Object) -> None:
        self._unpacked.pop(key, None)
        self._unpacked[key] = resource
        if len(self._unpacked) > _UNPACKED_MAX:
            del self._unpacked[next(iter(self._unpacked))]


class SharedObjects(dict[Key, Object]):
    """Objects by namespace and name, shared with the store in this process."""

    def version(self, key: Key) -> str:
        """The version of an object."""
        return version_of(self[key])


def objects_map(cluster: Cluster) -> PackedObjects | SharedObjects:
    """An empty map for a cluster's objects. It packs them unless the store is in this process."""
    return SharedObjects() if cluster.is_in_process else PackedObjects()


class ReflectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often a reflector lists, how long it waits after failures, and which parts of objects it stores.

    ``relist_s`` is the longest time without a full list, in seconds, with a jitter of a fifth; lists find changes that
    watches dropped. ``page_size`` is the number of objects per list call (0: all; default: client-go's pager). The wait
    after the first failure is between a half and all of ``retry_first_s`` seconds; it doubles with each failure, up to
    ``retry_max_s``. ``transform`` reduces an object to the parts that the cache stores, for readers of very many
    objects; name, namespace and version must stay.
    """

    relist_s: float = 600.0
    page_size: int = 500
    retry_first_s: float = 0.1
    retry_max_s: float = 10.0
    transform: Callable[[Object], Object] = lambda resource: resource


class CacheChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the cache. ``old`` is None for an added object; ``new`` is the last state of a deleted object."""

    type: EventType
    key: Key
    old: Object | None
    new: Object


class Reflector:
    """A copy of the objects of one kind, within a namespace and selectors. ``run`` maintains it.

    ``on_change`` is called for each change, right after the cache is updated; it must not block and should not raise.
    ``on_list`` is called after each list, with the list's version. An object that is then missing from the copy does
    not exist, or is newer than the list.
    """

    def __init__(  # noqa: PLR0913 - what to follow, and how
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        settings: ReflectorSettings | None = None,
        dice: random.Random | None = None,
        on_change: Callable[[CacheChange], None] | None = None,
        on_list: Callable[[str], None] | None = None,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self.is_forbidden = False
        """Whether the last list was refused."""

        self._again = asyncio.Event()
        self._cluster = cluster
        self._selection = Selection(
            kind=kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        self._settings = settings or ReflectorSettings()
        self._dice = dice or random.Random()  # noqa: S311 - spreads waits
        self._cache = objects_map(cluster)
        self._failures = 0
        self._on_change = on_change
        self._on_list = on_list

    def __repr__(self) -> str:
        state = "synced" if self.synced.is_set() else "not synced"
        return f"Reflector({self.kind.resource}, {len(self._cache)} objects, {state})"

    @property
    def cache(self) -> Mapping[Key, Object]:
        """The objects by namespace and name: a live view.

        Readers must not change the objects, which are replaced as a whole.
        """
        return MappingProxyType(self._cache)

    def repeat_all(self) -> None:
        """Soon call ``on_change`` again for every object, because settings that the callback uses have changed."""
        self._again.set()

    async def run(self) -> None:
        """Maintain the copy until cancelled."""
        async with supervise() as tasks:
            tasks.start_background(self._repeat_all(), name=f"reflector {self.kind.plural} again")
            while True:
                await self._list_and_watch()

    async def _list_and_watch(self) -> None:
        try:
            version = await self._list()
            self.is_forbidden = False
            self.synced.set()
            await self._watch(version)
        except ClusterError as error:
            self.is_forbidden = isinstance(error, Forbidden)
            level = logging.DEBUG if isinstance(error, Gone) else logging.WARNING
            _log.log(level, "reflector.failed", extra={"resource": self.kind.resource, "error": str(error)})
            await self._back_off()

    async def _repeat_all(self) -> None:
        while True:
            await self._again.wait()
            self._again.clear()
            for key in list(self._cache):
                resource = self._cache.get(key)
                if resource is not None:
                    self._notify(CacheChange(type=EventType.MODIFIED, key=key, old=resource, new=resource))
                    await turn()

    async def _list(self) -> str:
        """Replace the cache by a list; return the version to watch from."""
        listed: dict[Key, Object] = {}
        page, version = "", ""
        while True:
            listing = await self._cluster.list_selection(self._selection, page_size=self._settings.page_size, page=page)
            # The first page's version, so that the watch delivers changes between two pages.
            version = version or listing.resource_version
            listed.update(entry for entry in map(self._listed, listing.items) if entry is not None)
            page = listing.next_page
            if not page:
                break
        for key in [key for key in self._cache if key not in listed]:
            self._delete(key, self._cache[key])
            await turn()
        for key, resource in listed.items():
            if self._version(key) != version_of(resource):
                self._put(key, resource)
                await turn()
        if self._on_list is not None:
            try:
                self._on_list(version)
            except Exception:  # noqa: BLE001 - as ``_notify`` does
                self._skip(None)
        return version

    def _listed(self, listed: Object) -> tuple[Key, Object] | None:
        """The cache entry of a listed object; of an invalid object, the entry of its last valid state, if any."""
        try:
            return key_of(listed), self._settings.transform(listed)
        except Exception:  # noqa: BLE001 - as ``_notify`` does
            self._skip(listed)
        # The object exists: without an entry the cache would report a deletion.
        key = namespace_of(listed), name_of(listed)
        return (key, self._cache[key]) if key in self._cache else None

    async def _watch(self, version: str) -> None:
        """Watch until the next list is due, resuming watches that end. Raises ``ClusterError``."""
        until_s = now_s() + self._settings.relist_s * self._dice.uniform(0.8, 1.2)
        event_count = 0
        while now_s() < until_s:
            began_s = now_s()
            try:
                async with asyncio.timeout_at(until_s):
                    async with self._cluster.watch_selection(self._selection, version) as events:
                        async for event in events:
                            version = version_of(event.shared) or version
                            self._failures = 0
                            self._apply(event)
                            # A busy watch never yields to other tasks by itself.
                            if (event_count := event_count + 1) % _EVENTS_PER_TURN == 0:
                                await turn()
            except TimeoutError:
                return
            finally:
                if now_s() - began_s >= _SOUND_S:
                    self._failures = 0
            if now_s() - began_s < _SOUND_S:
                await self._back_off()

    async def _back_off(self) -> None:
        self._failures += 1
        longest_s = backoff_s(self._failures, first_s=self._settings.retry_first_s, max_s=self._settings.retry_max_s)
        await asyncio.sleep(longest_s * self._dice.uniform(0.5, 1.0))

    def _apply(self, event: WatchEvent) -> None:
        if event.type is EventType.BOOKMARK:
            return
        try:
            resource = self._settings.transform(event.shared)
            key = key_of(resource)
        except Exception:  # noqa: BLE001 - as ``_notify`` does
            self._skip(event.shared)
            return
        known, version = self._version(key), version_of(resource)
        if event.type is EventType.DELETED:
            if known is not None and not is_older_version(version, known):
                self._delete(key, resource)
        elif known is None or not (known == version or is_older_version(version, known)):
            self._put(key, resource)

    def _version(self, key: Key) -> str | None:
        """The version of a cached object; None if it is not cached."""
        return self._cache.version(key) if key in self._cache else None

    def _put(self, key: Key, resource: Object) -> None:
        old = self._cache.get(key)
        self._cache[key] = resource
        self._notify(
            CacheChange(type=EventType.ADDED if old is None else EventType.MODIFIED, key=key, old=old, new=resource)
        )

    def _delete(self, key: Key, last: Object) -> None:
        old = self._cache.pop(key)
        self._notify(CacheChange(type=EventType.DELETED, key=key, old=old, new=last))

    def _notify(self, change: CacheChange) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change)
        except Exception:  # noqa: BLE001 - the outermost frame of foreign code
            self._skip(change.new)

    def _skip(self, shared: object) -> None:
        """Count and log an object that a callback cannot handle; other objects continue."""
        UNREADABLE[self.kind.resource] += 1
        extra = {"resource": self.kind.resource, "key": (namespace_of(shared), name_of(shared))}
        _log.exception("reflector.object_skipped", extra=extra)


async def start_synced(group: SupervisedTasks, reflectors: Iterable[Reflector], *, owner: str) -> None:
    """Start reflectors of an owner, and wait until each has listed its objects once."""
    reflectors = list(reflectors)
    for reflector in reflectors:
        group.start(reflector.run(), name=f"{owner} {reflector.kind.plural}")
    for reflector in reflectors:
        await reflector.synced.wait()
