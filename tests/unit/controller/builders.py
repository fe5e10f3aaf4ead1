"""Small API objects with the metadata that a server adds."""

from collections.abc import Mapping
from typing import Any

from serving.controller.cache import ControllerCache
from serving.controller.revisions.revision import desired_revision
from serving.controller.routes.service import desired_configuration, desired_route
from serving.controller.values.writes import WritePlan
from serving.core.model.objects import Object, condition_of, owner_reference
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Patch

CREATED = "2026-11-21T04:00:00Z"
NOW = "2026-11-21T04:01:00Z"
NOW_S = 1795233660.0
_OWNED = {kinds.CONFIGURATION, kinds.ROUTE, kinds.REVISION}
SETTINGS = ControllerSettings()
SCALING = AutoscalerSettings()


def stored(resource: Mapping[str, Any], **metadata: Any) -> Object:  # noqa: ANN401 - JSON
    """An object with the metadata that a server adds."""
    known = resource.get("metadata", {})
    added = {
        "namespace": "default",
        "uid": f"uid-of-{resource['kind'].lower()}-{known.get('name')}",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": CREATED,
    }
    return {**resource, "metadata": {**added, **known, **metadata}}


def a_service(name: str = "hello", *, traffic: list[Object] | None = None, **template: Any) -> Object:  # noqa: ANN401 - JSON
    spec: Object = {"template": {"spec": {"containers": [{"image": "app"}]}, **template}}
    if traffic is not None:
        spec["traffic"] = traffic
    return stored({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})


def a_configuration(name: str = "hello", *, generation: int = 1, **template: Any) -> Object:  # noqa: ANN401 - JSON
    return stored(desired_configuration(a_service(name, **template)), generation=generation)


def a_route(name: str = "hello", *, traffic: list[Object] | None = None, **metadata: Any) -> Object:  # noqa: ANN401 - JSON
    return stored(desired_route(a_service(name, traffic=traffic)), **metadata)


def a_revision(name: str = "hello", *, generation: int = 1, state: str = "", **template: Any) -> Object:  # noqa: ANN401 - JSON
    """The revision of a configuration's generation: hello-00001."""
    configuration = a_configuration(name, generation=generation, **template)
    resource = stored(desired_revision(configuration, settings=SETTINGS, scaling=SCALING, now=CREATED))
    return {**resource, "spec": {**resource["spec"], "servingState": state}} if state else resource


def with_ready(entry: Object, status: str, *, message: str = "") -> Object:
    """The resource with a status whose Ready condition has this value."""
    ready = {"type": "Ready", "status": status, "message": message, "lastTransitionTime": CREATED}
    return {**entry, "status": {**entry.get("status", {}), "conditions": [ready]}}


def a_deployment(revision: Object, *, replicas: int = 1, ready: int = 0, **status: Any) -> Object:  # noqa: ANN401 - JSON
    name = revision["metadata"]["name"]
    labels = {"serving.knative.dev/revision": name}
    return stored(
        {
            "kind": "Deployment",
            "metadata": {
                "name": f"{name}-deployment",
                "labels": labels,
                "ownerReferences": [owner_reference(revision)],
            },
            "spec": {"replicas": replicas},
            "status": {"readyReplicas": ready, **status},
        }
    )


def a_pod(name: str = "pod", *, revision: str = "hello-00001", **status: Any) -> Object:  # noqa: ANN401 - JSON
    labels = {"serving.knative.dev/revision": revision}
    return stored({"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": status})


def a_cache(
    *objects: tuple[Kind, Object], settings: ControllerSettings = SETTINGS, with_owners: bool = True
) -> ControllerCache:
    """A cache with these objects; missing owners of configurations, routes and revisions are added."""
    cache = ControllerCache(settings, SCALING, system_namespace="knative-serving")
    for resource, result in objects:
        cache.put(resource, result)
    new_kinds = {resource for resource, _ in objects} if with_owners else set()
    if kinds.REVISION in new_kinds and not cache.keys(kinds.CONFIGURATION):
        cache.put(kinds.CONFIGURATION, a_configuration())
    if new_kinds & _OWNED and not cache.keys(kinds.SERVING_SERVICE):
        cache.put(kinds.SERVING_SERVICE, a_service())
    return cache


def written_status(plan: WritePlan, resource: Kind) -> Object:
    """The changes of the status that a plan writes."""
    statuses = [
        write.patch["status"]
        for write in plan.writes
        if isinstance(write, Patch) and write.kind is resource and write.subresource == "status"
    ]
    assert len(statuses) == 1, plan
    status: Object = statuses[0]
    return status


def condition_values(status: Object, condition_type: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    condition = condition_of({"status": status}, condition_type)
    return condition.get("status", ""), condition.get("reason", ""), condition.get("message", "")


def merged(old: Object, patch: Object) -> Object:
    """The result of a merge patch (RFC 7396)."""
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result
