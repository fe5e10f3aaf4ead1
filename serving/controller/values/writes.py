"""The plan of a reconciler as data: objects to create, patches, deletions, and Events.

A reconciler is a function from the cached state to a ``WritePlan``, which ``io/plan_writer.py`` carries out. Every patch and deletion
is fenced by the ``resourceVersion`` that the decision was made on: if the object has changed since, the server reports a conflict
and the decision is repeated. No write can therefore undo a change that it has not seen.
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


class ResourceKind(enum.StrEnum):
    """The kinds that the controller reads or writes, by the resource names in the API's messages."""

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
    """An object to create."""

    resource: ResourceKind
    body: Object


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A merge patch of an object or its status, fenced by a version."""

    resource: ResourceKind
    namespace: str
    name: str
    patch: Object
    subresource: Literal["status"] | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """The deletion of an object, fenced by its uid and version."""

    resource: ResourceKind
    namespace: str
    name: str
    uid: str
    resource_version: str


Write = Create | Patch | Delete


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A message about an object; it becomes an Event."""

    about: Object
    reason: str
    message: str
    warning: bool = False


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes for one resource.

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
    """A fenced merge patch with these changes; () if there are none."""
    return _fenced(resource, existing, changes, subresource=None) if changes else ()


def status_patch(resource: ResourceKind, existing: Object, status: Object) -> tuple[Patch, ...]:
    """A fenced patch that turns the status into ``status``; () if it is equal."""
    changes = merge_difference(nested(existing, "status") or {}, status)
    return _fenced(resource, existing, {"status": changes}, subresource="status") if changes else ()


def deletion_of(resource: ResourceKind, existing: Object) -> Delete:
    """The deletion of this object in this version."""
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
