"""The HTTPRoutes of a route for a Gateway: its hosts, weights and tags, and the Gateway's reports about them.

There is one HTTPRoute for the route's host ("hello") and one for each tag's host ("hello.blue"), because the rules of
an HTTPRoute apply to all its hosts. The route owns them. Their backends are the public Services of revisions
(``public.py``), so the Gateway decides on weights once. Two headers name the chosen revision; the activator trusts the
headers on its inner listener.

Input: the route, the assigned traffic, and the existing HTTPRoutes; output: writes, and the condition IngressReady.
Follows gateway.networking.k8s.io/v1 and the headers of knative-extensions/net-gateway-api, which creates an HTTPRoute
per host, too.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.controller.revisions.public import PUBLIC_PORT
from serving.controller.values.conditions import Condition
from serving.controller.values.writes import deletion_of, patch_of, spec_changes
from serving.core.model.knative import ROUTE_LABEL, SERVICE_LABEL, ConditionStatus
from serving.core.model.objects import (
    Key,
    Object,
    is_controlled_by,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
)
from serving.core.model.rollout import Rollout
from serving.core.model.routehosts import hosts_of
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write

_API = "gateway.networking.k8s.io/v1"
_GROUP = "gateway.networking.k8s.io"
_TAG_HEADER = "Knative-Serving-Tag"
_NAMESPACE_HEADER, _REVISION_HEADER = "Knative-Serving-Namespace", "Knative-Serving-Revision"
# Limits of one rule and of one HTTPRoute in the API's definition.
_BACKENDS_MAX = 16
_RULES_MAX = 16
_MATCHES_MAX = 64
_WHOLE = 100
# Relevant conditions of an HTTPRoute. Programmed is defined for Gateways, but some implementations set it here.
_ASKED = ("Accepted", "ResolvedRefs", "Programmed")
_CONDITION = "IngressReady"
# Knative's reason.
_NOT_READY = "HTTPRouteNotReady"

_NO_ROLLOUT = Rollout()

Desired = Mapping[str, Object]


class HttpRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The existing HTTPRoutes whose names belong to a route, of any owner.

    ``missing`` is why the server has no HTTPRoutes, or "".
    """

    existing: Sequence[Object] = ()
    missing: str = ""


def httproute_owner_name(name: str) -> str:
    """The name of an HTTPRoute's route: "hello" for "hello.blue". Route names have no dots."""
    return name.partition(".")[0]


def reconcile_httproutes(
    route: Object,
    targets: Sequence[Object] | None,
    routes: HttpRoutes,
    *,
    rollout: Rollout = _NO_ROLLOUT,
    settings: ControllerSettings,
    lost: Mapping[str, Key],
) -> tuple[tuple[Write, ...], Condition]:
    """The writes for a route with this traffic, and the condition IngressReady.

    ``targets`` is None while no traffic is assigned; existing HTTPRoutes then stay.
    """
    if routes.missing:
        return (), _condition(ConditionStatus.FALSE, "GatewayApiMissing", routes.missing)
    if targets is None:
        return (), _condition(ConditionStatus.UNKNOWN, "IngressNotConfigured", "No traffic is assigned yet.")
    desired = desired_httproutes(route, targets, rollout=rollout, settings=settings, lost=lost)
    if isinstance(desired, Condition):
        return (), desired
    return _writes(route, routes, desired), _ingress_ready(route, routes, desired, gateway=settings.gateway)


def desired_httproutes(
    route: Object,
    targets: Sequence[Object],
    *,
    rollout: Rollout = _NO_ROLLOUT,
    settings: ControllerSettings,
    lost: Mapping[str, Key],
) -> Desired | Condition:
    """A route's desired HTTPRoutes by name, or why there can be none.

    A host that another route claimed first gets no HTTPRoute. Neither does a cluster-local route.
    """
    if hosts_of(route, settings.host_rules).is_local:
        return {}
    shares = _shares(targets)
    tags = _tag_shares(targets, rollout)
    excess = _excess(shares, tags)
    if excess:
        return _condition(ConditionStatus.FALSE, "TooManyTargets", excess)
    desired: dict[str, Object] = {}
    for tag in ("", *tags):
        host = hosts_of(route, settings.host_rules, tag=tag).shown
        rules = [_rule(route, tags[tag])] if tag else _rules(route, shares, tags)
        if rules and host not in lost:
            httproute = _httproute(route, tag, host=host, rules=rules, gateway=settings.gateway)
            desired[name_of(httproute)] = httproute
    return desired


def _writes(route: Object, routes: HttpRoutes, desired: Desired) -> tuple[Write, ...]:
    """The writes that produce exactly the wanted HTTPRoutes. HTTPRoutes of other owners stay."""
    existing = {name_of(httproute): httproute for httproute in routes.existing}
    writes: list[Write] = []
    for name, wanted in desired.items():
        before = existing.get(name)
        if before is None:
            writes.append(Create(kind=kinds.HTTP_ROUTE, body=wanted))
        elif is_controlled_by(before, route):
            writes += patch_of(kinds.HTTP_ROUTE, before, spec_changes(before, wanted))
    leftover = [
        httproute for name, httproute in existing.items() if name not in desired and is_controlled_by(httproute, route)
    ]
    return (*writes, *(deletion_of(kinds.HTTP_ROUTE, httproute) for httproute in leftover))


def _ingress_ready(route: Object, routes: HttpRoutes, desired: Desired, *, gateway: str) -> Condition:
    """The condition IngressReady, from the Gateway's conditions for the current generation.

    The first problem decides.
    """
    existing = {name_of(httproute): httproute for httproute in routes.existing}
    verdicts = [_verdict(route, existing.get(name), wanted, gateway=gateway) for name, wanted in desired.items()]
    for status in (ConditionStatus.FALSE, ConditionStatus.UNKNOWN):
        for verdict in verdicts:
            if verdict.status is status:
                return verdict
    return Condition(type=_CONDITION, status=ConditionStatus.TRUE)


def _shares(targets: Iterable[Object]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for target in targets:
        if target.get("percent"):
            name = target["revisionName"]
            shares[name] = shares.get(name, 0) + target["percent"]
    return shares


def _tag_shares(targets: Iterable[Object], rollout: Rollout) -> dict[str, dict[str, int]]:
    """Percents by revision for each tag: 100 for its revision, or the shares of a rollout in progress."""
    shares = {target["tag"]: {target["revisionName"]: _WHOLE} for target in targets if target.get("tag")}
    for configuration in rollout.configurations:
        if configuration.tag in shares:
            shares[configuration.tag] = {share.revision_name: share.percent for share in configuration.revisions}
    return shares


def _excess(shares: Mapping[str, int], tags: Mapping[str, Mapping[str, int]]) -> str:
    """The limit of HTTPRoutes that is exceeded; "" if none is."""
    for count, most, what in (
        (len(shares), _BACKENDS_MAX, "revisions that share the traffic"),
        (len(_by_shares(tags)), _RULES_MAX - 1, "revisions with tags"),
        (len(tags), _MATCHES_MAX, "tags"),
    ):
        if count > most:
            return f"An HTTPRoute takes {most} {what}, and there are {count}."
    return ""


def _by_shares(tags: Mapping[str, Mapping[str, int]]) -> dict[tuple[tuple[str, int], ...], list[str]]:
    """Tags grouped by revisions and percents. Tags with equal routing share a rule."""
    by_shares: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for tag, shares in tags.items():
        by_shares.setdefault(tuple(shares.items()), []).append(tag)
    return by_shares


def _rules(route: Object, shares: Mapping[str, int], tags: Mapping[str, Mapping[str, int]]) -> list[Object]:
    """The rules for the route's own host: one per group of tags (matched by the tag header), then the weights."""
    if not shares:
        return []
    rules = [_rule(route, dict(alike), tags=names) for alike, names in _by_shares(tags).items()]
    return [*rules, _rule(route, shares)]


def _rule(route: Object, shares: Mapping[str, int], *, tags: Sequence[str] = ()) -> Object:
    everywhere = {"path": {"type": "PathPrefix", "value": "/"}}
    matches = [{**everywhere, "headers": [{"type": "Exact", "name": _TAG_HEADER, "value": tag}]} for tag in tags]
    return {
        "matches": matches or [everywhere],
        "backendRefs": [_backend(namespace_of(route), name, weight) for name, weight in shares.items()],
        # Activators and queue-proxies enforce the revision's timeouts.
        "timeouts": {"request": "0s"},
    }


def _backend(namespace: str, revision: str, weight: int) -> Object:
    headers = ((_NAMESPACE_HEADER, namespace), (_REVISION_HEADER, revision))
    return {
        "group": "",
        "kind": "Service",
        "name": revision,
        "port": PUBLIC_PORT,
        "weight": weight,
        # ``set`` replaces values sent by the client.
        "filters": [
            {
                "type": "RequestHeaderModifier",
                "requestHeaderModifier": {"set": [{"name": name, "value": value} for name, value in headers]},
            }
        ],
    }


def _httproute(route: Object, tag: str, *, host: str, rules: list[Object], gateway: str) -> Object:
    namespace, name = gateway.split("/")
    return {
        "apiVersion": _API,
        "kind": "HTTPRoute",
        "metadata": {
            "name": f"{name_of(route)}.{tag}" if tag else name_of(route),
            "namespace": namespace_of(route),
            "labels": {
                **{key: value for key, value in labels_of(route).items() if key == SERVICE_LABEL},
                ROUTE_LABEL: name_of(route),
            },
            "ownerReferences": [owner_reference(route)],
        },
        "spec": {
            "parentRefs": [{"group": _GROUP, "kind": "Gateway", "namespace": namespace, "name": name}],
            "hostnames": [host],
            "rules": rules,
        },
    }


def _verdict(route: Object, httproute: Object | None, wanted: Object, *, gateway: str) -> Condition:
    name = name_of(wanted)
    if httproute is not None and not is_controlled_by(httproute, route):
        return _condition(
            ConditionStatus.FALSE, "NotOwned", f'There is an existing HTTPRoute "{name}" that we do not own.'
        )
    conditions = [] if httproute is None or spec_changes(httproute, wanted) else _gateway_conditions(httproute, gateway)
    for condition in conditions:
        if condition.get("status") == ConditionStatus.FALSE:
            message = f'Gateway "{gateway}" does not take HTTPRoute "{name}": {condition.get("message") or condition.get("type")}'
            return _condition(ConditionStatus.FALSE, condition.get("reason") or _NOT_READY, message)
    is_accepted = any(condition.get("type") == "Accepted" for condition in conditions)
    if is_accepted and all(condition.get("status") == ConditionStatus.TRUE for condition in conditions):
        return Condition(type=_CONDITION, status=ConditionStatus.TRUE)
    message = f'HTTPRoute "{name}" waits for Gateway "{gateway}" to accept it.'
    return _condition(ConditionStatus.UNKNOWN, _NOT_READY, message)


def _gateway_conditions(httproute: Object, gateway: str) -> list[Object]:
    """The conditions that an implementation reports for this Gateway and the current generation."""
    generation = nested(httproute, "metadata", "generation") or 0
    return [
        condition
        for parent in nested(httproute, "status", "parents") or ()
        if _is_of(httproute, nested(parent, "parentRef"), gateway)
        for condition in parent.get("conditions") or ()
        if condition.get("type") in _ASKED and (condition.get("observedGeneration") or generation) >= generation
    ]


def _is_of(httproute: Object, parent: object, gateway: str) -> bool:
    """Whether a parentRef refers to the Gateway. By default, its namespace is the HTTPRoute's."""
    return f"{nested(parent, 'namespace') or namespace_of(httproute)}/{nested(parent, 'name')}" == gateway


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=_CONDITION, status=status, reason=reason, message=message)
