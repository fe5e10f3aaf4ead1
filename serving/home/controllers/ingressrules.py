"""Converts a machine's Ingresses and HTTPRoutes to ScaledWorkloads, one per Deployment behind them. Pure.

Input: the routes, Services and Deployments of a namespace. Output: a spec for each Deployment, and a sentence for each
part of a route without effect. A rule has hosts, prefixes of the path, headers, and one Service as its backend. A route
without a host gets the host that a Knative Service would have: "shop.default.localhost".
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import AUTOSCALING_GROUP, OWN_AUTOSCALING_GROUP, REVISION_STATE_ANNOTATIONS
from serving.core.model.objects import (
    Object,
    annotations_of,
    is_being_deleted,
    labels_of,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    uid_of,
)
from serving.core.model.scaledworkload import (
    HeaderMatch,
    RoutingRule,
    ScaledWorkloadSpec,
    WorkloadService,
    WorkloadTarget,
    spec_patch,
)
from serving.core.model.unread import Fields, unread
from serving.net.cluster.kinds import HTTP_ROUTE, INGRESS, SCALED_WORKLOAD
from serving.net.cluster.port import Create, Delete, Patch, Write

# Characters of regular expressions, which some cluster controllers allow in paths that are not of the type Prefix.
_REGEX = re.compile(r"[()\[\]|*+?^$\\]")
_PREFIXES = {"Prefix", "ImplementationSpecific", "PathPrefix", None}
_BACKEND: Fields = {"service": {"name": None, "port": None}}
_PATH: Fields = {"backend": _BACKEND, "path": None, "pathType": None}
_HEAD: Fields = dict.fromkeys(("apiVersion", "kind", "metadata", "status"))
_READ: Mapping[str, Fields] = {
    INGRESS.name: {
        **_HEAD,
        "spec": {
            "defaultBackend": _BACKEND,
            "ingressClassName": None,
            "rules": {"host": None, "http": {"paths": _PATH}},
        },
    },
    HTTP_ROUTE.name: {
        **_HEAD,
        "spec": {
            "hostnames": None,
            "parentRefs": None,
            "rules": {
                "backendRefs": dict.fromkeys(("group", "kind", "name", "namespace", "port", "weight")),
                "matches": {
                    "headers": dict.fromkeys(("name", "type", "value")),
                    "path": dict.fromkeys(("type", "value")),
                },
                "name": None,
            },
        },
    },
}
# Annotations of cluster controllers that change what a route does.
_FOREIGN_ANNOTATIONS = ("nginx.", "traefik.", "haproxy.", "alb.", "kubernetes.io/ingress.")
_MANAGED_BY, _MANAGER = "app.kubernetes.io/managed-by", "serving-ingress"
_SCALING_GROUPS = (f"{AUTOSCALING_GROUP}/", f"{OWN_AUTOSCALING_GROUP}/")


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """One path of a route to a Service; no ``hosts`` means any host."""

    hosts: tuple[str, ...]
    path: str
    headers: tuple[HeaderMatch, ...] = ()
    service: str
    port: Any = None


class RoutedDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment behind routes: its spec, its scaling annotations, and the routes."""

    spec: ScaledWorkloadSpec
    annotations: Mapping[str, str]
    routes: tuple[Object, ...]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A message about a part of a route that has no effect."""

    route: Object
    text: str


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """The Deployments behind routes, by name, and messages about parts of routes that have no effect."""

    deployments: Mapping[str, RoutedDeployment]
    notes: tuple[Note, ...] = ()


def routing_of(
    routes: Iterable[Object], services: Iterable[Object], deployments: Sequence[Object], *, domain: str
) -> Routing:
    """Find the Deployments behind the routes of one namespace. ``domain`` is for hosts of routes without a host."""
    by_name = {name_of(service): service for service in services}
    notes: list[Note] = []
    ways: dict[str, list[tuple[Object, _Way]]] = {}
    for route in sorted(
        routes, key=lambda route: (str(nested(route, "metadata", "creationTimestamp")), name_of(route))
    ):
        texts = list(_unread_texts(route))
        for way in _ways(route, texts):
            target = _deployment_of(by_name.get(way.service), deployments)
            if isinstance(target, str):
                texts.append(f"service/{way.service} {target}")
                continue
            first = ways.setdefault(name_of(target), [(route, way)])[0][1]
            if (first.service, first.port) != (way.service, way.port):
                texts.append(
                    f"service/{way.service} port {way.port} is not served: deployment/{name_of(target)} is served "
                    f"at service/{first.service} port {first.port}"
                )
            elif (route, way) not in ways[name_of(target)]:
                ways[name_of(target)].append((route, way))
        notes += [Note(route=route, text=text) for text in dict.fromkeys(texts)]
    by_deployment = {name_of(deployment): deployment for deployment in deployments}
    routed = {name: _routed(by_deployment[name], own, domain=domain) for name, own in ways.items()}
    for name, served in list(routed.items()):
        problems = "; ".join(map(str, served.spec.problems()))
        if problems:
            del routed[name]
            text = f"deployment/{name} is not served: {problems}"
            notes += [Note(route=route, text=text) for route in served.routes]
    return Routing(deployments=routed, notes=tuple(notes))


def _unread_texts(route: Object) -> Iterator[str]:
    for field in sorted(set(unread(route, _READ[str(route["kind"])]))):
        reason = ": `serving up --help` has the options of TLS" if field == "spec.tls" else ""
        yield f"{field} has no effect{reason}"
    for key in sorted(annotations_of(route)):
        if key.startswith(_FOREIGN_ANNOTATIONS):
            yield f"annotation {key} has no effect"


def _ways(route: Object, texts: list[str]) -> Iterator[_Way]:
    return _of_ingress(route, texts) if route["kind"] == INGRESS.name else _of_httproute(route, texts)


def _of_ingress(route: Object, texts: list[str]) -> Iterator[_Way]:
    default = nested(route, "spec", "defaultBackend", "service")
    if default:
        yield _Way(hosts=(), path="/", service=default.get("name", ""), port=_port(default.get("port")))
    for rule in nested(route, "spec", "rules") or ():
        hosts = (rule["host"],) if rule.get("host") else ()
        for path in nested(rule, "http", "paths") or ():
            service = nested(path, "backend", "service")
            shown = path.get("path") or "/"
            if path.get("pathType") not in _PREFIXES:
                texts.append(
                    f"path {shown} is not served: its type is {path['pathType']}, and only prefixes are served"
                )
            elif path.get("pathType") != "Prefix" and _REGEX.search(shown):
                texts.append(f"path {shown} is not served: it is a regular expression, and only prefixes are served")
            elif not service:
                texts.append(f"path {shown} is not served: its backend is not a Service")
            else:
                yield _Way(hosts=hosts, path=shown, service=service.get("name", ""), port=_port(service.get("port")))


def _port(port: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - a number or a name
    return (port or {}).get("number") or (port or {}).get("name")


def _of_httproute(route: Object, texts: list[str]) -> Iterator[_Way]:
    hosts = tuple(nested(route, "spec", "hostnames") or ())
    for index, rule in enumerate(nested(route, "spec", "rules") or ()):
        backends = [backend for backend in rule.get("backendRefs") or () if backend.get("weight") != 0]
        if len(backends) != 1 or backends[0].get("kind", "Service") != "Service":
            texts.append(f"spec.rules[{index}] is not served: it has {len(backends)} backends instead of one Service")
            continue
        if backends[0].get("namespace") not in (None, "", namespace_of(route)):
            texts.append(f"spec.rules[{index}] is not served: its Service is in another namespace")
            continue
        for match in rule.get("matches") or [{}]:
            path, headers = match.get("path") or {}, match.get("headers") or ()
            if path.get("type") not in _PREFIXES or any(
                header.get("type") not in (None, "Exact") for header in headers
            ):
                texts.append(f"a match of spec.rules[{index}] is not served: only prefixes and exact headers are")
                continue
            yield _Way(
                hosts=hosts,
                path=path.get("value") or "/",
                headers=tuple(HeaderMatch(name=header["name"], value=header.get("value")) for header in headers),
                service=str(backends[0].get("name")),
                port=backends[0].get("port"),
            )


def _deployment_of(service: Object | None, deployments: Iterable[Object]) -> Object | str:
    """The Deployment whose pods a Service selects, or a text that says why there is none."""
    if service is None:
        return "does not exist"
    selector = nested(service, "spec", "selector") or {}
    selected = [
        deployment
        for deployment in deployments
        if selector and selector.items() <= labels_of(nested(deployment, "spec", "template")).items()
    ]
    if len(selected) != 1:
        return f"selects the pods of {len(selected)} Deployments; expected one"
    return selected[0]


def _routed(deployment: Object, ways: Sequence[tuple[Object, _Way]], *, domain: str) -> RoutedDeployment:
    name, first = name_of(deployment), ways[0][1]
    paths: dict[tuple[tuple[str, ...], tuple[HeaderMatch, ...]], list[str]] = {}
    for _, way in ways:
        hosts = way.hosts or (f"{way.service}.{namespace_of(deployment)}.{domain}",)
        paths.setdefault((hosts, way.headers), []).append(way.path)
    rules = [RoutingRule.below(prefixes, hosts=hosts, headers=headers) for (hosts, headers), prefixes in paths.items()]
    spec = ScaledWorkloadSpec(
        target=WorkloadTarget(name=name),
        service=WorkloadService(name=first.service, port=first.port),
        rules=tuple(rules),
    )
    routes = {(str(route["kind"]), name_of(route)): route for route, _ in ways}
    return RoutedDeployment(spec=spec, annotations=_scaling_annotations(deployment), routes=tuple(routes.values()))


def _scaling_annotations(resource: Object) -> dict[str, str]:
    """The scaling annotations set by a user, without those that daemons write."""
    return {
        key: text
        for key, text in annotations_of(resource).items()
        if key.startswith(_SCALING_GROUPS) and key not in REVISION_STATE_ANNOTATIONS
    }


def workload_writes(routing: Routing, workloads: Iterable[Object]) -> tuple[list[Write], list[Note]]:
    """The writes that create, change and delete a namespace's ScaledWorkloads as ``routing`` requires.

    The notes are about Deployments that already have a ScaledWorkload of a user, which stays unchanged.
    """
    writes: list[Write] = []
    notes: list[Note] = []
    by_target: dict[str, list[Object]] = {}
    for workload in workloads:
        by_target.setdefault(str(nested(workload, "spec", "target", "name")), []).append(workload)
    for name, routed in routing.deployments.items():
        existing = by_target.pop(name, [])
        foreign = next((workload for workload in existing if not _is_ours(workload)), None)
        if foreign is not None:
            text = f"deployment/{name} is served as scaledworkload/{name_of(foreign)} says, not as this route does"
            notes += [Note(route=route, text=text) for route in routed.routes]
            by_target[name] = existing
            continue
        writes += _settled(name, routed, existing[0] if existing else None)
    unwanted = (workload for workloads in by_target.values() for workload in workloads if _is_ours(workload))
    writes += [
        Delete(kind=SCALED_WORKLOAD, namespace=namespace_of(workload), name=name_of(workload), uid=uid_of(workload))
        for workload in unwanted
        if not is_being_deleted(workload)
    ]
    return writes, notes


def _is_ours(workload: Object) -> bool:
    return labels_of(workload).get(_MANAGED_BY) == _MANAGER


def _settled(name: str, routed: RoutedDeployment, existing: Object | None) -> Iterator[Write]:
    namespace = namespace_of(routed.routes[0])
    wanted = routed.spec.to_object(name=name, namespace=namespace)
    owners = [
        {
            "apiVersion": route["apiVersion"],
            "kind": route["kind"],
            "name": name_of(route),
            "uid": uid_of(route),
        }
        for route in routed.routes
    ]
    own: Object = {"ownerReferences": owners, "annotations": dict(routed.annotations)}
    if existing is None:
        metadata = {**wanted["metadata"], **own, "labels": {_MANAGED_BY: _MANAGER}}
        yield Create(kind=SCALED_WORKLOAD, body={**wanted, "metadata": metadata})
        return
    before = annotations_of(existing)
    scaling = _scaling_annotations(existing)
    own["annotations"] |= {key: text for key, text in before.items() if key not in scaling}
    present = {"annotations": before, "ownerReferences": nested(existing, "metadata", "ownerReferences")}
    patch = {"metadata": merge_difference(present, own), "spec": spec_patch(existing, routed.spec)}
    patch = {part: changes for part, changes in patch.items() if changes}
    if patch:
        yield Patch(kind=SCALED_WORKLOAD, namespace=namespace, name=name_of(existing), patch=patch)
