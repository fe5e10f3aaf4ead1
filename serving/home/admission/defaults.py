"""Defaults that depend on other fields or on metadata, and so cannot be in a schema.

Input: the spec of an object whose schema defaults are filled in, and the kind; the spec is changed in place. Filling in
twice changes nothing. Follows knative/serving 98e5ef90, pkg/apis/serving/v1 and v1beta1, ``*_defaults.go``.
"""

from typing import Any

from serving.core.model.objects import Object, namespace_of, object_at, objects_at
from serving.core.model.ports import CONTAINER_PORT
from serving.net.cluster.kinds import CONFIGURATION, DOMAIN_MAPPING, REVISION, ROUTE, SERVING_SERVICE, Kind

_CONTAINER = "user-container"
_TIMEOUT_S = 300
_HANDLERS = ("tcpSocket", "httpGet", "exec", "grpc")


def fill_in_defaults(kind: Kind, whole: Object, spec: dict[str, Any]) -> None:
    """Fill in the defaults of a spec."""
    if kind in {SERVING_SERVICE, CONFIGURATION}:
        _fill_pod(object_at(object_at(spec, "template"), "spec"))
    if kind == REVISION:
        _fill_pod(spec)
    if kind in {SERVING_SERVICE, ROUTE}:
        _fill_traffic(kind, spec)
    reference = object_at(spec, "ref")
    if kind == DOMAIN_MAPPING and reference and not reference.get("namespace"):
        reference["namespace"] = namespace_of(whole) or "default"


def with_requests(pod: Object) -> Object:
    """Return a Pod in which each missing request equals its limit, as in core/v1 defaulting (``SetDefaults_Pod``)."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    filled = {
        key: [_with_requests(container) for container in objects_at(spec, key)]
        for key in ("containers", "initContainers")
    }
    changed = {key: new for key, new in filled.items() if new != spec.get(key, [])}
    return {**pod, "spec": {**spec, **changed}} if changed else pod


def _with_requests(container: dict[str, Any]) -> dict[str, Any]:
    resources = object_at(container, "resources")
    limits = object_at(resources, "limits")
    if not limits.keys() - object_at(resources, "requests").keys():
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **object_at(resources, "requests")}}}


def _fill_pod(pod: dict[str, Any]) -> None:
    if pod.get("timeoutSeconds") == 0:
        # Go clients send 0 for omitted fields.
        pod["timeoutSeconds"] = _TIMEOUT_S
    containers = objects_at(pod, "containers")
    taken = {container.get("name") for container in containers}
    spare = (name for number in range(len(containers) * 2) if (name := f"{_CONTAINER}-{number}") not in taken)
    is_alone = len(containers) == 1
    for container in containers:
        if not container.get("name"):
            container["name"] = _CONTAINER if is_alone else next(spare)
        for port in objects_at(container, "ports"):
            if port.get("containerPort") == 0:
                port["containerPort"] = CONTAINER_PORT
        if is_alone or container.get("ports"):
            _fill_readiness(container)


def _fill_readiness(container: dict[str, Any]) -> None:
    """Complete the readiness probe of a container that serves. Port 0 means the container's own port."""
    probe = container.get("readinessProbe")
    if probe is None:
        probe = container["readinessProbe"] = {}
    if not isinstance(probe, dict):
        return
    if not any(handler in probe for handler in _HANDLERS):
        probe["tcpSocket"] = {"port": 0}
    if not probe.get("successThreshold"):
        probe["successThreshold"] = 1
    if probe.get("periodSeconds"):
        probe["failureThreshold"] = probe.get("failureThreshold") or 3
        probe["timeoutSeconds"] = probe.get("timeoutSeconds") or 1


def _fill_traffic(kind: Kind, spec: dict[str, Any]) -> None:
    """Send all traffic to the latest revision if a Service names no target, and complete ``latestRevision``."""
    if kind == SERVING_SERVICE and spec.get("traffic") == []:
        spec["traffic"] = [{"latestRevision": True, "percent": 100}]
    for target in objects_at(spec, "traffic"):
        if "latestRevision" not in target:
            target["latestRevision"] = not target.get("revisionName")
