"""Why the pods of a revision do not become ready, read from their status.

Input: pods, none of which is ready; output: a ``Failure`` with Knative's reason and a message with the last lines of the log,
or None while they may still become ready. A failing readiness probe is no failure yet: an app may take its time, until the
revision's deadline. Follows knative/serving 98e5ef90, pkg/reconciler/revision/reconcile_resources.go, which looks at one pod;
this module reports the first failed pod, and reports a container that cannot start at once instead of after the deadline. An image
named by its digest is not resolved before it is pulled: its failure has the reason of the pod.
"""

import enum
from collections.abc import Iterator, Sequence

import msgspec

from serving.model.objects import Object, is_being_deleted, name_of, nested

_QUEUE_PROXY = "queue-proxy"
_WAITING_IS_NORMAL = {"", "ContainerCreating", "PodInitializing"}
_CRASH_LOOP = "CrashLoopBackOff"
_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
# Reasons that every unready pod has: they explain nothing.
_NO_NEWS = {"ContainersNotReady", "PodCompleted", ""}
_EXPLAINING = {"Initialized", "Ready"}
_MESSAGE_LENGTH_MAX = 4096


class HealthLayer(enum.StrEnum):
    """The condition that a failure belongs to; the values are condition types."""

    RESOURCES = "ResourcesAvailable"
    CONTAINER = "ContainerHealthy"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure with Knative's reason."""

    layer: HealthLayer
    reason: str
    message: str


def failure_of(pods: Sequence[Object], *, exits_tolerated: int = 0) -> Failure | None:
    """The failure of the oldest failed pod. A container with at most ``exits_tolerated`` restarts has not failed."""
    for pod in sorted(pods, key=_age_order):
        found = None if is_being_deleted(pod) else next(_failures(pod, exits_tolerated), None)
        if found:
            return found
    return None


def not_ready_because(pods: Sequence[Object]) -> str:
    """Why a pod is not ready, as in "readiness probe: connection refused", or which init containers run; "" if no pod says."""
    for pod in sorted(pods, key=_age_order):
        for condition in nested(pod, "status", "conditions") or ():
            is_missing = condition.get("type") in _EXPLAINING and condition.get("status") == "False"
            if is_missing and condition.get("reason", "") not in _NO_NEWS and condition.get("message"):
                return _shortened(condition["message"])
    return ""


def _age_order(pod: Object) -> tuple[str, str]:
    return nested(pod, "metadata", "creationTimestamp") or "", name_of(pod)


def _failures(pod: Object, exits_tolerated: int) -> Iterator[Failure]:
    for condition in nested(pod, "status", "conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield _of_resources(condition.get("reason", ""), condition.get("message", ""))
    for status in nested(pod, "status", "initContainerStatuses") or ():
        # One that waits for another service ends again and again until that is there: each end is no failure.
        yield from _failures_of_container(status, max(exits_tolerated, status.get("restartCount", 0), 1))
    everybodys = nested(pod, "status", "containerStatuses") or ()
    statuses = [one for one in everybodys if one.get("name") != _QUEUE_PROXY]
    for status in statuses:
        yield from _failures_of_container(status, exits_tolerated)
    for status in everybodys:
        if status.get("name") == _QUEUE_PROXY:
            # A queue-proxy that cannot start keeps the pod unready; one that exited is restarted.
            waiting = nested(status, "state", "waiting") or {}
            yield from _failures_of_container(
                {**status, "lastState": {}, "state": {"waiting": waiting}}, exits_tolerated
            )
    if not statuses and nested(pod, "status", "phase") == "Failed":
        yield _of_resources(nested(pod, "status", "reason") or "PodFailed", nested(pod, "status", "message") or "")


def _failures_of_container(status: Object, exits_tolerated: int) -> Iterator[Failure]:
    waiting = nested(status, "state", "waiting") or {}
    # A container in back-off has failed by its last exit.
    terminated = nested(status, "state", "terminated") or nested(status, "lastState", "terminated")
    reason = waiting.get("reason", "")
    is_loop = reason == _CRASH_LOOP or status.get("restartCount", 0) > exits_tolerated
    if terminated and (is_loop or not exits_tolerated):
        yield _exit(terminated)
    elif reason in _IMAGE_REASONS and "@" not in status.get("image", ""):
        message = f'Unable to fetch image "{status.get("image", "")}": {waiting.get("message", "")}'
        yield Failure(layer=HealthLayer.CONTAINER, reason="ContainerMissing", message=_shortened(message))
    elif reason == _CRASH_LOOP:
        yield _of_container(reason, waiting.get("message", "") or "the container keeps exiting")
    elif reason not in _WAITING_IS_NORMAL:
        yield _of_resources(reason, waiting.get("message", ""))


def _exit(terminated: Object) -> Failure:
    code = terminated.get("exitCode", 0)
    why = terminated.get("reason", "")
    lines = (terminated.get("message") or "").strip()
    if why == "OOMKilled":
        lines = f"out of memory: {lines}" if lines else "out of memory"
    if not lines:
        lines = "container exited with no error" if code == 0 else f"exit code {code}"
    return _of_container(f"ExitCode{code}", lines)


def _of_container(reason: str, lines: str) -> Failure:
    return Failure(layer=HealthLayer.CONTAINER, reason=reason, message=f"Container failed with: {_shortened(lines)}")


def _of_resources(reason: str, message: str) -> Failure:
    return Failure(layer=HealthLayer.RESOURCES, reason=reason, message=_shortened(message))


def _shortened(text: str) -> str:
    """The end of a long text: the last lines of a log name the cause."""
    return text if len(text) <= _MESSAGE_LENGTH_MAX else "..." + text[-(_MESSAGE_LENGTH_MAX - 3) :]
