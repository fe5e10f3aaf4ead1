"""A cluster that takes writes only while its writer may make them.

Kubernetes has no fencing tokens. What there is: every write names the version that was read, so that a late one of
somebody who was frozen fails if anybody has written since; and right before it is sent the clock is asked whether the
lease is still held: when the write is asked for, and by the kube adapter again (``last_check``) when a connection is there
and when its bytes go to the transport. From there to the kernel it is the rest of a turn of the loop; a process that is
frozen just there sends one write more, which its version, or its name if it creates something, fences.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Literal

from serving.cluster.kinds import Kind
from serving.cluster.port import Cluster, Listing, Object, PatchType, Subresource, WatchEvent

__all__ = ["FencedCluster", "fencing", "last_check"]

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar(
    "the check of the write that this task is making", default=None
)


def last_check() -> None:
    """Ask once more, right before a write leaves the process; nothing where it is not fenced. Raises ``NotLeading``."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextlib.contextmanager
def fencing(check: Callable[[], None]) -> Iterator[None]:
    """Within it the calls of this task are asked about: now, and by the kube adapter each before it is sent."""
    check()
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)


class FencedCluster:
    """The port before another one. ``check`` raises if its caller may not write; reads go through unasked."""

    def __init__(self, cluster: Cluster, check: Callable[[], None]) -> None:
        self._cluster = cluster
        self._check = check

    def __repr__(self) -> str:
        return f"FencedCluster({self._cluster!r})"

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """As the port says."""
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
        """As the port says."""
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
        """As the port says."""
        return self._cluster.watch(
            kind,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
        )

    async def create(self, kind: Kind, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """As the port says. Raises ``NotLeading`` too."""
        with fencing(self._check):
            return await self._cluster.create(kind, body, dry_run=dry_run)

    async def replace(
        self, kind: Kind, body: Mapping[str, Any], *, subresource: Subresource | None = None, dry_run: bool = False
    ) -> Object:
        """As the port says. Raises ``NotLeading`` too."""
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
        """As the port says. Raises ``NotLeading`` too."""
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
        """As the port says. Raises ``NotLeading`` too."""
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
