"""A route as HTTPRoutes of the Gateway API: its weights, its tags, and what the Gateway says of them.

One HTTPRoute for the route's host ("hello") and one for each tag's ("hello.blue"), because the rules of an HTTPRoute hold
for all of its hosts. Each is the route's own and goes with it. The backends are the public Services of revisions, which
lead to activators or pods (``public.py``), so that the weights are decided once, by the Gateway. An activator has to know
what was decided: two headers name the revision, and it believes them on its inner listener.

Input: the route, the traffic that is assigned, and the HTTPRoutes that are there; output: what to write, and the condition
IngressReady. It knows nothing of Gateways but their name. Follows gateway.networking.k8s.io/v1 and the headers of
knative-extensions/net-gateway-api; that makes an HTTPRoute for each host, too.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.controller.conditions import Condition
from serving.controller.hosts import Key, hosts_of, is_cluster_local
from serving.controller.public import PUBLIC_PORT
from serving.controller.writes import Create, ResourceKind, Write, deletion_of, patch_of
from serving.model.knative import ROUTE_LABEL, SERVICE_LABEL, ConditionStatus
from serving.model.objects import (
    Object,
    is_controlled_by,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
)
from serving.model.rollout import Rollout
from serving.settings.controller import ControllerSettings

__all__ = ["HttpRoutes", "desired_httproutes", "httproute_owner_name", "reconcile_httproutes"]

_API = "gateway.networking.k8s.io/v1"
_GROUP = "gateway.networking.k8s.io"
_TAG_HEADER = "Knative-Serving-Tag"
_NAMESPACE_HEADER, _REVISION_HEADER = "Knative-Serving-Namespace", "Knative-Serving-Revision"
# Of one rule, and of one HTTPRoute: what the definition of HTTPRoute allows.
_BACKENDS_MAX = 16
_RULES_MAX = 16
_MATCHES_MAX = 64
_WHOLE = 100
# What a Gateway may say about an HTTPRoute. Programmed is of Gateways; who says it here means it.
_ASKED = ("Accepted", "ResolvedRefs", "Programmed")
_CONDITION = "IngressReady"
# Knative's word for it.
_NOT_READY = "HTTPRouteNotReady"

_NO_ROLLOUT = Rollout()

Desired = Mapping[str, Object]


class HttpRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """What there is: all HTTPRoutes of names that are a route's, whoever made them.

    ``missing`` says why there can be none, "" if there can.
    """

    found: Sequence[Object] = ()
    missing: str = ""


def httproute_owner_name(name: str) -> str:
    """The route of an HTTPRoute of ours: "hello" of "hello.blue". Names of routes have no dots."""
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
    """What is to be written for a route with this traffic, and IngressReady.

    ``targets`` is None while none is assigned: then what is there stays.
    """
    if routes.missing:
        return (), _condition(ConditionStatus.FALSE, "GatewayApiMissing", routes.missing)
    if targets is None:
        return (), _condition(ConditionStatus.UNKNOWN, "IngressNotConfigured", "No traffic is assigned yet.")
    desired = desired_httproutes(route, targets, rollout=rollout, settings=settings, lost=lost)
    if isinstance(desired, Condition):
        return (), desired
    return _writes(route, routes, desired), _told_of(route, routes, desired, gateway=settings.gateway)


def desired_httproutes(
    route: Object,
    targets: Sequence[Object],
    *,
    rollout: Rollout = _NO_ROLLOUT,
    settings: ControllerSettings,
    lost: Mapping[str, Key],
) -> Desired | Condition:
    """The HTTPRoutes that a route should have, by name, for traffic that is assigned; or why there can be none.

    A host that another route holds gets none, and neither does a route that is not public.
    """
    if is_cluster_local(route):
        return {}
    shares = _shares(targets)
    tags = _tag_shares(targets, rollout)
    said = _excess(shares, tags)
    if said:
        return _condition(ConditionStatus.FALSE, "TooManyTargets", said)
    made: dict[str, Object] = {}
    for tag in ("", *tags):
        host = hosts_of(route, settings, tag=tag).shown
        rules = [_rule(route, tags[tag])] if tag else _rules(route, shares, tags)
        if rules and host not in lost:
            one = _httproute(route, tag, host=host, rules=rules, gateway=settings.gateway)
            made[name_of(one)] = one
    return made


def _writes(route: Object, routes: HttpRoutes, desired: Desired) -> tuple[Write, ...]:
    """What is to be written so that a route has these HTTPRoutes, and no others. What is not its own is left alone."""
    found = {name_of(one): one for one in routes.found}
    writes: list[Write] = []
    for name, wanted in desired.items():
        before = found.get(name)
        if before is None:
            writes.append(Create(resource=ResourceKind.HTTP_ROUTE, body=wanted))
        elif is_controlled_by(before, route):
            writes += patch_of(ResourceKind.HTTP_ROUTE, before, _changes(before, wanted))
    leftover = [one for name, one in found.items() if name not in desired and is_controlled_by(one, route)]
    return (*writes, *(deletion_of(ResourceKind.HTTP_ROUTE, one) for one in leftover))


def _told_of(route: Object, routes: HttpRoutes, desired: Desired, *, gateway: str) -> Condition:
    """IngressReady, as the Gateway tells of the HTTPRoutes in their present generation: the first that is not well."""
    found = {name_of(one): one for one in routes.found}
    verdicts = [_verdict(route, found.get(name), wanted, gateway=gateway) for name, wanted in desired.items()]
    for status in (ConditionStatus.FALSE, ConditionStatus.UNKNOWN):
        for one in verdicts:
            if one.status is status:
                return one
    return Condition(type=_CONDITION, status=ConditionStatus.TRUE)


def _shares(targets: Iterable[Object]) -> dict[str, int]:
    """Percent by revision: two targets may name the same one."""
    shares: dict[str, int] = {}
    for target in targets:
        if target.get("percent"):
            name = target["revisionName"]
            shares[name] = shares.get(name, 0) + target["percent"]
    return shares


def _tag_shares(targets: Iterable[Object], rollout: Rollout) -> dict[str, dict[str, int]]:
    """Percent by revision, by tag: all to its revision, but for a tag whose target is being rolled out."""
    shares = {target["tag"]: {target["revisionName"]: _WHOLE} for target in targets if target.get("tag")}
    for one in rollout.configurations:
        if one.tag in shares:
            shares[one.tag] = {share.revision_name: share.percent for share in one.revisions}
    return shares


def _excess(shares: Mapping[str, int], tags: Mapping[str, Mapping[str, int]]) -> str:
    """What is more than an HTTPRoute takes; "" if nothing is."""
    for count, most, what in (
        (len(shares), _BACKENDS_MAX, "revisions that share the traffic"),
        (len(_by_shares(tags)), _RULES_MAX - 1, "revisions with tags"),
        (len(tags), _MATCHES_MAX, "tags"),
    ):
        if count > most:
            return f"An HTTPRoute takes {most} {what}, and there are {count}."
    return ""


def _by_shares(tags: Mapping[str, Mapping[str, int]]) -> dict[tuple[tuple[str, int], ...], list[str]]:
    """Tags by their revisions and percents: tags that route alike share a rule."""
    found: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for tag, shares in tags.items():
        found.setdefault(tuple(shares.items()), []).append(tag)
    return found


def _rules(route: Object, shares: Mapping[str, int], tags: Mapping[str, Mapping[str, int]]) -> list[Object]:
    """Those of the route's own host: the revisions that a tag header may ask for, then the weights."""
    if not shares:
        return []
    asked = [_rule(route, dict(alike), tags=names) for alike, names in _by_shares(tags).items()]
    return [*asked, _rule(route, shares)]


def _rule(route: Object, shares: Mapping[str, int], *, tags: Sequence[str] = ()) -> Object:
    everywhere = {"path": {"type": "PathPrefix", "value": "/"}}
    matches = [{**everywhere, "headers": [{"type": "Exact", "name": _TAG_HEADER, "value": tag}]} for tag in tags]
    return {
        "matches": matches or [everywhere],
        "backendRefs": [_backend(namespace_of(route), name, weight) for name, weight in shares.items()],
        # Activators and queue-proxies have their own, by revision.
        "timeouts": {"request": "0s"},
    }


def _backend(namespace: str, revision: str, weight: int) -> Object:
    told = ((_NAMESPACE_HEADER, namespace), (_REVISION_HEADER, revision))
    return {
        "group": "",
        "kind": "Service",
        "name": revision,
        "port": PUBLIC_PORT,
        "weight": weight,
        # Set and not added: what the client wrote there is gone.
        "filters": [
            {
                "type": "RequestHeaderModifier",
                "requestHeaderModifier": {"set": [{"name": name, "value": value} for name, value in told]},
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


def _changes(before: Object, wanted: Object) -> Object:
    """The parts of the spec that do not say what is wanted. A merge patch replaces lists, so that each goes whole."""
    parts = {key: value for key, value in wanted["spec"].items() if not _says(nested(before, "spec", key), value)}
    return {"spec": parts} if parts else {}


def _says(found: object, wanted: object) -> bool:
    """Whether all that is wanted stands there; what only stands there, the server has filled in."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_says(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_says, found, wanted))
    return found == wanted


def _verdict(route: Object, found: Object | None, wanted: Object, *, gateway: str) -> Condition:
    name = name_of(wanted)
    if found is not None and not is_controlled_by(found, route):
        return _condition(
            ConditionStatus.FALSE, "NotOwned", f'There is an existing HTTPRoute "{name}" that we do not own.'
        )
    told = [] if found is None or _changes(found, wanted) else _told(found, gateway)
    for one in told:
        if one.get("status") == ConditionStatus.FALSE:
            message = f'Gateway "{gateway}" does not take HTTPRoute "{name}": {one.get("message") or one.get("type")}'
            return _condition(ConditionStatus.FALSE, one.get("reason") or _NOT_READY, message)
    is_accepted = any(one.get("type") == "Accepted" for one in told)
    if is_accepted and all(one.get("status") == ConditionStatus.TRUE for one in told):
        return Condition(type=_CONDITION, status=ConditionStatus.TRUE)
    message = f'HTTPRoute "{name}" waits for Gateway "{gateway}" to accept it.'
    return _condition(ConditionStatus.UNKNOWN, _NOT_READY, message)


def _told(found: Object, gateway: str) -> list[Object]:
    """What is said about the present generation for this Gateway, by whoever implements it."""
    generation = nested(found, "metadata", "generation") or 0
    return [
        condition
        for parent in nested(found, "status", "parents") or ()
        if _is_of(found, nested(parent, "parentRef"), gateway)
        for condition in parent.get("conditions") or ()
        if condition.get("type") in _ASKED and (condition.get("observedGeneration") or generation) >= generation
    ]


def _is_of(found: Object, parent: object, gateway: str) -> bool:
    """An implementation may leave out what it takes for granted: the namespace of the HTTPRoute."""
    return f"{nested(parent, 'namespace') or namespace_of(found)}/{nested(parent, 'name')}" == gateway


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=_CONDITION, status=status, reason=reason, message=message)
