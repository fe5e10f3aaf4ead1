"""Waits for the daemons of an installation, or for its removal, and reports obstacles."""

from collections.abc import Sequence
from http import HTTPStatus

from serving.core.model.objects import Object
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.tree import path_of
from serving.tools.cli.services.waiting import until

_POLL_S = 0.5


def until_available(api: ApiClient, objects: Sequence[Object], *, timeout_s: float) -> None:
    """Wait until all Deployments of an installation are rolled out."""
    deployments = [resource for resource in objects if resource["kind"] == "Deployment"]

    def pending() -> str | None:
        states = (rollout_state(api.done("GET", path_of(deployment))) for deployment in deployments)
        return "; ".join(filter(None, states)) or None

    def late(state: str) -> str:
        lines = [f"  {line}" for deployment in deployments for line in obstacles(api, deployment)]
        return "\n".join([f"not available after {timeout_s:g} s: {state}", *lines])

    until(pending, "waiting for the daemons", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
    print_aside(
        f"{len(deployments)} daemons are available: {', '.join(deployment['metadata']['name'] for deployment in deployments)}"
    )


def until_removed(api: ApiClient, objects: Sequence[Object], *, timeout_s: float) -> None:
    """Wait until no object of an installation is left, and its namespace is deleted."""
    left = list(objects)

    def pending() -> str | None:
        while left and api.call("GET", path_of(left[-1]))[0] == HTTPStatus.NOT_FOUND:
            left.pop()
        return f"{left[-1]['kind'].lower()}/{left[-1]['metadata']['name']} is being deleted" if left else None

    def late(state: str) -> str:
        return f"not gone after {timeout_s:g} s: {state}"

    until(pending, "waiting until everything is removed", late=late, timeout_s=timeout_s, poll_s=_POLL_S)


def rollout_state(deployment: Object) -> str | None:
    """The part of a Deployment's rollout that is still pending; None if the rollout is complete."""
    name, asked_count = deployment["metadata"]["name"], deployment["spec"].get("replicas", 1)
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 1):
        return f"{name} is not observed yet"
    updated_count, count = status.get("updatedReplicas", 0), status.get("replicas", 0)
    if updated_count < asked_count:
        return f"{name} has updated {updated_count} of {asked_count} pods"
    if count > updated_count:
        return f"{name} removes {count - updated_count} old pods"
    available_count = status.get("availableReplicas", 0)
    if available_count < asked_count:
        return f"{name} has {available_count} of {asked_count} pods available"
    return None


def obstacle_of(pod: Object) -> str | None:
    """Why a pod is not ready: a container's or the scheduler's reason and message; None for a ready pod."""
    status = pod.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        detail = state.get("waiting") or state.get("terminated")
        if detail:
            return _state_text(detail)
    scheduled = conditions.get("PodScheduled", {})
    return _state_text(scheduled) if scheduled.get("status") == "False" else "it runs and is not ready"


def _state_text(state: Object) -> str:
    reason, message = state.get("reason") or "Unknown", " ".join((state.get("message") or "").split())
    return f"{reason}: {message}" if message else reason


def obstacles(api: ApiClient, deployment: Object) -> list[str]:
    """The reasons that pods of a Deployment are not ready, by pod name."""
    labels = deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    path = f"/api/v1/namespaces/{deployment['metadata']['namespace']}/pods"
    pods = api.peek(path, labelSelector=selector).get("items", ())
    return [f"{pod['metadata']['name']}: {reason}" for pod in pods if (reason := obstacle_of(pod))]
