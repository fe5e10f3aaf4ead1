"""A reconciler's plan as data: objects to create, patches, deletions, and Events.

A reconciler is a function from the cached state to a ``WritePlan``, which ``io/plan_writer.py`` executes. Every patch
and deletion contains the ``resourceVersion`` of the decision's input. If the object has changed since, the server
reports a conflict, and the decision is repeated. So a write never overwrites a change that its decision did not
include.
"""

import math
from typing import Literal

import msgspec

from serving.core.model.objects import (
    Object,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    uid_of,
    version_of,
)
from serving.core.model.rolloutcheck import RolloutWatch
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Delete, Patch, Write

WATCHED_KINDS = (
    kinds.SERVING_SERVICE,
    kinds.CONFIGURATION,
    kinds.ROUTE,
    kinds.REVISION,
    kinds.DEPLOYMENT,
    kinds.SERVICE,
    kinds.POD,
    kinds.ENDPOINT_SLICE,
    kinds.HORIZONTAL_POD_AUTOSCALER,
    kinds.HTTP_ROUTE,
    kinds.CERTIFICATE,
    kinds.DOMAIN_MAPPING,
    kinds.CLUSTER_DOMAIN_CLAIM,
    kinds.SCALED_WORKLOAD,
    kinds.STATEFUL_SET,
    kinds.REPLICA_SET,
    kinds.KEDA_SCALED_OBJECT,
    kinds.HTTP_SCALED_OBJECT,
    kinds.INTERCEPTOR_ROUTE,
    # Those with bodies of responses.
    kinds.CONFIG_MAP,
    # Those with rights to scale ScaledWorkloads.
    kinds.NAMESPACE,
    kinds.ROLE_BINDING,
)
"""The kinds that the controller watches."""

KEDA_ROUTES = (kinds.HTTP_SCALED_OBJECT, kinds.INTERCEPTOR_ROUTE)
"""KEDA's kinds of routes. The ScaledWorkload of one has its name."""

DEBOUNCE_S = 0.05
"""How long changes of a resource's children are collected for one decision, in seconds."""

UNSETTLED_S = 1.5
"""How long the write of a status that stays Unknown is delayed, in seconds."""

STARTING_S = 10.0
"""How long such a write is delayed while a pod starts and reports no problem, in seconds; most pods are ready sooner."""

UNSTARTED_S = 600.0
"""How long such a write is delayed while no pod starts, in seconds; a thousand services take minutes."""

WorkKey = tuple[Kind, str, str]
"""A resource to decide about: its kind, namespace and name."""


def text_of(key: WorkKey) -> str:
    """The key in logs: "routes.serving.knative.dev default/hello"."""
    kind, namespace, name = key
    return f"{kind.resource} {namespace}/{name}"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A message about an object, which becomes an Event."""

    about: Object
    reason: str
    message: str
    warning: bool = False


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes for one resource.

    ``writes`` are executed in order, then ``notes``. ``again_after_s`` is the time in seconds until the next decision
    without a change, None for never. ``debounce_s`` is how long the writes wait for changes that may replace them.
    ``unconfirmed`` is the digest that some activators do not serve yet, or "". ``watch`` are the rollouts to judge, or
    None. ``unresolved`` are images whose digest is not known yet. ``is_scale``: the writes change nothing but the scale
    in a revision's status, and no other decision uses it.
    """

    writes: tuple[Write, ...] = ()
    notes: tuple[Note, ...] = ()
    again_after_s: float | None = None
    debounce_s: float = 0.0
    unconfirmed: str = ""
    watch: RolloutWatch | None = None
    unresolved: tuple[str, ...] = ()
    is_scale: bool = False


class WaitingWrites:
    """When each key's delayed writes are due."""

    def __init__(self) -> None:
        self._due_s: dict[WorkKey, float] = {}

    def rest_s(self, key: WorkKey, debounce_s: float, *, now_s: float) -> float:
        """Seconds until the writes are due; 0 to write now.

        The writes are due ``debounce_s`` after a planning; the earliest time of all plannings wins.
        """
        due_s = self._due_s[key] = min(self._due_s.get(key, math.inf), now_s + debounce_s)
        if due_s <= now_s:
            del self._due_s[key]
        return max(due_s - now_s, 0.0)


def patch_of(kind: Kind, existing: Object, changes: Object) -> tuple[Patch, ...]:
    """A merge patch with these changes, fenced by the resourceVersion; () without changes."""
    return _fenced(kind, existing, changes, subresource=None) if changes else ()


def status_patch(kind: Kind, existing: Object, status: Object) -> tuple[Patch, ...]:
    """A fenced patch that sets the status to ``status``; () if the status is already equal."""
    changes = merge_difference(nested(existing, "status") or {}, status)
    return _fenced(kind, existing, {"status": changes}, subresource="status") if changes else ()


def deletion_of(kind: Kind, existing: Object) -> Delete:
    """The deletion of an object, which fails if the object's version has changed."""
    return Delete(
        kind=kind,
        namespace=namespace_of(existing),
        name=name_of(existing),
        uid=uid_of(existing),
        resource_version=version_of(existing),
    )


def _fenced(
    kind: Kind, existing: Object, changes: Object, *, subresource: Literal["status"] | None
) -> tuple[Patch, ...]:
    metadata = {**changes.get("metadata", {}), "resourceVersion": version_of(existing)}
    return (
        Patch(
            kind=kind,
            namespace=namespace_of(existing),
            name=name_of(existing),
            patch={**changes, "metadata": metadata},
            subresource=subresource,
        ),
    )


def spec_changes(before: Object, wanted: Object) -> Object:
    """The parts of the wanted spec that differ from the current spec.

    Each part is complete, because a merge patch replaces lists.
    """
    parts = {key: value for key, value in wanted["spec"].items() if not _has_all(nested(before, "spec", key), value)}
    return {"spec": parts} if parts else {}


def _has_all(present: object, wanted: object) -> bool:
    """Whether an object has all wanted values. Additional values are defaults of the server."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(_has_all(present.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(present, list) and len(present) == len(wanted) and all(map(_has_all, present, wanted))
    return present == wanted
