"""Moves a user's Service from its pods to the activators, and back.

A headless twin gets the selector, so that the EndpointSlices of the pods belong to the twin. The Service stays without
a selector: the controller writes its slices. After each step the Service leads to pods or to activators.
"""

import json

from serving.controller.revisions.public import MANAGED_BY, MANAGER, SERVICE_NAME
from serving.core.model.knative import SELECTOR_BEFORE_ANNOTATION
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, nested
from serving.net.cluster.kinds import ENDPOINT_SLICE, SERVICE
from serving.tools.cli.client.api import ApiClient, fail, message_of
from serving.tools.cli.client.objects import items_of, workloads_of
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.waiting import until

_NOT_FOUND, _NOT_ALLOWED = 404, 405
_POLL_S = 0.2
_AFFINITY_FIELDS = ("sessionAffinity", "sessionAffinityConfig")
_ENDPOINTS = "/api/v1/namespaces/{namespace}/endpoints/{name}"


def twin_name(service: str) -> str:
    """The name of a Service's twin (see ``make_twin``): "shop-pods" for "shop"."""
    return f"{service}-pods"


def short_hosts(api: ApiClient, service: Object) -> tuple[str, ...]:
    """The names by which pods of the same namespace call a Service. Names used by another namespace are left out."""
    name = name_of(service)
    for workload in workloads_of(api, everywhere=True):
        if name in (nested(workload, "spec", "hosts") or ()) and namespace_of(workload) != namespace_of(service):
            print_aside(
                f"note: http://{name}/ is the name of a Service of namespace {namespace_of(workload)}, too: call this one "
                f"{name}.{namespace_of(service)}"
            )
            return ()
    return (name,)


def make_twin(api: ApiClient, name: str, *, wait_s: float) -> None:
    """Create a second Service with the same pods (the twin), and wait until it has endpoints.

    Exits for a Service with several ports.
    """
    service = api.done("GET", path_of(SERVICE, api.namespace, name))
    ports: list[Object] = nested(service, "spec", "ports") or []
    if len(ports) != 1:
        fail(f"service {name} has {len(ports)} ports; --in-place takes over one: the activators speak HTTP only")
    port = {key: ports[0][key] for key in ("name", "port", "targetPort", "protocol", "appProtocol") if key in ports[0]}
    twin = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": twin_name(name), "namespace": api.namespace},
        "spec": {
            **{field: service["spec"][field] for field in _AFFINITY_FIELDS if service["spec"].get(field)},
            "clusterIP": "None",
            "selector": nested(service, "spec", "selector"),
            "ports": [port],
        },
    }
    api.done("POST", path_of(SERVICE, api.namespace), twin)
    if _ready_count(api, name):
        _until_led(api, twin_name(name), "its pods", timeout_s=wait_s)


def route_to_activators(api: ApiClient, name: str, *, timeout_s: float) -> None:
    """Route a Service to the activators instead of its pods, once the activators' EndpointSlices exist."""
    _until_led(api, name, "the activators", timeout_s=timeout_s, is_ours=True)
    path = path_of(SERVICE, api.namespace, name)
    selector = nested(api.done("GET", path), "spec", "selector")
    annotations = {SELECTOR_BEFORE_ANNOTATION: json.dumps(selector)}
    api.done("PATCH", path, {"metadata": {"annotations": annotations}, "spec": {"selector": None}})
    # Kubernetes does not delete these slices, and mirrors the Endpoints.
    _delete(api, _ENDPOINTS.format(namespace=api.namespace, name=name))
    for listed in _slices(api, name):
        if not _is_ours(listed):
            _delete(api, path_of(ENDPOINT_SLICE, api.namespace, name_of(listed)))


def _delete(api: ApiClient, path: str) -> None:
    status, response = api.call("DELETE", path)
    # One machine has no Endpoints.
    if status >= 400 and status not in {_NOT_FOUND, _NOT_ALLOWED}:
        print_aside(f"note: {path} still leads requests past the activators: {message_of(response)}; delete it")


def restore_selector(api: ApiClient, name: str, *, has_pods: bool, timeout_s: float) -> None:
    """Restore the selector of a Service. If ``has_pods``, wait until the Service has pods as endpoints."""
    path = path_of(SERVICE, api.namespace, name)
    before = annotations_of(api.peek(path)).get(SELECTOR_BEFORE_ANNOTATION)
    if before is None:
        print_aside(f"note: service {name} has no former selector, and stays unchanged")
        return
    api.done(
        "PATCH",
        path,
        {"metadata": {"annotations": {SELECTOR_BEFORE_ANNOTATION: None}}, "spec": {"selector": json.loads(before)}},
    )
    if has_pods:
        _until_led(api, name, "its pods", timeout_s=timeout_s)


def delete_twin(api: ApiClient, name: str) -> None:
    """Delete the twin of a Service, if it exists."""
    status, response = api.call("DELETE", path_of(SERVICE, api.namespace, twin_name(name)))
    if status >= 400 and status != _NOT_FOUND:
        fail(message_of(response))


def _slices(api: ApiClient, service: str) -> list[Object]:
    return items_of(api, ENDPOINT_SLICE, f"{SERVICE_NAME}={service}")


def _is_ours(endpoint_slice: Object) -> bool:
    return labels_of(endpoint_slice).get(MANAGED_BY) == MANAGER


def _ready_count(api: ApiClient, service: str, *, is_ours: bool = False) -> int:
    return sum(
        nested(endpoint, "conditions", "ready") is not False
        for listed in _slices(api, service)
        if _is_ours(listed) is is_ours
        for endpoint in listed.get("endpoints") or ()
    )


def _until_led(api: ApiClient, service: str, what: str, *, timeout_s: float, is_ours: bool = False) -> None:
    def pending() -> str | None:
        return None if _ready_count(api, service, is_ours=is_ours) else "not yet"

    def late(_: str) -> str:
        return f"service {service} does not lead to {what} after {timeout_s:g} s; `serving release` reverts the change"

    until(pending, f"waiting for service {service} to lead to {what}", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
