"""Reads the fields of a Revision that affect its requests.

Input: one API object at a time. Output: a typed record. An invalid object gives ``NoData`` with the reason, never an
exception, so that other objects are still read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.knative import (
    CONDITION_READY,
    CONFIGURATION_LABEL,
    LEARNT_TARGET_ANNOTATION,
    ConditionStatus,
    RevisionKey,
    ServingState,
)
from serving.core.model.nodata import NoData
from serving.core.model.objects import Object, condition_of, kubelet_decides
from serving.core.model.scaledworkload import ColdStart, ScaledWorkloadSpec, as_revision, fallback_key
from serving.core.scaling.learnt.target import with_saved_target
from serving.core.scaling.resolve import resolve_annotations
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings

# Default of revision-timeout-seconds in Knative's config-defaults.
_TIMEOUT_DEFAULT_S = 300.0
# Reasons for Ready=False that resolve without a change of the revision: a node is added, or another pod ends.
_WAITS_FOR_ROOM = frozenset({"Unschedulable", "SchedulingGated"})


class ServedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The activator's view of a revision. Times are in seconds, None means no limit.

    ``container_concurrency`` 0 means no limit. ``target_concurrency`` is the autoscaler's target of requests in flight
    per pod, learnt or set. ``desired_count`` is the number of pods in its status.

    ``failure`` is the message of a Ready condition that is False because pods fail or none started in time. ``delay``
    is the message of a Ready condition that is False because no node has room for a pod; requests then wait.
    ``kubelet_decides``: the kubelet runs a readiness probe itself, so the queue-proxy alone cannot confirm readiness.
    ``configuration`` is the name of its Configuration, "" without one.
    """

    key: RevisionKey
    resource_version: str
    serving_state: ServingState
    target_concurrency: float
    uid: str = ""
    container_concurrency: int = 0
    timeout_s: float = _TIMEOUT_DEFAULT_S
    response_start_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    desired_count: int = 0
    failure: str | None = None
    delay: str | None = None
    configuration: str = ""
    kubelet_decides: bool = False
    is_workload: bool = False
    """Whether the revision is a ScaledWorkload, whose pods have no queue-proxy."""

    waiting_max: int | None = None
    """Maximum number of requests waiting for a pod of a ScaledWorkload; None is the activator's bound."""

    wait_max_s: float | None = None
    """Longest time that a request waits for a pod of a ScaledWorkload; None is the activator's bound."""

    cold_start: ColdStart = ColdStart()
    """The response of a ScaledWorkload without pods."""

    is_fallback: bool = False
    """Whether the revision is the fallback of a ScaledWorkload: a Service that is not scaled here."""

    @property
    def fallback(self) -> RevisionKey | None:
        """The key of the fallback; None without one."""
        return None if self.cold_start.fallback is None else fallback_key(self.key)

    def bounded(self, settings: ActivatorSettings) -> ActivatorSettings:
        """The activator's settings, with this revision's queue limits where they are lower."""
        if self.waiting_max is None and self.wait_max_s is None:
            return settings
        return msgspec.structs.replace(
            settings,
            queue_depth_max=min(settings.queue_depth_max, self.waiting_max or settings.queue_depth_max),
            queue_wait_max_s=min(settings.queue_wait_max_s, self.wait_max_s or settings.queue_wait_max_s),
        )


class _RevisionMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _RevisionSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    serving_state: ServingState = ServingState.ACTIVE
    container_concurrency: int | None = None
    timeout_seconds: float | None = None
    response_start_timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    containers: list[dict[str, Any]] | None = None


class _RevisionStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    desired_replicas: int | None = None


class _Revision(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _RevisionMetadata
    spec: _RevisionSpec = _RevisionSpec()
    status: _RevisionStatus = _RevisionStatus()


def revision_of(revision: Mapping[str, Any], scaling: AutoscalerSettings) -> ServedRevision | NoData:
    """Read a Revision object. ``scaling`` supplies the target that the revision's annotations do not set."""
    try:
        read = msgspec.convert(revision, _Revision)
    except msgspec.ValidationError as error:
        return NoData(missing=f"fields that can be read: {error}")
    spec, metadata = read.spec, read.metadata
    ready = condition_of(revision, CONDITION_READY)
    is_delayed = ready.get("reason") in _WAITS_FOR_ROOM
    message = _message_of(ready) if ready.get("status") == ConditionStatus.FALSE else None
    container_concurrency = max(0, spec.container_concurrency or 0)
    annotations = metadata.annotations or {}
    resolved = with_saved_target(
        resolve_annotations(annotations, scaling, container_concurrency=container_concurrency, reachable=True),
        annotations.get(LEARNT_TARGET_ANNOTATION, ""),
        total_max=scaling.adaptive.learnt_target_max,
    )
    return ServedRevision(
        key=(metadata.namespace, metadata.name),
        resource_version=metadata.resource_version,
        serving_state=spec.serving_state,
        uid=metadata.uid,
        container_concurrency=container_concurrency,
        timeout_s=spec.timeout_seconds or _TIMEOUT_DEFAULT_S,
        response_start_timeout_s=spec.response_start_timeout_seconds or None,
        idle_timeout_s=spec.idle_timeout_seconds or None,
        target_concurrency=resolved.target_concurrency,
        desired_count=max(0, read.status.desired_replicas or 0),
        failure=None if is_delayed else message,
        delay=message if is_delayed else None,
        configuration=(metadata.labels or {}).get(CONFIGURATION_LABEL, ""),
        kubelet_decides=kubelet_decides(spec.containers or ()),
    )


def workload_of(workload: Object, spec: ScaledWorkloadSpec, scaling: AutoscalerSettings) -> ServedRevision | NoData:
    """A ScaledWorkload with this spec, in the form of a revision. The kubelet alone decides on readiness."""
    served = revision_of(as_revision(workload, spec), scaling)
    if isinstance(served, NoData):
        return served
    return msgspec.structs.replace(
        served,
        kubelet_decides=True,
        is_workload=True,
        waiting_max=spec.max_pending_requests,
        wait_max_s=spec.wait_timeout_seconds,
        cold_start=spec.cold_start,
    )


def fallback_of(workload: ServedRevision) -> ServedRevision | None:
    """The fallback of a ScaledWorkload as a revision; None without one. Its requests never wait for a pod."""
    service = workload.cold_start.fallback
    if service is None:
        return None
    return msgspec.structs.replace(
        workload,
        key=fallback_key(workload.key),
        container_concurrency=0,
        # Its requests are listed beside those of the workload.
        configuration=workload.key[1],
        failure=f"the fallback Service {service.name} has no ready pod",
        delay=None,
        waiting_max=None,
        wait_max_s=None,
        cold_start=ColdStart(),
        is_fallback=True,
    )


def _message_of(condition: Object) -> str:
    return ": ".join(part for field in ("reason", "message") if (part := condition.get(field))) or "not ready"
