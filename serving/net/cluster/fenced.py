"""A cluster adapter that allows writes only while the writer holds its lease.

Kubernetes has no fencing tokens. Two checks replace them. First, every write contains the version that was read, so
that a late write of a frozen process fails if another process has written since. Second, the lease is checked against
the clock: when the write starts, when the kube adapter has a connection, and when it passes the bytes to the transport
(``last_check``). A process that is frozen after that may send one more write. The API server rejects it by its version,
or, if it creates an object, by the existing name.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar

from serving.core.model.objects import Object
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster, Listing, Selection, Subresource, WatchEvent, Write

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar(
    "the check of the write that this task is making", default=None
)


def last_check() -> None:
    """Check the lease immediately before a write is sent; outside ``fencing`` do nothing.

    Raises ``NotLeading``.
    """
    check = _CHECK.get()
    if check is not None:
        check()


@contextlib.contextmanager
def fencing(check: Callable[[], None]) -> Iterator[None]:
    """Check the lease now, and before each write that this task sends within the context."""
    check()
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)


class FencedCluster(Cluster):
    """Wraps another cluster. ``check`` raises before a write that the caller must not do; reads are unchecked."""

    def __init__(self, cluster: Cluster, check: Callable[[], None]) -> None:
        self.is_in_process = cluster.is_in_process
        self._cluster = cluster
        self._check = check

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """Read one object."""
        return await self._cluster.get(kind, namespace, name, subresource=subresource)

    async def kind_named(self, api_version: str, name: str) -> Kind | None:
        """Find a kind."""
        return await self._cluster.kind_named(api_version, name)

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        """Read one page of a list."""
        return await self._cluster.list_selection(selection, page_size=page_size, page=page)

    def watch_selection(
        self, selection: Selection, resource_version: str
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch changes after a version."""
        return self._cluster.watch_selection(selection, resource_version)

    async def write(self, write: Write) -> Object:
        """Write while holding the lease. Raises ``NotLeading`` without it."""
        with fencing(self._check):
            return await self._cluster.write(write)

    async def write_together(self, writes: Sequence[Write]) -> Sequence[Object] | None:
        """Execute writes in one call while holding the lease. Raises ``NotLeading`` without it."""
        with fencing(self._check):
            return await self._cluster.write_together(writes)
