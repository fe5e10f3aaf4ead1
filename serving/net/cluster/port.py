"""The cluster port: access to resources in this process (memory), or on a Kubernetes API server (kube).

The contract of every adapter, verified by ``tests/conformance/cluster``:

- Objects are JSON objects of the Kubernetes API (``apiVersion``, ``kind``, ``metadata``, ...). Returned objects belong
  to the caller; the adapter keeps no reference to arguments.
- Optimistic concurrency: a write with an outdated ``metadata.resourceVersion`` raises ``Conflict``. A write that
  changes nothing keeps the version.
- ``metadata.generation`` grows with the spec only. The main resource ignores ``status``, ``/status`` ignores the rest.
- A watch from a version delivers the later changes in order. It may end at any time, and may drop or repeat changes, so
  a reader combines it with lists (``net/cluster/reflector.py``). A version that is too old raises ``Gone``; the reader
  then lists again.
- A call may take as long as its adapter's timeout. Adapters do not retry.

All errors are subclasses of ``ClusterError`` in ``serving.core.model.errors``.

An adapter is a subclass of ``Cluster`` with four methods: ``get``, ``list_selection``, ``watch_selection`` and
``write``. An adapter that wraps another cluster, such as ``FencedCluster``, passes the arguments on.
"""

import abc
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from serving.core.model.objects import Object
from serving.net.cluster.kinds import POD, Kind, kind_of

Subresource = Literal["status", "scale", "resize"]

Propagation = Literal["Background", "Foreground", "Orphan"]
"""When dependents are deleted: after their owner, before it, or never (orphan)."""


class PatchType(enum.StrEnum):
    """The type of a patch. The values are the content types of the Kubernetes API."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"

    APPLY = "application/apply-patch+yaml"
    """Server-side apply of an existing object: this process then owns the fields, even if another owner had them."""


class EventType(enum.StrEnum):
    """The type of a change. An object that enters a selection is ADDED; one leaving it is DELETED."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Encoded:
    """An object as JSON, shared by all watches of a store in this process. It is decoded once for all readers."""

    __slots__ = ("__weakref__", "_shared", "encoded")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._shared: Object | None = None

    @property
    def shared(self) -> Object:
        """The object shared by all readers, which must not change it."""
        if self._shared is None:
            self._shared = msgspec.json.decode(self.encoded, type=dict[str, Any])
        return self._shared


class WatchEvent:
    """One change, with the object after it. The object of a bookmark only has a version.

    ``object`` is decoded at first use and belongs to this event's reader alone.
    """

    # Not a record: a record cannot decode a field on first use, and a server that sends bytes never needs the object.
    __slots__ = ("_object", "_payload", "type")

    def __init__(
        self,
        *,
        type: EventType,  # noqa: A002 - the API's word
        object: Object | None = None,  # noqa: A002 - the API's word
        payload: Encoded | None = None,
    ) -> None:
        assert object is not None or payload is not None, "an event has an object"
        self.type = type
        self._payload = payload
        self._object = object

    def __repr__(self) -> str:
        metadata = self.object.get("metadata", {})
        return f"WatchEvent({self.type} {metadata.get('name', '')}@{metadata.get('resourceVersion', '')})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WatchEvent):
            return NotImplemented
        return self.type == other.type and self.object == other.object

    __hash__ = None  # type: ignore[assignment] # a reader may change its object

    @property
    def object(self) -> Object:
        """A copy of the object that the caller may change."""
        if self._object is None:
            assert self._payload is not None
            self._object = msgspec.json.decode(self._payload.encoded, type=dict[str, Any])
        return self._object

    @property
    def encoded(self) -> bytes | None:
        """The object as JSON, if the adapter has it."""
        return None if self._payload is None else self._payload.encoded

    @property
    def shared(self) -> Object:
        """The object for readers that never change it. Adapters may share it between watches."""
        return self.object if self._payload is None else self._payload.shared


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a list, and the version from which a watch continues. ``next_page`` is "" on the last page."""

    items: list[Object]
    resource_version: str
    next_page: str = ""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the objects of a list or watch. ``namespace`` None means all namespaces."""

    kind: Kind
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""


class _BodyWrite(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    body: Mapping[str, Any]
    dry_run: bool = False

    @property
    def namespace(self) -> str:
        """The namespace in the body, else "default"; "" for cluster-scoped kinds."""
        metadata: Mapping[str, Any] = self.body.get("metadata") or {}
        return metadata.get("namespace") or "default" if self.kind.namespaced else ""

    @property
    def name(self) -> str:
        """The name in the body; "" if the server generates it."""
        metadata: Mapping[str, Any] = self.body.get("metadata") or {}
        return metadata.get("name") or ""


class Create(_BodyWrite, frozen=True, kw_only=True):
    """Creates an object; the result includes the server's additions. Raises ``AlreadyExists``, ``Invalid``."""


class Replace(_BodyWrite, frozen=True, kw_only=True):
    """Replaces an object. A version in the body must be the latest. Raises ``NotFound``, ``Conflict``, ``Invalid``."""

    subresource: Subresource | None = None


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes an object relative to its current state. Raises ``NotFound``, ``Conflict``, ``Invalid``.

    ``patch`` is an object, or the list of operations of a JSON patch.
    """

    kind: Kind
    namespace: str
    name: str
    patch: Any
    patch_type: PatchType = PatchType.MERGE
    subresource: Subresource | None = None
    dry_run: bool = False


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes an object, or marks it for deletion if finalizers or a pod's grace period delay this.

    ``uid`` and ``resource_version`` are preconditions. ``grace_s`` is the grace period of a pod, in whole seconds. None
    uses the period in the pod's spec. 0 removes the object immediately; the kubelet does this once the processes have
    ended. Raises ``NotFound``, and ``Conflict`` if a precondition fails.
    """

    kind: Kind
    namespace: str
    name: str
    uid: str | None = None
    resource_version: str | None = None
    propagation: Propagation = "Background"
    grace_s: int | None = None


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Evicts a pod: deletes it with its grace period, unless a PodDisruptionBudget forbids this.

    Raises ``TooManyRequests`` if a budget forbids it now, ``NotFound``, and ``Conflict`` if the pod has another uid.
    """

    namespace: str
    name: str
    uid: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the evicted object."""
        return POD


Write = Create | Replace | Patch | Delete | Evict


class Cluster(abc.ABC):
    """Access to all kinds of resources. ``namespace`` is "" for cluster-scoped kinds.

    Callers use ``get``, ``list``, ``watch`` and the five writes. Adapters implement the other methods.
    ``is_in_process``: the objects are in a store in this process; readers share them, so that copies need no memory.
    """

    is_in_process: bool = False

    @abc.abstractmethod
    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """One object, or its scale. Raises ``NotFound``."""

    @abc.abstractmethod
    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        """One page of a list, ordered by NAMESPACE/NAME. ``page_size`` 0 means all objects."""

    @abc.abstractmethod
    def watch_selection(
        self, selection: Selection, resource_version: str
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Changes after a version. Leaving the context ends the watch. Raises ``Gone`` on entry or while iterating."""

    async def kind_named(self, api_version: str, name: str) -> Kind | None:
        """The server's kind with this ``apiVersion`` and ``kind``; None if the server has no such kind.

        The store in this process has the kinds of this project.
        """
        return kind_of(api_version, name)

    @abc.abstractmethod
    async def write(self, write: Write) -> Object:
        """Execute a write and return the resulting object. The result of ``Delete`` and ``Evict`` has no meaning."""

    async def write_together(self, writes: Sequence[Write]) -> Sequence[Object] | None:
        """Execute writes in order in one call, until one fails; return the results of those before it.

        None: nothing is written, because the server has no such call; Kubernetes has none. Raises the error of the
        first write.
        """
        del writes
        return None

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
        """All objects matched by the selectors, or a page of them; see ``Selection`` and ``list_selection``."""
        selection = Selection(
            kind=kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        return await self.list_selection(selection, page_size=page_size, page=page)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Changes of the objects matched by the selectors; see ``Selection`` and ``watch_selection``."""
        selection = Selection(
            kind=kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        return self.watch_selection(selection, resource_version)

    async def create(self, kind: Kind, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object: see ``Create``."""
        return await self.write(Create(kind=kind, body=body, dry_run=dry_run))

    async def replace(
        self, kind: Kind, body: Mapping[str, Any], *, subresource: Subresource | None = None, dry_run: bool = False
    ) -> Object:
        """Replace an object: see ``Replace``."""
        return await self.write(Replace(kind=kind, body=body, subresource=subresource, dry_run=dry_run))

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
        """Patch an object: see ``Patch``."""
        return await self.write(
            Patch(
                kind=kind,
                namespace=namespace,
                name=name,
                patch=patch,
                patch_type=patch_type,
                subresource=subresource,
                dry_run=dry_run,
            )
        )

    async def delete(  # noqa: PLR0913 - the API's own parameters
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_s: int | None = None,
    ) -> None:
        """Delete an object: see ``Delete``."""
        await self.write(
            Delete(
                kind=kind,
                namespace=namespace,
                name=name,
                uid=uid,
                resource_version=resource_version,
                propagation=propagation,
                grace_s=grace_s,
            )
        )

    async def evict(self, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Evict a pod: see ``Evict``."""
        await self.write(Evict(namespace=namespace, name=name, uid=uid))


class PodLogSource(Protocol):
    """Reads the logs of pods, which only a server has."""

    def pod_log(
        self, namespace: str, pod: str, *, container: str, tail_line_count: int, follow: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A container's last lines in pieces and, with ``follow``, its further output until it ends.

        Leaving the context ends the reading. Raises ``NotFound``, ``Invalid`` while the container has not started, and
        ``Unavailable``; the latter on entry or while iterating.
        """
        ...
