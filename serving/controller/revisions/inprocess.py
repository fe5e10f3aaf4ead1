"""Detects apps in a cluster that should run their own queue-proxy, but do not.

A pod's status does not show whether its image starts ``serving.asgi``. A container without it looks like one with a
slow app: it runs, and its readiness port does not respond. The container is therefore reported only after some time,
and may still become ready later.
"""

from collections.abc import Sequence

from serving.controller.revisions.sidecar import proxy_container
from serving.core.model.knative import QUEUE_PROXY, QUEUE_PROXY_ANNOTATION, QueueProxyPlace
from serving.core.model.objects import Object, nested, timestamp_s

_SHARE = 0.1
_WAIT_MIN_S = 10.0


def proxy_wait_s(progress_deadline_s: float) -> float:
    """Seconds before a revision reports that an app has not started its queue-proxy.

    This is a tenth of the progress deadline, but at least 10 s.
    """
    return max(progress_deadline_s * _SHARE, _WAIT_MIN_S)


def is_own_proxy(deployment: Object | None) -> bool:
    """Whether the apps of a Deployment must run the queue-proxy in their own process."""
    return bool(proxy_container(deployment or {}).get("name", QUEUE_PROXY) != QUEUE_PROXY)


def missing_queue_proxy(
    deployment: Object | None, pods: Sequence[Object], *, wait_s: float, now_s: float | None
) -> str:
    """The message for a pod whose app has not started the queue-proxy after ``wait_s`` seconds; "" otherwise."""
    if now_s is None or not is_own_proxy(deployment):
        return ""
    name = proxy_container(deployment or {})["name"]
    statuses = (
        container_status for pod in pods for container_status in nested(pod, "status", "containerStatuses") or ()
    )
    for status in statuses:
        started_s = timestamp_s(nested(status, "state", "running", "startedAt"))
        is_unready = status.get("name") == name and not status.get("ready")
        if is_unready and started_s is not None and now_s - started_s > wait_s:
            return (
                f"container {name} runs, and no queue-proxy in its process was ready within {wait_s:g} s. Annotation "
                f"{QUEUE_PROXY_ANNOTATION}={QueueProxyPlace.IN_PROCESS} needs a command such as `python -m serving.asgi MODULE:APP`, "
                "which listens on $HOST:$PORT; without the annotation the queue-proxy is a container beside the app"
            )
    return ""
