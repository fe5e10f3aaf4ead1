"""The public Service of a revision or route, with EndpointSlices that contain activators or pods.

The Service has no selector; the controller owns its slices. With the path "proxy" the slices contain the activators'
inner port; with "serve" they contain the revision's ready pods. The autoscaler requests a path in an annotation of the
revision. This module selects the endpoints in this order:

1. "serve" is requested, the revision is Active and has ready pods: the pods;
2. there are ready activators: the activators;
3. there are ready pods: the pods;
4. otherwise the present endpoints stay, pods with ``ready: false``, so that a slice is never empty.

Addresses and port change in one merge patch, so that pods are never combined with the activators' port. A route's TCP
ports (``serving.dev/tcp``) are ports of the route's Service, whose endpoints are activators. With certificates of
cluster-local hosts the ports 80 and 443 lead to the same port of activators, which accepts plain HTTP and TLS. Each
address family of the activators has one slice with at most 1,000 endpoints, the limit of Kubernetes. Further pods
receive requests through activators only.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.controller.revisions.sidecar import QUEUE_PORT
from serving.controller.values.writes import patch_of
from serving.core.model.knative import (
    CLAIMED_TAGS_ANNOTATION,
    LAST_APPLIED_ANNOTATION,
    ROLLED_BACK_ANNOTATION,
    ROLLOUT_ANNOTATION,
    ROUTE_LABEL,
    TRAFFIC_PATH_ANNOTATION,
    VISIBILITY_LABEL,
    TrafficPath,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    is_being_deleted,
    is_controlled_by,
    labels_of,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    owner_reference,
    uid_of,
)
from serving.core.model.routepolicy import route_policy
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write

ACTIVATOR_SERVICE = "activator-service"
"""The Service, in the system's namespace, of the activators' inner listener."""

# Most activators in public slices: with more, each change would send megabytes for a thousand services.
_NAMED_MAX = 100

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
# Not the controller-manager's name, which would make it empty these slices.
MANAGER = "serving-controller"
# Limit of discovery.k8s.io/v1.
ENDPOINTS_MAX = 1000
_PORT_NAME = "http"
_TLS_PORT_NAME = "https"
_METRICS_PORT_NAME = "metrics"
# Annotations of a Route that do not concern its Services.
_OWN_ANNOTATIONS = {CLAIMED_TAGS_ANNOTATION, ROLLOUT_ANNOTATION, ROLLED_BACK_ANNOTATION, LAST_APPLIED_ANNOTATION}
_H2C = "kubernetes.io/h2c"
PUBLIC_PORT = 80
_TLS_PORT = 443
_SUFFIXES = {"IPv4": "-public", "IPv6": "-public-ipv6"}


class EndpointGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints of one port in a slice. There is at least one."""

    port: int
    endpoints: tuple[Object, ...]


EndpointGroups = Mapping[str, EndpointGroup]
"""Endpoints by address family: "IPv4", "IPv6"."""


class Activators:
    """The activators' slices, and their merged endpoints."""

    __slots__ = ("_slices", "backends")

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], Object] = {}
        self.backends: EndpointGroups = {}

    def put(self, key: tuple[str, str], endpoint_slice: Object) -> bool:
        """Store a slice; return whether the endpoints changed."""
        self._slices[key] = endpoint_slice
        return self._sum_up()

    def drop(self, key: tuple[str, str]) -> bool:
        """Remove a slice; return whether the endpoints changed."""
        self._slices.pop(key, None)
        return self._sum_up()

    @property
    def addresses(self) -> tuple[str, ...]:
        """One address HOST:PORT per activator, all of one family, because a pod may have addresses of both families."""
        return self._at_port(None)

    @property
    def pages(self) -> tuple[str, ...]:
        """The metrics pages of the same activators; empty if the Service has no such port (before 0.2)."""
        ports = {_port_of(slice_, _METRICS_PORT_NAME) for slice_ in self._slices.values()} - {None}
        return self._at_port(max(filter(None, ports))) if ports else ()

    def _at_port(self, port: int | None) -> tuple[str, ...]:
        for family, group in sorted(self.backends.items()):
            shown = "[{}]:{}" if family == "IPv6" else "{}:{}"
            return tuple(shown.format(endpoint["addresses"][0], port or group.port) for endpoint in group.endpoints)
        return ()

    def _sum_up(self) -> bool:
        before = self.backends
        addresses: dict[tuple[str, int], set[str]] = {}
        for slice_ in self._slices.values():
            port = _port_of(slice_)
            ready = {
                endpoint["addresses"][0] for endpoint in slice_.get("endpoints") or () if _takes_requests(endpoint)
            }
            if port and ready:
                addresses.setdefault((str(slice_.get("addressType")), port), set()).update(ready)
        # The largest group of a family comes last and wins.
        groups = sorted(addresses.items(), key=lambda group: (len(group[1]), group[0]))
        self.backends = {
            family: EndpointGroup(
                port=port,
                endpoints=tuple(
                    {"addresses": [address], "conditions": {"ready": True}}
                    for address in sorted(addresses)[:_NAMED_MAX]
                ),
            )
            for (family, port), addresses in groups
        }
        return self.backends != before


def _takes_requests(endpoint: Object) -> bool:
    conditions = endpoint.get("conditions") or {}
    return (
        bool(endpoint.get("addresses")) and conditions.get("ready") is not False and not conditions.get("terminating")
    )


def _port_of(endpoint_slice: Object, name: str = _PORT_NAME) -> int | None:
    for port in nested(endpoint_slice, "ports") or ():
        if port.get("name") == name and port.get("port"):
            return int(port["port"])
    return None


class PublicService(msgspec.Struct, frozen=True, kw_only=True):
    """An existing public Service, its slices, and the possible endpoints by address family.

    ``service`` is None before it exists. ``path`` says whether pods or activators are its endpoints. ``has_tls``: it
    has a port for HTTPS.
    """

    service: Object | None
    slices: Sequence[Object]
    activators: EndpointGroups
    pods: EndpointGroups = {}
    path: TrafficPath = TrafficPath.PROXY
    has_tls: bool = False


def traffic_path_of(revision: Object) -> TrafficPath:
    """The traffic path that the autoscaler requests; proxy if it requests none, or if the revision is not Active."""
    is_active = (nested(revision, "spec", "servingState") or "Active") == "Active"
    wants_pods = annotations_of(revision).get(TRAFFIC_PATH_ANNOTATION) == TrafficPath.SERVE
    return TrafficPath.SERVE if is_active and wants_pods else TrafficPath.PROXY


def pod_backends(pods: Iterable[Object]) -> EndpointGroups:
    """The ready pods that are not being deleted, by address family."""
    by_family: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=name_of):
        if is_being_deleted(pod) or condition_of(pod, "Ready").get("status") != "True":
            continue
        addresses = [pod_ip["ip"] for pod_ip in nested(pod, "status", "podIPs") or () if pod_ip.get("ip")]
        for address in addresses or filter(None, [nested(pod, "status", "podIP")]):
            by_family.setdefault(_family_of(address), []).append(_pod_endpoint(pod, address))
    return {
        family: EndpointGroup(port=QUEUE_PORT, endpoints=tuple(endpoints[:ENDPOINTS_MAX]))
        for family, endpoints in by_family.items()
    }


def slice_names(owner_name: str) -> tuple[str, ...]:
    """The names of a public Service's slices: "hello-public", "hello-public-ipv6"."""
    return tuple(owner_name + suffix for suffix in _SUFFIXES.values())


def public_owner_name(slice_name: str) -> str:
    """The name of the public Service to which a slice belongs."""
    suffix = next((ending for ending in reversed(_SUFFIXES.values()) if slice_name.endswith(ending)), "")
    return slice_name.removesuffix(suffix)


def is_foreign(owner: Object, public: PublicService) -> bool:
    """Whether the Service of this name has another owner. It is then not changed and gets no endpoints."""
    return public.service is not None and not is_controlled_by(public.service, owner)


def public_writes(owner: Object, public: PublicService, *, name: str = "") -> tuple[Write, ...]:
    """The writes for the public Service of a revision or route, and its slices.

    ``name`` is the name of a tag's Service; by default the Service has its owner's name.
    """
    if is_foreign(owner, public):
        return ()
    name = name or name_of(owner)
    writes: list[Write] = []
    if public.service is None:
        writes.append(Create(kind=kinds.SERVICE, body=_service(owner, name, has_tls=public.has_tls)))
    else:
        ports = _port_changes(owner, public.service, has_tls=public.has_tls)
        changes = {**_metadata_changes(owner, public.service), **ports}
        writes += patch_of(kinds.SERVICE, public.service, changes)
    own = {str(slice_.get("addressType")): slice_ for slice_ in public.slices if is_controlled_by(slice_, owner)}
    for family in sorted({*(public.activators or public.pods), *own}):
        writes += _slice_writes(owner, own.get(family), name=name, family=family, public=public)
    return tuple(writes)


def _slice_writes(
    owner: Object, before: Object | None, *, name: str, family: str, public: PublicService
) -> tuple[Write, ...]:
    backend = _backend(before, family=family, public=public)
    tls_port = backend.port if public.has_tls else 0
    content = {
        "ports": [_port(owner, backend.port), *_further_ports(owner, name, tls_port=tls_port)],
        "endpoints": list(backend.endpoints),
    }
    if before is None:
        return (Create(kind=kinds.ENDPOINT_SLICE, body={**_slice(owner, name, family), **content}),)
    # Servers store an empty list as null.
    changes = {key: value for key, value in content.items() if (before.get(key) or []) != value}
    # Both or neither: an address is useless without its port.
    return patch_of(kinds.ENDPOINT_SLICE, before, content if changes else {})


def _backend(before: Object | None, *, family: str, public: PublicService) -> EndpointGroup:
    pods, activators = public.pods.get(family), public.activators.get(family)
    is_alone = public.path is TrafficPath.SERVE or not public.activators
    return (pods if is_alone else None) or activators or _unready(before or {})


def _unready(before: Object) -> EndpointGroup:
    """The present endpoints of a slice, for a public Service that has no other endpoints now; pods become not ready."""
    endpoints = [
        {**endpoint, "conditions": {**endpoint.get("conditions", {}), "ready": False}}
        if endpoint.get("targetRef")
        else endpoint
        for endpoint in before.get("endpoints") or ()
    ]
    ports = before.get("ports") or [{}]
    return EndpointGroup(port=ports[0].get("port", QUEUE_PORT), endpoints=tuple(endpoints))


def _service(owner: Object, name: str, *, has_tls: bool) -> Object:
    labels, annotations = _inherited(owner)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **_metadata(owner, name),
            "labels": labels,
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {"ports": _service_ports(owner, name, has_tls=has_tls)},
    }


def _inherited(owner: Object) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations of a Service: those of its Route, and its Route's name, as in Knative.

    The label for visibility is not inherited: on a tag's Service the user sets it for that tag.
    """
    if owner.get("kind") != "Route":
        return {MANAGED_BY: MANAGER}, {}
    labels = {key: value for key, value in labels_of(owner).items() if key != VISIBILITY_LABEL}
    annotations = {key: value for key, value in annotations_of(owner).items() if key not in _OWN_ANNOTATIONS}
    return {**labels, **_route_label(owner), MANAGED_BY: MANAGER}, annotations


def _route_label(owner: Object) -> dict[str, str]:
    return {ROUTE_LABEL: name_of(owner)} if owner.get("kind") == "Route" else {}


def _metadata_changes(owner: Object, service: Object) -> Object:
    """The labels and annotations to add to a Service. Those of other writers stay."""
    labels, annotations = _inherited(owner)
    known = {"labels": labels_of(service), "annotations": annotations_of(service)}
    wanted = {"labels": known["labels"] | labels, "annotations": known["annotations"] | annotations}
    changes = merge_difference(known, wanted)
    return {"metadata": changes} if changes else {}


def _port_changes(owner: Object, service: Object, *, has_tls: bool) -> Object:
    """The change of a Service's ports to the wanted ones; {} if all ports are right.

    The first port is not compared, because it never changes.
    """
    wanted = _service_ports(owner, name_of(service), has_tls=has_tls)
    known = [port for port in nested(service, "spec", "ports") or () if port.get("name") != _PORT_NAME]
    is_same = [(port.get("name"), port.get("port")) for port in known] == [
        (port["name"], port["port"]) for port in wanted[1:]
    ]
    return {} if is_same else {"spec": {"ports": wanted}}


def _service_ports(owner: Object, name: str, *, has_tls: bool) -> list[Object]:
    tls_port = _TLS_PORT if has_tls else 0
    return [_port(owner, PUBLIC_PORT), *_further_ports(owner, name, tls_port=tls_port)]


def _further_ports(owner: Object, name: str, *, tls_port: int) -> list[Object]:
    """The port for HTTPS (unless ``tls_port`` is 0) and the TCP ports."""
    tls = [{"name": _TLS_PORT_NAME, "port": tls_port, "protocol": "TCP"}] if tls_port else []
    return [*tls, *_tcp_ports(owner, name)]


def _slice(owner: Object, name: str, family: str) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            **_metadata(owner, name + _SUFFIXES[family]),
            # Without a revision's label, which would make activators treat themselves as its pods.
            "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER, **_route_label(owner)},
        },
        "addressType": family,
    }


def _metadata(owner: Object, name: str) -> Object:
    return {"name": name, "namespace": namespace_of(owner), "ownerReferences": [owner_reference(owner)]}


def _port(owner: Object, number: int) -> Object:
    port: Object = {"name": _PORT_NAME, "port": number, "protocol": "TCP"}
    # Gateways must use HTTP/2 with prior knowledge, or gRPC calls fail.
    return {**port, "appProtocol": _H2C} if _uses_http2(owner) else port


def _tcp_ports(owner: Object, name: str) -> list[Object]:
    """The TCP ports of a route's Service; none for a tag's Service."""
    if owner.get("kind") != "Route" or name != name_of(owner):
        return []
    numbers = (port.number for port in route_policy(annotations_of(owner)).tcp_ports)
    return [{"name": f"tcp-{number}", "port": number, "protocol": "TCP"} for number in numbers]


def _uses_http2(owner: Object) -> bool:
    containers = nested(owner, "spec", "containers") or ()
    return any(port.get("name") == "h2c" for container in containers for port in container.get("ports") or ())


def _pod_endpoint(pod: Object, address: str) -> Object:
    endpoint: Object = {
        "addresses": [address],
        "conditions": {"ready": True},
        "targetRef": {"kind": "Pod", "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod)},
    }
    node: str | None = nested(pod, "spec", "nodeName")
    return {**endpoint, "nodeName": node} if node else endpoint


def _family_of(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"
