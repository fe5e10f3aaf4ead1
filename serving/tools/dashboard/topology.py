"""The hosts of services and the nodes of pods, for the map. Pure.

Input: Routes, DomainMappings, and the views of pods. The page already has services, revisions and their numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import Object, condition_of, labels_of, name_of, namespace_of, nested


class HostTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that gets a share of a host's requests."""

    revision: str
    percent: int


class ServedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host and the destination of its requests: the traffic of ``service``, or ``targets`` if ``service`` is "".

    ``kind`` is that of the object with the host. ``ready`` and ``reason`` are from the object's condition Ready.
    """

    namespace: str
    host: str
    url: str
    kind: str
    service: str
    tag: str
    targets: tuple[HostTarget, ...]
    ready: str
    reason: str


class PodCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods of the revision ``key`` in the same state on the same node ("" before scheduling)."""

    key: str
    node: str
    state: str
    count: int


def hosts_of(routes: Iterable[Object], mappings: Iterable[Object]) -> list[ServedHost]:
    """The hosts of Routes, including their tags, and of DomainMappings, sorted."""
    hosts, by_route = [], {}
    for route in routes:
        own = _hosts_of_route(route)
        by_route[namespace_of(route), name_of(route)] = own[0]
        hosts += own
    hosts += [_mapped(mapping, by_route) for mapping in mappings]
    return sorted(
        (host for host in hosts if host.host), key=lambda host: (host.namespace, host.tag, host.kind, host.host)
    )


def pod_counts(pods: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[PodCount]:
    """Count the pods by revision, state and node. ``pods`` is by "namespace/revision"."""
    return [
        PodCount(key=key, node=node, state=state, count=count)
        for key, views in sorted(pods.items())
        for (node, state), count in sorted(Counter((view["node"], _state_of(view)) for view in views).items())
    ]


def _hosts_of_route(route: Object) -> list[ServedHost]:
    service, traffic = labels_of(route).get(SERVICE_LABEL, ""), nested(route, "status", "traffic") or []
    shares: Counter[str] = Counter()
    for target in traffic:
        shares[target.get("revisionName", "")] += target.get("percent") or 0
    targets = tuple(HostTarget(revision=name, percent=percent) for name, percent in shares.items() if name and percent)
    main = _host(route, "Route", url=nested(route, "status", "url"), service=service, targets=targets)
    tagged = [
        _host(
            route,
            "Route",
            url=target.get("url"),
            tag=target["tag"],
            targets=(HostTarget(revision=target.get("revisionName", ""), percent=100),),
        )
        for target in traffic
        if target.get("tag")
    ]
    return [main, *tagged]


def _mapped(mapping: Object, routes: Mapping[tuple[str, str], ServedHost]) -> ServedHost:
    ref = nested(mapping, "spec", "ref") or {}
    url = nested(mapping, "status", "url") or f"http://{name_of(mapping)}"
    # The Route of a Service has the Service's name.
    route = routes.get((namespace_of(mapping), ref.get("name", "")))
    service = ref.get("name", "") if ref.get("kind") == "Service" else route.service if route else ""
    targets = route.targets if route else ()
    return _host(mapping, "DomainMapping", url=url, service=service, targets=targets)


def _host(
    owner: Object,
    kind: str,
    *,
    url: str | None,
    targets: tuple[HostTarget, ...],
    service: str = "",
    tag: str = "",
) -> ServedHost:
    ready = condition_of(owner, "Ready")
    status = ready.get("status", "Unknown")
    return ServedHost(
        namespace=namespace_of(owner),
        host=(url or "").partition("://")[2],
        url=url or "",
        kind=kind,
        service=service,
        tag=tag,
        targets=() if service else targets,
        ready=status,
        reason="" if status == "True" else ready.get("message") or ready.get("reason", ""),
    )


def _state_of(pod: Mapping[str, Any]) -> str:
    """The state in a pod's view: ending, dormant, ready, failing or starting."""
    if pod["ending"]:
        return "ending"
    if pod["ready"]:
        return "dormant" if pod["dormant"] else "ready"
    return "failing" if pod["restarts"] or pod["phase"] == "Failed" else "starting"
