"""A cluster whose writes are allowed only while the writer holds its lease.

Kubernetes has no fencing tokens. Two things stand in for them. Every write carries the version that was read, so a late
write of a frozen process fails if another process has written since. And the lease is checked against the clock when the
write starts, and again by the kube adapter (``last_check``) when it has a connection and when it passes the bytes to the
transport. A process that is frozen after that sends one more write, which its version rejects, or its name if it creates.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Literal

from serving.cluster.kinds import Kind
from serving.cluster.port import Cluster, Listing, PatchType, Subresource, WatchEvent
from serving.model.objects import Object

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar(
    "the check of the write that this task is making", default=None
)


def last_check() -> None:
    """Check the lease right before a write leaves the process; outside ``fencing`` do nothing. Raises ``NotLeading``."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextlib.contextmanager
def fencing(check: Callable[[], None]) -> Iterator[None]:
    """Check now, and have the kube adapter check each call of this task before it is sent."""
    check()
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)


class FencedCluster:
    """Wraps another cluster. ``check`` raises if the caller may not write; reads are not checked."""

    def __init__(self, cluster: Cluster, check: Callable[[], None]) -> None:
        self._cluster = cluster
        self._check = check

    def __repr__(self) -> str:
        return f"FencedCluster({self._cluster!r})"

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """Read one object."""
        return await self._cluster.get(kind, namespace, name, subresource=subresource)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 0,
        page: str = "",
    ) -> Listing:
        """Read one page of a list."""
        return await self._cluster.list(
            kind,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
            page=page,
        )

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch changes after a version."""
        return self._cluster.watch(
            kind,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
        )

    async def create(self, kind: Kind, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object. Raises ``NotLeading`` without the lease."""
        with fencing(self._check):
            return await self._cluster.create(kind, body, dry_run=dry_run)

    async def replace(
        self, kind: Kind, body: Mapping[str, Any], *, subresource: Subresource | None = None, dry_run: bool = False
    ) -> Object:
        """Replace an object. Raises ``NotLeading`` without the lease."""
        with fencing(self._check):
            return await self._cluster.replace(kind, body, subresource=subresource, dry_run=dry_run)

    async def patch(  # noqa: PLR0913 - the API's own parameters
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        patch_type: PatchType = PatchType.MERGE,
        subresource: Subresource | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Patch an object. Raises ``NotLeading`` without the lease."""
        with fencing(self._check):
            return await self._cluster.patch(
                kind, namespace, name, patch=patch, patch_type=patch_type, subresource=subresource, dry_run=dry_run
            )

    async def delete(  # noqa: PLR0913 - the API's own parameters
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
        grace_s: int | None = None,
    ) -> None:
        """Delete an object. Raises ``NotLeading`` without the lease."""
        with fencing(self._check):
            await self._cluster.delete(
                kind,
                namespace,
                name,
                uid=uid,
                resource_version=resource_version,
                propagation=propagation,
                grace_s=grace_s,
            )

    async def evict(self, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Evict a pod. Raises ``NotLeading`` without the lease."""
        with fencing(self._check):
            await self._cluster.evict(namespace, name, uid=uid)
