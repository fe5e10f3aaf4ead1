"""The status of a revision: its readiness, its initial scale, and the failures of its pods.

Input: the revision, its Deployment and pods, and the scale that it starts with; output: the whole status. The status
reports only observations of pods. A revision that was ready stays ready while it has no pods or wakes up; only failing
pods make it unready. The condition Active is informational: a revision at scale 0 is ready.

Follows knative/serving 98e5ef90, pkg/apis/serving/v1/revision_lifecycle.go, which reads a PodAutoscaler instead.
"""

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from serving.controller.revisions.digests import Resolution, digests_of
from serving.controller.revisions.inprocess import missing_queue_proxy, proxy_wait_s
from serving.controller.values.conditions import Condition, ready_of, status_with
from serving.controller.values.naming import deployment_name
from serving.core.model.errors import UNREADABLE
from serving.core.model.event import OOM_KILLED_REASON, UNHEALTHY_REASON
from serving.core.model.knative import (
    BECAME_READY_ANNOTATIONS,
    CONDITION_LISTENS,
    CONDITION_READY,
    FAILURE_ANNOTATION,
    POLICY_FAILURE_ANNOTATION,
    QUEUE_PROXY,
    SHORTAGE_ANNOTATION,
    ConditionStatus,
    ServingState,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    is_being_deleted,
    is_controlled_by,
    is_true,
    name_of,
    nested,
    timestamp_s,
)
from serving.core.scaling.resolve import resolve_annotations
from serving.core.settings.autoscaler import HPA_CLASS, AutoscalerSettings

_WAITING_IS_NORMAL = {"", "ContainerCreating", "PodInitializing"}
_CRASH_LOOP = "CrashLoopBackOff"
# Shorter restart pauses are waited for, also by requests. The messages are ours and the kubelet's.
_SHORT_PAUSE_S = 2.0
_PAUSE = re.compile(r"(?:starts again in|back-off) (\d+(?:\.\d+)?) ?s\b")
# Consecutive exits of a proven revision that are tolerated: the pauses after them are short.
_EXITS_TOLERATED = 2
RESTARTED = "Restarted"
"""The condition of a ready revision whose containers restarted; each restart changes it."""
_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
# Reasons that every unready pod has, and which therefore explain nothing.
_UNINFORMATIVE = {"ContainersNotReady", "PodCompleted", ""}
_EXPLAINING = {"Initialized", "Ready"}
_MESSAGE_LENGTH_MAX = 4096
# The app and the queue-proxy.
_CONTAINERS_LEAST = 2

_EXITED_EARLY = "it exited with code 0 before it listened on $PORT"
_NO_QUEUE_PROXY = "NoQueueProxy"

_DEPLOYING = "Deploying"
_RESOLVING = "ResolvingDigests"
_DEADLINE = "ProgressDeadlineExceeded"


class HealthLayer(enum.StrEnum):
    """The condition that a failure makes False: the pods lack resources, or their containers fail.

    The values are condition types.
    """

    RESOURCES = "ResourcesAvailable"
    CONTAINER = "ContainerHealthy"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a revision's pods fail: the condition that becomes False, Knative's reason for it, and the message."""

    layer: HealthLayer
    reason: str
    message: str


def failure_of(pods: Sequence[Object], *, exits_tolerated: int = 0) -> Failure | None:
    """The failure of the oldest failed pod; None without failed pods.

    A container may restart ``exits_tolerated`` times before this is a failure.
    """
    for pod in sorted(pods, key=_age_order):
        failure = None if is_being_deleted(pod) else next(_failures(pod, exits_tolerated), None)
        if failure:
            return failure
    return None


def not_ready_because(pods: Sequence[Object]) -> str:
    """Why a pod is not ready, such as "readiness probe: connection refused"; "" if unknown."""
    for pod in sorted(pods, key=_age_order):
        # With further containers it is unknown which one listens.
        running = [*(nested(pod, "spec", "containers") or ()), *_native_sidecars(pod)]
        explaining = {*_EXPLAINING, CONDITION_LISTENS} if len(running) == _CONTAINERS_LEAST else _EXPLAINING
        for condition in nested(pod, "status", "conditions") or ():
            is_missing = condition.get("type") in explaining and condition.get("status") == "False"
            if is_missing and condition.get("reason", "") not in _UNINFORMATIVE and condition.get("message"):
                return _shortened(condition["message"])
    return ""


def _native_sidecars(pod: Object) -> list[Object]:
    return [
        container
        for container in nested(pod, "spec", "initContainers") or ()
        if container.get("restartPolicy") == "Always"
    ]


def _age_order(pod: Object) -> tuple[str, str]:
    return nested(pod, "metadata", "creationTimestamp") or "", name_of(pod)


def _failures(pod: Object, exits_tolerated: int) -> Iterator[Failure]:
    for condition in nested(pod, "status", "conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield _of_resources(condition.get("reason", ""), condition.get("message", ""))
    for status in nested(pod, "status", "initContainerStatuses") or ():
        # A container that depends on another service exits until that service runs; this is no failure.
        yield from _failures_of_container(status, max(exits_tolerated, status.get("restartCount", 0), 1))
    everybodys = nested(pod, "status", "containerStatuses") or ()
    statuses = [everybody for everybody in everybodys if everybody.get("name") != QUEUE_PROXY]
    for status in statuses:
        # A new revision's container that exits was never ready.
        is_first = not exits_tolerated and status.get("name") in _serving_containers(pod)
        yield from _failures_of_container(status, exits_tolerated, is_first=is_first)
    for status in everybodys:
        if status.get("name") == QUEUE_PROXY:
            # A queue-proxy that cannot start keeps the pod unready; a queue-proxy that exits is restarted.
            waiting = nested(status, "state", "waiting") or {}
            yield from _failures_of_container(
                {**status, "lastState": {}, "state": {"waiting": waiting}}, exits_tolerated
            )
    if not statuses and nested(pod, "status", "phase") == "Failed":
        yield _of_resources(nested(pod, "status", "reason") or "PodFailed", nested(pod, "status", "message") or "")


def _failures_of_container(status: Object, exits_tolerated: int, *, is_first: bool = False) -> Iterator[Failure]:
    waiting = nested(status, "state", "waiting") or {}
    # A container in back-off has failed by its last exit.
    terminated = nested(status, "state", "terminated") or nested(status, "lastState", "terminated")
    reason = waiting.get("reason", "")
    if reason == _CRASH_LOOP and exits_tolerated and _pause_s(waiting) < _SHORT_PAUSE_S:
        reason = ""
    is_loop = reason == _CRASH_LOOP or status.get("restartCount", 0) > exits_tolerated
    if terminated and (is_loop or not exits_tolerated):
        yield _exit(terminated, is_first=is_first)
    elif reason in _IMAGE_REASONS and "@" not in status.get("image", ""):
        message = f'Unable to fetch image "{status.get("image", "")}": {waiting.get("message", "")}'
        yield Failure(layer=HealthLayer.CONTAINER, reason="ContainerMissing", message=_shortened(message))
    elif reason == _CRASH_LOOP:
        yield _of_container(reason, waiting.get("message", "") or "the container keeps exiting")
    elif reason not in _WAITING_IS_NORMAL:
        yield _of_resources(reason, waiting.get("message", ""))


def _pause_s(waiting: Object) -> float:
    """The kubelet's pause before a restart, in seconds, from a container's waiting state; infinity if unstated."""
    pause = _PAUSE.search(waiting.get("message") or "")
    return float(pause[1]) if pause else math.inf


def _serving_containers(pod: Object) -> list[str]:
    containers = nested(pod, "spec", "containers") or ()
    apps = [container for container in containers if container.get("name") != QUEUE_PROXY]
    return [container.get("name", "") for container in apps if len(apps) == 1 or container.get("ports")]


def _exit(terminated: Object, *, is_first: bool) -> Failure:
    code = terminated.get("exitCode", 0)
    why = terminated.get("reason", "")
    lines = (terminated.get("message") or "").strip()
    if why == UNHEALTHY_REASON:
        return Failure(layer=HealthLayer.CONTAINER, reason=why, message=_shortened(lines))
    if why == OOM_KILLED_REASON:
        lines = f"out of memory: {lines}" if lines else "out of memory"
    elif code == 0 and is_first:
        # The container has not failed: without this message its last lines explain nothing.
        lines = f"{_EXITED_EARLY}; last lines of its log:\n{lines}" if lines else _EXITED_EARLY
    elif not lines:
        lines = "container exited with no error" if code == 0 else f"exit code {code}"
    return _of_container(f"ExitCode{code}", lines)


def _of_container(reason: str, lines: str) -> Failure:
    return Failure(layer=HealthLayer.CONTAINER, reason=reason, message=f"Container failed with: {_shortened(lines)}")


def _of_resources(reason: str, message: str) -> Failure:
    return Failure(layer=HealthLayer.RESOURCES, reason=reason, message=_shortened(message))


def _shortened(text: str) -> str:
    """The end of a long text, because the last lines of a log name the cause."""
    return text if len(text) <= _MESSAGE_LENGTH_MAX else "..." + text[-(_MESSAGE_LENGTH_MAX - 3) :]


class StartScale(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods that a starting revision needs.

    ``start_count`` pods must be ready once within ``progress_deadline_s``; later ``min_count`` pods suffice. With a
    ``start_count`` of 0 the revision is ready without a pod.
    """

    start_count: int
    min_count: int
    progress_deadline_s: float


def start_scale(annotations: Mapping[str, str], settings: AutoscalerSettings) -> StartScale:
    """The start scale of a revision: the larger of initial-scale and min-scale, limited by max-scale.

    Example: initial-scale 1 and min-scale 3 start 3 pods; with max-scale 2 also set, 2 pods.
    """
    # These bounds depend on neither concurrency nor reachability.
    spec = resolve_annotations(annotations, settings, container_concurrency=0, reachable=True)
    # A HorizontalPodAutoscaler ignores a Deployment with 0 replicas.
    least = 1 if spec.class_name == HPA_CLASS else 0
    wanted = max(spec.initial_scale, spec.min_scale)
    return StartScale(
        start_count=max(min(wanted, spec.max_scale) if spec.max_scale else wanted, least),
        min_count=spec.min_scale,
        progress_deadline_s=spec.progress_deadline_s,
    )


class RevisionChildren(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's Deployment (None before it exists) and its pods."""

    deployment: Object | None
    pods: Sequence[Object] = ()


def serving_state_of(revision: Object) -> ServingState:
    """``spec.servingState``; Active by default."""
    return ServingState(nested(revision, "spec", "servingState") or ServingState.ACTIVE)


def was_ready(revision: Object) -> bool:
    """Whether the revision was ever ready, by its status or, after a single machine's restart, its annotation."""
    is_ready = condition_of(revision, CONDITION_READY).get("status") == ConditionStatus.TRUE
    return is_ready or not BECAME_READY_ANNOTATIONS.isdisjoint(annotations_of(revision))


def ready_count_of(deployment: Object | None) -> int:
    """The ready replicas of a Deployment."""
    return int(nested(deployment, "status", "readyReplicas") or 0)


def with_ready_count(deployment: Object, pods: Iterable[Object]) -> Object:
    """A Deployment whose status has the number of the ready pods among its pods, for which the stored status is old."""
    ready = [pod for pod in pods if is_true(pod, "Ready") and not is_being_deleted(pod)]
    return {**deployment, "status": {**(deployment.get("status") or {}), "readyReplicas": len(ready)}}


def desired_count_of(deployment: Object | None) -> int:
    """The desired replicas of a Deployment."""
    return int(nested(deployment, "spec", "replicas") or 0)


def desired_status(
    revision: Object,
    children: RevisionChildren,
    scale: StartScale,
    *,
    now: str,
    refusal: str = "",
    resolution: Resolution | None = None,
) -> Object:
    """The desired status; ``now`` is the timestamp of changed conditions.

    ``refusal`` is why the server refuses the Deployment, or "". ``resolution`` are the registries' responses about
    images; None if no image must be resolved.
    """
    if resolution is not None and resolution.failure:
        why = _shortened(resolution.failure)
        dependencies = _failed(Failure(layer=HealthLayer.CONTAINER, reason="ContainerMissing", message=why))
    elif resolution is not None and resolution.is_pending:
        dependencies = [
            Condition(type=layer.value, status=ConditionStatus.UNKNOWN, reason=_RESOLVING) for layer in HealthLayer
        ]
    elif refusal:
        dependencies = _failed(Failure(layer=HealthLayer.RESOURCES, reason="CreationFailed", message=refusal))
    else:
        dependencies = _dependencies(revision, children, scale, now=now)
    informative = (
        _active(revision, children.deployment, scale),
        *_within_budget(revision),
        *_policy_in_force(revision),
        *_restarted(children.pods),
    )
    conditions = [*dependencies, ready_of(dependencies), *informative]
    before = nested(revision, "status") or {}
    # The same plan creates the Deployment, so its size needs no second write.
    begins_with = scale.start_count if serving_state_of(revision) is ServingState.ACTIVE else 0
    deployment = children.deployment
    changing = {
        **_digests(revision, children, before),
        "actualReplicas": ready_count_of(children.deployment),
        "desiredReplicas": begins_with if deployment is None else desired_count_of(deployment),
    }
    return status_with(revision, conditions, changing, now=now)


def _digests(revision: Object, children: RevisionChildren, before: Object) -> Object:
    """The image digests by container, from the Deployment, else from the first pod, else unchanged."""
    pod_spec = nested(children.deployment, "spec", "template", "spec") or {}
    statuses = {}
    for field, status_field in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        names = [container.get("name", "") for container in nested(revision, "spec", field) or ()]
        if len(before.get(status_field) or ()) == len(names):
            continue
        if names and len(pinned := digests_of(pod_spec, field, names)) == len(names):
            statuses[status_field] = [{"name": name, "imageDigest": pinned[name]} for name in names]
            continue
        for pod in children.pods:
            ids = {
                container.get("name"): container.get("imageID") or ""
                for container in nested(pod, "status", status_field) or ()
            }
            # As containerd writes it; docker adds a scheme.
            digests = [{"name": name, "imageDigest": ids.get(name, "").rpartition("//")[2]} for name in names]
            if all("@" in digest["imageDigest"] for digest in digests):
                statuses[status_field] = digests
                break
    return statuses


def _dependencies(revision: Object, children: RevisionChildren, scale: StartScale, *, now: str) -> list[Condition]:
    deployment = children.deployment
    if deployment and not is_controlled_by(deployment, revision):
        message = f'There is an existing Deployment "{deployment_name(name_of(revision))}" that we do not own.'
        return _failed(Failure(layer=HealthLayer.RESOURCES, reason="NotOwned", message=message))
    ready_count = ready_count_of(deployment)
    if ready_count >= max(1, scale.start_count) or (ready_count and was_ready(revision)):
        return _well()
    failure = _failure(revision, children, ready_count=ready_count)
    if failure:
        return _failed(failure)
    if was_ready(revision) or scale.start_count == 0:
        return _well()
    if serving_state_of(revision) is not ServingState.ACTIVE:
        # The revision was deactivated before it was ever ready; an earlier failure explains more.
        return _failed(_stored_failure(revision) or _never_started())
    return _deploying(children, scale, now=now)


def _failure(revision: Object, children: RevisionChildren, *, ready_count: int) -> Failure | None:
    """Why wanted pods do not become ready; None once a pod is ready."""
    wanted = serving_state_of(revision) is ServingState.ACTIVE and desired_count_of(children.deployment) > 0
    if not wanted or ready_count:
        return None
    for condition in nested(children.deployment, "status", "conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return Failure(
                layer=HealthLayer.RESOURCES, reason=condition.get("reason", ""), message=condition.get("message", "")
            )
    # An exit of a proven revision may be accidental; an exit of a new revision is a failure.
    return failure_of(children.pods, exits_tolerated=_EXITS_TOLERATED if was_ready(revision) else 0)


def _deploying(children: RevisionChildren, scale: StartScale, *, now: str) -> list[Condition]:
    """The conditions of a starting revision: Unknown until the deadline, then False."""
    wait_s = proxy_wait_s(scale.progress_deadline_s)
    missing = missing_queue_proxy(children.deployment, children.pods, wait_s=wait_s, now_s=timestamp_s(now))
    if missing:
        return _failed(Failure(layer=HealthLayer.CONTAINER, reason=_NO_QUEUE_PROXY, message=missing))
    why = not_ready_because(children.pods)
    progressing = condition_of(children.deployment or {}, "Progressing")
    has_expired = progressing.get("status") == "False" and progressing.get("reason") == _DEADLINE
    created_s = timestamp_s(nested(children.deployment, "metadata", "creationTimestamp"))
    now_s = timestamp_s(now)
    is_late = created_s is not None and now_s is not None and now_s - created_s > scale.progress_deadline_s
    if has_expired or is_late:
        message = why or progressing.get("message") or f"no pod was ready within {scale.progress_deadline_s:g} s"
        return _failed(Failure(layer=HealthLayer.RESOURCES, reason=_DEADLINE, message=message))
    return [
        Condition(type=HealthLayer.RESOURCES.value, status=ConditionStatus.UNKNOWN, reason=_DEPLOYING, message=why),
        Condition(type=HealthLayer.CONTAINER.value, status=ConditionStatus.UNKNOWN, reason=_DEPLOYING, message=why),
    ]


def _stored_failure(revision: Object) -> Failure | None:
    """The stored failure: in the status or, after a restart of a single machine, in the annotation; None without one."""
    for layer in HealthLayer:
        before = condition_of(revision, layer)
        if before.get("status") == ConditionStatus.FALSE:
            return Failure(layer=layer, reason=before.get("reason", ""), message=before.get("message", ""))
    try:
        return msgspec.json.decode(annotations_of(revision).get(FAILURE_ANNOTATION, ""), type=Failure)
    except UNREADABLE:
        return None


def failure_to_keep(revision: Object) -> str:
    """The failure to store in an annotation, if the revision was never ready; "" if there is none."""
    if serving_state_of(revision) is ServingState.ACTIVE or was_ready(revision):
        return ""
    failure = _stored_failure(revision)
    return "" if failure in (None, _never_started()) else msgspec.json.encode(failure).decode()


def _never_started() -> Failure:
    return Failure(layer=HealthLayer.RESOURCES, reason=_DEADLINE, message="Initial scale was never achieved")


def _well() -> list[Condition]:
    return [Condition(type=layer.value, status=ConditionStatus.TRUE) for layer in HealthLayer]


def _failed(failure: Failure) -> list[Condition]:
    """The conditions after a failure: one is False, the other Unknown."""
    return [
        Condition(type=layer.value, status=ConditionStatus.FALSE, reason=failure.reason, message=failure.message)
        if layer is failure.layer
        else Condition(type=layer.value, status=ConditionStatus.UNKNOWN, reason=failure.reason)
        for layer in HealthLayer
    ]


def _within_budget(revision: Object) -> Iterator[Condition]:
    """The condition that a revision's budget is too small, as reported by the autoscaler."""
    why = annotations_of(revision).get(SHORTAGE_ANNOTATION)
    status, reason = ConditionStatus.FALSE, "BudgetTooSmall"
    if why:
        yield Condition(type="WithinBudget", status=status, reason=reason, message=why, informative=True)


def _policy_in_force(revision: Object) -> Iterator[Condition]:
    """The condition that a revision's own policy is not in force, as reported by the autoscaler."""
    message = annotations_of(revision).get(POLICY_FAILURE_ANNOTATION)
    status, reason = ConditionStatus.FALSE, "PolicyFailed"
    if message:
        yield Condition(type="PolicyInForce", status=status, reason=reason, message=message, informative=True)


def _restarted(pods: Sequence[Object]) -> Iterator[Condition]:
    exits = 0
    for pod in pods:
        for status in nested(pod, "status", "containerStatuses") or ():
            is_down = (
                nested(status, "state", "terminated") or nested(status, "state", "waiting", "reason") == _CRASH_LOOP
            )
            exits += 0 if status.get("name") == QUEUE_PROXY else status.get("restartCount", 0) + bool(is_down)
    if exits:
        message = f"containers of its pods have ended {exits} times"
        yield Condition(type=RESTARTED, status=ConditionStatus.TRUE, message=message, informative=True)


def _active(revision: Object, deployment: Object | None, scale: StartScale) -> Condition:
    state = serving_state_of(revision)
    if state is not ServingState.ACTIVE:
        why = ("NoTraffic", "The target is not receiving traffic.")
        if state is ServingState.RETIRED:
            why = ("Retired", "The revision is retired and will be deleted.")
        return Condition(type="Active", status=ConditionStatus.FALSE, reason=why[0], message=why[1], informative=True)
    if ready_count_of(deployment) >= max(1, scale.min_count) and desired_count_of(deployment):
        return Condition(type="Active", status=ConditionStatus.TRUE, informative=True)
    if not was_ready(revision):
        return Condition(type="Active", status=ConditionStatus.UNKNOWN, reason=_DEPLOYING, informative=True)
    message = "Requests to the target are being buffered as resources are provisioned."
    return Condition(type="Active", status=ConditionStatus.UNKNOWN, reason="Queued", message=message, informative=True)
