"""Applies a decided write to the state: immediately, or after the journal has committed its durable part.

The journal's callback applies a write that waits for the disk, so a client that disconnects meanwhile has no influence.
Only one such write per object runs at a time (``other`` waits for it). Meanwhile, writes of only the status or the
servingState are applied immediately, and ``durability.carried_over`` merges them. A servingState is written to disk
later, and so is the object after a failed write.
"""

import asyncio
import contextlib
import logging

from serving.core.model.errors import Unavailable
from serving.core.model.objects import Key, Object, key_of
from serving.home.schemas.records import ObjectMetadata, Stored, decoded, encode, read_metadata
from serving.home.store.durability import Disk, carried_over, durable_part, is_durable
from serving.home.store.journal import Journal, JournalEntry
from serving.home.store.state import StoreState
from serving.net.cluster.kinds import Kind

_log = logging.getLogger(__name__)


class Commits:
    """Executes the writes of one store: in memory, and in the journal if there is one."""

    def __init__(self, state: StoreState, journal: Journal | None) -> None:
        self._state = state
        self._journal = journal
        self._under_way: dict[tuple[Kind, Key], asyncio.Future[Stored]] = {}

    async def other(self, kind: Kind, key: Key) -> bool:
        """Wait for a pending disk write to the same object; return whether there was one.

        If there was one, the object may have changed, and the caller must read it again.
        """
        under_way = self._under_way.get((kind, key))
        if under_way is None:
            return False
        await asyncio.wait([under_way])
        return True

    async def apply(
        self,
        kind: Kind,
        old: Object | None,
        new: Object,
        *,
        disk: Disk,
        metadata: ObjectMetadata,
        is_removal: bool = False,
    ) -> Stored:
        """Change ``old`` to ``new``. When this returns, the write is on disk if its kind requires that.

        ``metadata`` is the parsed metadata of ``new``. Until its first await, this call is atomic with the caller's
        reads. Raises ``Unavailable``, ``Invalid``.
        """
        if self._journal is None or disk is not Disk.AWAITED:
            applied = self._state.apply(kind, new, metadata, is_removal=is_removal)
            if disk is Disk.BEHIND:
                self._write_behind(kind, applied.key)
            return applied
        data = encode(durable_part(new))
        is_stored = not is_removal and is_durable(kind, new)
        self._state.limits.check_size(kind, data)
        # A copy, because the caller may change its object while the write waits for the disk.
        new = decoded(encode(new))
        key = key_of(new)
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()

        def done(error: Unavailable | None) -> None:
            del self._under_way[kind, key]
            failure: Exception | None = error
            if error is None:
                try:
                    future.set_result(self._finish(kind, old, new, is_removal=is_removal))
                except Exception as raised:  # noqa: BLE001 - the waiting caller gets it, and the rest of the batch goes on
                    failure = raised
            if failure is None:
                return
            # The disk has the rejected object, or lacks a write that bypassed it.
            if error is None or not self._is_as_before(kind, key, old):
                self._write_behind(kind, key)
            future.set_exception(failure)
            # The caller may have been cancelled; an unretrieved exception is expected then.
            future.exception()

        entry = JournalEntry(kind=kind.resource, namespace=key[0], name=key[1], data=data if is_stored else None)
        self._journal.submit(entry, done)
        self._under_way[kind, key] = future
        return await asyncio.shield(future)

    def _finish(self, kind: Kind, old: Object | None, new: Object, *, is_removal: bool) -> Stored:
        """Apply a committed write to the current object, which other writes may have changed meanwhile."""
        present = self._state.table(kind).objects.get(key_of(new))
        if old is None or present is None or self._is_as_before(kind, present.key, old):
            return self._state.apply(kind, new, read_metadata(new), is_removal=is_removal)
        is_now = decoded(present.encoded)
        if is_removal:
            last = {**new, "status": is_now["status"]} if "status" in is_now else new
            return self._state.apply(kind, last, read_metadata(last), is_removal=True)
        merged = carried_over(kind, old, new, present=is_now)
        applied = self._state.apply(kind, merged, read_metadata(merged))
        if durable_part(merged) != durable_part(new):
            self._write_behind(kind, applied.key)
        return applied

    def _is_as_before(self, kind: Kind, key: Key, old: Object | None) -> bool:
        present = self._state.table(kind).objects.get(key)
        if present is None or old is None:
            return present is None and old is None
        version: str = old["metadata"]["resourceVersion"]
        return str(present.version) == version

    def _write_behind(self, kind: Kind, key: Key) -> None:
        """Write the current object to disk in the background, unless such a write is pending."""
        if self._journal is None or (kind, key) in self._under_way:
            return
        current = self._state.table(kind).objects.get(key)
        whole = None if current is None else decoded(current.encoded)
        data = encode(durable_part(whole)) if whole is not None and is_durable(kind, whole) else None

        def done(error: Unavailable | None) -> None:
            if error is not None:
                _log.warning("journal.behind", extra={"object": "/".join(key), "error": str(error)})

        with contextlib.suppress(Unavailable):
            self._journal.submit(JournalEntry(kind=kind.resource, namespace=key[0], name=key[1], data=data), done)
