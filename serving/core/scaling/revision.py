"""Reads Revisions, their Deployments and Pods into small records for the autoscaler.

Input: API objects. Output: small records, or None for objects that this autoscaler does not scale. The API server
rejects invalid annotations; existing invalid annotations are ignored here.
"""

import enum
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.model.event import OOM_KILLED_REASON
from serving.core.model.knative import (
    BECAME_READY_ANNOTATIONS,
    CONDITION_DORMANT,
    CONFIGURATION_LABEL,
    CONTESTED_ANNOTATION,
    LEARNT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    POD_DELETION_COST_ANNOTATION,
    POLICY_FAILURE_ANNOTATION,
    REVISION_LABEL,
    ROUTING_STATE_LABEL,
    SAVINGS_ANNOTATION,
    SERVICE_LABEL,
    SERVING_STATE_ANNOTATION,
    SHORTAGE_ANNOTATION,
    TRAFFIC_PATH_ANNOTATION,
    RevisionKey,
    ServingState,
    TargetMode,
    TrafficPath,
)
from serving.core.model.objects import Object, annotations_of, condition_of, key_of
from serving.core.model.quantity import MEMORY_ASSUMED_BYTES, Resources, resources_of
from serving.core.model.scaledworkload import (
    NAMESPACE_NOT_LABELLED,
    SCALED_ALONE,
    TARGET_RESOLVED,
    ScaledWorkloadSpec,
    WorkloadTarget,
    as_revision,
)
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import CLASSIC_CLASS, KPA_CLASS, AutoscalerSettings

_UNREACHABLE = "reserve"
# Reasons of a waiting container without a fault; None is the reason of a container that does not wait.
_STARTING = (None, "ContainerCreating", "PodInitializing")
_CRC_RANGE = 2**32
_OURS = (KPA_CLASS, CLASSIC_CLASS)
Group = tuple[str, str]
"""The namespace and name of a Configuration, or of a revision without a Configuration."""


class ServingContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The container of a revision that receives requests."""

    name: str = ""

    limits: Resources = Resources()
    """The container's limits; a missing cpu limit is replaced by the request, which is guaranteed.

    None: neither is set.
    """


def serving_container(containers: Sequence[Mapping[str, Any]]) -> ServingContainer:
    """The only container, or the container with a port."""
    container = next((listed for listed in containers if listed.get("ports")), containers[0] if containers else {})
    resources = container.get("resources") or {}
    limits, requests = resources_of(resources.get("limits")), resources_of(resources.get("requests"))
    return ServingContainer(
        name=str(container.get("name", "")),
        limits=Resources(cpu_m=limits.cpu_m or requests.cpu_m, memory_bytes=limits.memory_bytes),
    )


def memory_of(containers: Sequence[Mapping[str, Any]]) -> int:
    """Memory requested by all containers, in bytes.

    A container without a request counts with its limit, or with 200 MiB if it has no limit, as in node scores.
    """
    total = 0
    for container in containers:
        resources = container.get("resources") or {}
        requested, limit = resources_of(resources.get("requests")), resources_of(resources.get("limits"))
        total += requested.memory_bytes or limit.memory_bytes or MEMORY_ASSUMED_BYTES
    return total


class ScaledRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision, or a ScaledWorkload as a revision, to scale. ``was_ready``: its initial scale of pods was ready once.

    Fields "as written last" are results of the autoscaler that it stored in the object, and reads again after a
    restart.
    """

    key: RevisionKey
    uid: str
    resource_version: str
    serving_state: ServingState
    class_name: str
    container_concurrency: int
    was_ready: bool
    spec: ScalingSpec
    is_failed: bool = False
    """Whether the condition Ready is False."""

    configuration: str = ""
    """The name of the Configuration; "" without one."""

    service: str = ""
    """The name of the Service; "" without one."""

    path: TrafficPath = TrafficPath.PROXY
    """The traffic path written last."""

    anticipated: AnticipatedPods | None = None
    """The anticipated pods published last; None if none."""

    learnt: str = ""
    """The adaptive policy's learnt state, as written last; "" if none."""

    savings: str = ""
    """The hourly costs of both policies, as written last; "" if none."""

    learnt_target: str = ""
    """The learnt target, as written last; "" if none."""

    pod_bytes: int = 0
    """Memory requested by one pod, in bytes, by ``memory_of``."""

    shortage: str = ""
    """Why the budget is too small, as written last; "" if it is large enough."""

    policy_failure: str = ""
    """Why Knative's policy replaces the configured one, as written last; "" if it does not."""

    container: ServingContainer = ServingContainer()
    """The container that receives requests, with its limits; name or limits are empty if the revision has none."""

    is_workload: bool = False
    """Whether the object is a ScaledWorkload, whose load only activators report."""

    has_state: bool = True
    """Whether its serving state was ever written.

    A new ScaledWorkload has none. It counts as idle while its target is at zero.
    """

    is_permitted: bool = True
    """Whether the target of a ScaledWorkload may be scaled in its namespace."""

    is_contested: bool = False
    """Whether another controller scales the target of a ScaledWorkload."""

    contested: str = ""
    """The other controller that scales the target, as written last; "" if none."""

    @property
    def depends_on_usage(self) -> bool:
        """Whether cpu and memory usage may change the revision's target. The mode protect requires limits too."""
        mode, limits = self.spec.target_mode, self.container.limits
        has_limit = limits.cpu_m is not None or limits.memory_bytes is not None
        return mode is TargetMode.USE or (mode is TargetMode.PROTECT and has_limit)


class ScaledDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """The Deployment of a revision, or the target of a ScaledWorkload.

    ``replica_count`` is its scale; unset means 1.
    """

    name: str
    key: RevisionKey
    revision_uid: str
    replica_count: int
    resource_version: str
    target: WorkloadTarget | None = None
    """The target of a ScaledWorkload; None for a revision's Deployment."""


class Trouble(enum.StrEnum):
    """Why a pod cannot start: no node has room (pending), or a container fails or waits for its restart (failing)."""

    PENDING = "pending"
    FAILING = "failing"


class ScaledPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a revision. A pod being deleted (``is_ending``) is never ready.

    Pods with the lowest ``deletion_cost`` (an annotation, "" if unset) are removed first. ``phase`` is Pending,
    Running, Succeeded or Failed. ``trouble`` is why the pod cannot start; None if nothing prevents it, or if the pod is
    ready or terminating. ``oom_kill_count`` counts the OOM kills of its containers; 0 unless the last termination was
    an OOM kill. ``restart_count`` counts their restarts. ``is_dormant``: its app sleeps.
    """

    name: str
    key: RevisionKey
    is_ready: bool
    is_ending: bool
    deletion_cost: str
    phase: str = "Running"
    trouble: Trouble | None = None
    oom_kill_count: int = 0
    restart_count: int = 0
    is_dormant: bool = False


def revision_of(resource: Mapping[str, Any], settings: AutoscalerSettings) -> ScaledRevision | None:
    """Read a Revision; None if it is being deleted, or scaled by another autoscaler such as an HPA."""
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    container_concurrency = int(spec.get("containerConcurrency") or 0)
    labels = metadata.get("labels") or {}
    scaling = resolve_annotations(
        annotations,
        settings,
        container_concurrency=container_concurrency,
        reachable=labels.get(ROUTING_STATE_LABEL) != _UNREACHABLE,
    )
    if metadata.get("deletionTimestamp") or scaling.class_name not in _OURS:
        return None
    return ScaledRevision(
        key=key_of(resource),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        serving_state=ServingState(spec.get("servingState") or ServingState.ACTIVE),
        class_name=scaling.class_name,
        container_concurrency=container_concurrency,
        was_ready=not BECAME_READY_ANNOTATIONS.isdisjoint(annotations) or _has_status(resource, "Ready", "True"),
        is_failed=_has_status(resource, "Ready", "False"),
        spec=scaling,
        configuration=labels.get(CONFIGURATION_LABEL, ""),
        service=labels.get(SERVICE_LABEL, ""),
        path=_written_path(annotations),
        anticipated=anticipated_pods_of(annotations),
        learnt=annotations.get(LEARNT_ANNOTATION, ""),
        savings=annotations.get(SAVINGS_ANNOTATION, ""),
        learnt_target=annotations.get(LEARNT_TARGET_ANNOTATION, ""),
        shortage=annotations.get(SHORTAGE_ANNOTATION, ""),
        policy_failure=annotations.get(POLICY_FAILURE_ANNOTATION, ""),
        contested=annotations.get(CONTESTED_ANNOTATION, ""),
        pod_bytes=memory_of(spec.get("containers") or ()),
        container=serving_container(spec.get("containers") or ()),
    )


def workload_of(resource: Object, spec: ScaledWorkloadSpec, settings: AutoscalerSettings) -> ScaledRevision | None:
    """Read a ScaledWorkload with this spec as a scaled revision; None if it is being deleted.

    The workload already runs, so it needs no initial scale. It has no condition about failed pods.
    """
    revision = revision_of(as_revision(resource, spec), settings)
    if revision is None:
        return None
    is_contested = _has_status(resource, SCALED_ALONE, "False")
    return msgspec.structs.replace(
        revision,
        is_workload=True,
        was_ready=True,
        is_contested=is_contested,
        is_permitted=condition_of(resource, TARGET_RESOLVED).get("reason") != NAMESPACE_NOT_LABELLED,
        has_state=SERVING_STATE_ANNOTATION in annotations_of(resource),
    )


def target_of(resource: Object, key: RevisionKey, target: WorkloadTarget, *, uid: str) -> ScaledDeployment:
    """Read the target of a ScaledWorkload with this key and uid, of any kind with ``spec.replicas``."""
    replicas = (resource.get("spec") or {}).get("replicas")
    return ScaledDeployment(
        name=target.name,
        key=key,
        revision_uid=uid,
        replica_count=1 if replicas is None else int(replicas),
        resource_version=resource["metadata"].get("resourceVersion", ""),
        target=target,
    )


def deployment_of(resource: Mapping[str, Any]) -> ScaledDeployment | None:
    """Read the Deployment of a revision; None for other Deployments, even if they have the label."""
    metadata = resource["metadata"]
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    owners = metadata.get("ownerReferences") or ()
    uid = next(
        (owner.get("uid", "") for owner in owners if (owner.get("kind"), owner.get("name")) == ("Revision", revision)),
        None,
    )
    if revision is None or uid is None:
        return None
    replicas = (resource.get("spec") or {}).get("replicas")
    return ScaledDeployment(
        name=metadata["name"],
        key=(metadata.get("namespace", ""), revision),
        revision_uid=uid,
        replica_count=1 if replicas is None else int(replicas),
        resource_version=metadata.get("resourceVersion", ""),
    )


def pod_of(resource: Mapping[str, Any], *, workload: str | None = None) -> ScaledPod | None:
    """Read a Pod of a revision (by its label) or of a ScaledWorkload; None for other pods."""
    metadata = resource["metadata"]
    revision = workload or (metadata.get("labels") or {}).get(REVISION_LABEL)
    if revision is None:
        return None
    is_ending = bool(metadata.get("deletionTimestamp"))
    is_ready = not is_ending and _has_status(resource, "Ready", "True")
    return ScaledPod(
        name=metadata["name"],
        key=(metadata.get("namespace", ""), revision),
        is_ready=is_ready,
        is_ending=is_ending,
        deletion_cost=(metadata.get("annotations") or {}).get(POD_DELETION_COST_ANNOTATION, ""),
        phase=str((resource.get("status") or {}).get("phase") or "Pending"),
        trouble=None if is_ready or is_ending else _trouble(resource.get("status") or {}),
        oom_kill_count=oom_kill_count_of(resource.get("status") or {}),
        restart_count=_restart_count(resource.get("status") or {}),
        is_dormant=is_ready and _has_status(resource, CONDITION_DORMANT, "True"),
    )


def _trouble(status: Mapping[str, Any]) -> Trouble | None:
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            return Trouble.PENDING
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _STARTING:
            return Trouble.FAILING
    return None


def _restart_count(status: Mapping[str, Any]) -> int:
    return sum(int(container.get("restartCount") or 0) for container in status.get("containerStatuses") or ())


def oom_kill_count_of(status: Mapping[str, Any]) -> int:
    """Count the OOM kills in a pod's status.

    Counts all restarts of a container whose last termination was an OOM kill, and each OOM kill without a restart.
    """
    count = 0
    for container_status in status.get("containerStatuses") or ():
        restarts = int(container_status.get("restartCount") or 0)
        for state, ends in (("state", restarts + 1), ("lastState", restarts)):
            if ((container_status.get(state) or {}).get("terminated") or {}).get("reason") == OOM_KILLED_REASON:
                count += ends
                break
    return count


def turn_ratio(key: RevisionKey) -> float:
    """When in each period a revision is decided on: 0 is the beginning of the period, 0.5 its middle.

    The ratio depends on the key, so that the decisions on many revisions are spread over the period.
    """
    return zlib.crc32("/".join(key).encode()) / _CRC_RANGE


def _has_status(resource: Mapping[str, Any], condition: str, status: str) -> bool:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(entry.get("type") == condition and entry.get("status") == status for entry in conditions)


def _written_path(annotations: Mapping[str, str]) -> TrafficPath:
    """The traffic path written last; proxy if none was written."""
    is_serve = annotations.get(TRAFFIC_PATH_ANNOTATION) == TrafficPath.SERVE
    return TrafficPath.SERVE if is_serve else TrafficPath.PROXY


def group_of(key: RevisionKey, revision: ScaledRevision | None) -> Group:
    """The group of a revision: its Configuration, or the revision itself if unknown."""
    return key if revision is None or not revision.configuration else (key[0], revision.configuration)
