"""What a reconciler wants done, as data: objects to create, patches, deletions, and the events that tell of them.

A reconciler is a function from what is known to a ``WritePlan``; ``loop.py`` carries it out. Every patch and deletion is
fenced by the ``resourceVersion`` that the decision was made on: if the object has changed since, the server refuses with
a conflict, and the decision is made anew on what is there then. No writer can therefore undo what it has not seen.
"""

import enum
from typing import Literal

import msgspec

from serving.model.objects import (
    Object,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    uid_of,
    version_of,
)

__all__ = [
    "Create",
    "Delete",
    "Note",
    "Patch",
    "ResourceKind",
    "WorkKey",
    "Write",
    "WritePlan",
    "deletion_of",
    "patch_of",
    "status_patch",
]


class ResourceKind(enum.StrEnum):
    """The kinds that are read or written here, by the names that the API's messages use."""

    SERVICE = "services.serving.knative.dev"
    CONFIGURATION = "configurations.serving.knative.dev"
    ROUTE = "routes.serving.knative.dev"
    REVISION = "revisions.serving.knative.dev"
    DEPLOYMENT = "deployments.apps"
    CORE_SERVICE = "services"
    POD = "pods"
    ENDPOINT_SLICE = "endpointslices.discovery.k8s.io"
    HPA = "horizontalpodautoscalers.autoscaling"
    HTTP_ROUTE = "httproutes.gateway.networking.k8s.io"
    DOMAIN_MAPPING = "domainmappings.serving.knative.dev"
    DOMAIN_CLAIM = "clusterdomainclaims.networking.internal.knative.dev"


WorkKey = tuple[ResourceKind, str, str]
"""A resource to decide on: its kind, namespace and name."""


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is to be."""

    resource: ResourceKind
    body: Object


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A merge patch of an object, or of its status. It holds the version that it is fenced by."""

    resource: ResourceKind
    namespace: str
    name: str
    patch: Object
    subresource: Literal["status"] | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is to go, if it is still this one in this version."""

    resource: ResourceKind
    namespace: str
    name: str
    uid: str
    resource_version: str


Write = Create | Patch | Delete


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person who looks at the object should read: it becomes an Event."""

    about: Object
    reason: str
    message: str
    warning: bool = False


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for one resource.

    ``writes`` are made in their order, then ``notes``. ``again_after_s`` is when to decide again without a change, in
    seconds from now, None for never. ``can_wait`` marks writes that no decision depends on: they are limited in rate.
    ``debounce_s`` is how long the writes wait for changes that may replace them, from the first time that they are planned.
    ``unconfirmed`` is the digest that the activators do not serve yet, "" if there is nothing to ask them.
    """

    writes: tuple[Write, ...] = ()
    notes: tuple[Note, ...] = ()
    again_after_s: float | None = None
    can_wait: bool = False
    debounce_s: float = 0.0
    unconfirmed: str = ""


def patch_of(resource: ResourceKind, existing: Object, changes: Object) -> tuple[Patch, ...]:
    """A fenced merge patch with these changes; nothing if there are none."""
    return _fenced(resource, existing, changes, subresource=None) if changes else ()


def status_patch(resource: ResourceKind, existing: Object, status: Object) -> tuple[Patch, ...]:
    """A fenced patch that makes ``status`` the status; nothing if it is that already."""
    changes = merge_difference(nested(existing, "status") or {}, status)
    return _fenced(resource, existing, {"status": changes}, subresource="status") if changes else ()


def deletion_of(resource: ResourceKind, existing: Object) -> Delete:
    """The deletion of exactly this object, as it was seen."""
    return Delete(
        resource=resource,
        namespace=namespace_of(existing),
        name=name_of(existing),
        uid=uid_of(existing),
        resource_version=version_of(existing),
    )


def _fenced(
    resource: ResourceKind, existing: Object, changes: Object, *, subresource: Literal["status"] | None
) -> tuple[Patch, ...]:
    metadata = {**changes.get("metadata", {}), "resourceVersion": version_of(existing)}
    return (
        Patch(
            resource=resource,
            namespace=namespace_of(existing),
            name=name_of(existing),
            patch={**changes, "metadata": metadata},
            subresource=subresource,
        ),
    )
