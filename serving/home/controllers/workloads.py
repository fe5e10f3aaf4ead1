"""Decisions of the controller manager: pods and status of a Deployment, EndpointSlices of a Service.

Input: objects as the store has them; output: objects as they should be, and names of pods to delete. The module only
decides. A Deployment owns its pods directly, without a ReplicaSet. A label has the digest of a pod's template, so that
a changed template replaces the pod. Pods of a revision have no such label, because a revision never changes. Its
Deployment is created again after each restart, while its pods keep running.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import GUARDED_ANNOTATION, POD_TEMPLATE_HASH_LABEL, REVISION_LABEL
from serving.core.model.objects import Object, annotations_of, is_true, labels_of, nested
from serving.home.pods.diskbudget import is_evicted

CREATE_FAILED = "FailedCreate"
"""The reason in condition and Event of a Deployment whose pods the server refuses."""

_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
_HASH_LENGTH = 10
_SERVICE_NAME = "kubernetes.io/service-name"


Reach = Callable[[str, str, int], tuple[str, int] | None]
"""Returns where a container port is reached, by namespace and name of its pod; None if unknown."""


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods to create, and the names of pods to delete."""

    create_count: int
    delete_names: tuple[str, ...]


def plan_pods(deployment: Object, pods: Sequence[Object]) -> PodPlan:
    """Create missing pods, or delete surplus ones.

    Deletion order: unready pods, then those with the lowest deletion cost, then the youngest. Example: of 5 pods, one
    of them starting, 3 are wanted. The starting pod and the one with the lowest cost are deleted.
    """
    replicas = deployment["spec"].get("replicas")
    wanted = 1 if replicas is None else replicas
    living = list(filter(_is_living, pods))
    outdated = _outdated(deployment, living)
    if outdated:
        return _replacement(living, outdated, wanted=wanted)
    surplus = len(living) - wanted
    if surplus <= 0:
        return PodPlan(create_count=-surplus, delete_names=())
    youngest_first = sorted(living, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
    victims = sorted(youngest_first, key=lambda pod: (is_ready(pod), _deletion_cost(pod)))[:surplus]
    return PodPlan(create_count=0, delete_names=tuple(pod["metadata"]["name"] for pod in victims))


def _is_living(pod: Object) -> bool:
    """Whether a pod counts for its Deployment: it is neither being deleted nor evicted."""
    return not pod["metadata"].get("deletionTimestamp") and not is_evicted(pod)


def _outdated(deployment: Object, pods: Sequence[Object]) -> list[Object]:
    """Pods of an older template, including those created before the last ``kubectl rollout restart``."""
    restarted_at = annotations_of(deployment["spec"]["template"]).get(_RESTARTED_AT, "")
    guarded = annotations_of(deployment["spec"]["template"]).get(GUARDED_ANNOTATION, "")
    wanted = _template_hash(deployment)
    return [
        pod
        for pod in pods
        if labels_of(pod).get(POD_TEMPLATE_HASH_LABEL, wanted) != wanted
        or (restarted_at and annotations_of(pod).get(_RESTARTED_AT) != restarted_at)
        or annotations_of(pod).get(GUARDED_ANNOTATION, "") != guarded
    ]


def _template_hash(deployment: Object) -> str:
    """The digest of a user's template; "" for the Deployment of a revision."""
    if deployment["metadata"].get("ownerReferences"):
        return ""
    whole = msgspec.json.encode(deployment["spec"]["template"], order="deterministic")
    return hashlib.sha256(whole).hexdigest()[:_HASH_LENGTH]


def _replacement(living: Sequence[Object], outdated: Sequence[Object], *, wanted: int) -> PodPlan:
    """Replace outdated pods one after another; a new pod becomes ready before a ready one is removed.

    Example: if the only pod is outdated, a second pod starts, and the first is removed when the second is ready.
    """
    missing = wanted - (len(living) - len(outdated))
    spare_count = max(0, sum(map(is_ready, living)) - wanted)
    unready = [pod for pod in outdated if not is_ready(pod)]
    victims = [*unready, *[pod for pod in outdated if is_ready(pod)][:spare_count]]
    return PodPlan(
        create_count=max(0, min(missing, wanted + 1 - len(living))),
        delete_names=tuple(pod["metadata"]["name"] for pod in victims),
    )


def new_pod(deployment: Object) -> Object:
    """A pod from a Deployment's template; the store assigns the name, the scheduler the node."""
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    described, template_hash = template.get("metadata", {}), _template_hash(deployment)
    digest = {POD_TEMPLATE_HASH_LABEL: template_hash} if template_hash else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **described,
            "labels": {**(described.get("labels") or {}), **digest},
            "namespace": metadata["namespace"],
            "generateName": metadata["name"] + "-",
            "ownerReferences": [owner_of_pods(deployment)],
        },
        "spec": template["spec"],
    }


def owner_of_pods(deployment: Object) -> Object:
    """The owner reference of a Deployment's pods."""
    return {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
        "uid": deployment["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def adoptable(deployment: Object, pods: Iterable[Object]) -> list[Object]:
    """Selected pods without an owner, to adopt: they existed before the Deployment."""
    wanted = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
    return [
        pod
        for pod in pods
        if wanted
        and wanted.items() <= (pod["metadata"].get("labels") or {}).items()
        and not pod["metadata"].get("ownerReferences")
        and not pod["metadata"].get("deletionTimestamp")
    ]


def deployment_status(deployment: Object, pods: Sequence[Object], *, refusal: str = "") -> Object:
    """The status of a Deployment from its pods, in Kubernetes' words.

    ``refusal`` is why the server refuses its next pod, "" if it does not.
    """
    living = list(filter(_is_living, pods))
    ready_count = sum(map(is_ready, living))
    wanted = deployment["spec"].get("replicas")
    is_available = ready_count >= (1 if wanted is None else wanted)
    status: dict[str, Any] = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": len(living),
        "updatedReplicas": len(living) - len(_outdated(deployment, living)),
        "readyReplicas": ready_count,
        "availableReplicas": ready_count,
        "unavailableReplicas": len(living) - ready_count,
    }
    before = {condition["type"]: condition for condition in (deployment.get("status") or {}).get("conditions") or ()}
    reason = "MinimumReplicasAvailable" if is_available else "MinimumReplicasUnavailable"
    condition = {"type": "Available", "status": str(is_available), "reason": reason}
    conditions = [condition]
    if refusal:
        conditions.append({"type": "ReplicaFailure", "status": "True", "reason": CREATE_FAILED, "message": refusal})
    status["conditions"] = [_with_earlier_time(before.get(condition["type"]), condition) for condition in conditions]
    return status


def desired_slices(service: Object, pods: Iterable[Object], *, reach: Reach) -> list[Object]:
    """The EndpointSlices of a Service: its selected pods with a ``listed_address``, and whether they are ready.

    The endpoint of a revision's pod is its queue-proxy. For any other pod, ``reach`` returns the address of a container
    port. Pods with different port numbers are in separate slices, as in Kubernetes. The first slice exists even without
    pods.
    """
    selected = [pod for pod in pods if selects(service, pod) and listed_address(pod)]
    ports = [
        (entry.get("name", ""), entry.get("targetPort", entry["port"])) for entry in service["spec"].get("ports", ())
    ]
    as_written = tuple(ports)
    groups: dict[tuple[tuple[str, int | str], ...], list[Object]] = {}
    for pod in sorted(selected, key=lambda pod: str(pod["metadata"]["name"])):
        if REVISION_LABEL in labels_of(pod):
            groups.setdefault(as_written, []).append(_endpoint(pod, pod["status"]["podIP"]))
            continue
        numbers = [(name, _container_port(pod, target)) for name, target in ports]
        reached = [(name, _place(pod, number, reach)) for name, number in numbers if number is not None]
        if reached:
            own = tuple((name, port) for name, (_, port) in reached)
            groups.setdefault(own, []).append(_endpoint(pod, reached[0][1][0]))
    prefix = f"{service['metadata']['name']}-local"
    slices = [_slice(service, prefix, as_written, endpoints=groups.pop(as_written, []))]
    for numbered, endpoints in sorted(groups.items()):
        name = "-".join((prefix, *(str(port) for _, port in numbered)))
        slices.append(_slice(service, name, numbered, endpoints=endpoints))
    return slices


def _slice(service: Object, name: str, ports: Iterable[tuple[str, int | str]], *, endpoints: list[Object]) -> Object:
    metadata = service["metadata"]
    protocols = {
        port.get("name", ""): {"appProtocol": port["appProtocol"]}
        for port in service["spec"].get("ports", ())
        if port.get("appProtocol")
    }
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {**metadata.get("labels", {}), _SERVICE_NAME: metadata["name"]},
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        # A named port is resolved by pods; a slice without pods has none.
        "ports": [
            {"name": name, "port": port, "protocol": "TCP", **protocols.get(name, {})}
            for name, port in ports
            if isinstance(port, int)
        ],
        "endpoints": endpoints,
    }


def _container_port(pod: Object, target: int | str) -> int | None:
    """A target port as a number; None if no container has a port with this name."""
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == target:
                return int(port["containerPort"])
    return None


def _place(pod: Object, port: int, reach: Reach) -> tuple[str, int]:
    """The address and port at which a container port is reached; the pod's own address if ``reach`` returns None."""
    metadata = pod["metadata"]
    return reach(metadata["namespace"], metadata["name"], port) or (pod["status"]["podIP"], port)


def selects(service: Object, pod: Object) -> bool:
    """Whether a Service's selector matches a pod; an empty selector matches none."""
    selector: Mapping[str, str] = service["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def listed_address(pod: Object) -> str | None:
    """The address of a pod that slices list; None if it has none, or is a revision's pod and is being deleted.

    Activators send such a pod no request, so its end needs no further write of its slice.
    """
    if REVISION_LABEL in labels_of(pod) and pod["metadata"].get("deletionTimestamp"):
        return None
    return nested(pod, "status", "podIP") or None


def is_ready(pod: Object) -> bool:
    """Whether a pod's condition Ready is true."""
    return is_true(pod, "Ready")


def _endpoint(pod: Object, address: str) -> Object:
    is_going = bool(pod["metadata"].get("deletionTimestamp"))
    serves = is_ready(pod)
    return {
        "addresses": [address],
        "conditions": {"ready": serves and not is_going, "serving": serves, "terminating": is_going},
        "targetRef": {
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "uid": pod["metadata"]["uid"],
        },
        "nodeName": nested(pod, "spec", "nodeName") or "",
    }


def _deletion_cost(pod: Object) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(_DELETION_COST, "0")
    return int(text) if text.lstrip("+-").isdecimal() else 0


def _with_earlier_time(before: Object | None, now: Object) -> Object:
    """The condition ``before`` if only its time differs from ``now``, else the condition ``now``."""
    if before and all(before.get(key) == value for key, value in now.items()):
        return before
    return now
