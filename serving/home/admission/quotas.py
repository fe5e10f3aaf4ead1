"""Enforces ResourceQuotas and LimitRanges: usage, quota status, defaults, and rejections. Pure.

Input: API objects. Output: amounts by resource name as in ``spec.hard``, or a kube-apiserver's message for a rejected
object. Follows kubernetes/kubernetes 1.31, pkg/quota/v1 and
staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.objects import FINISHED_PHASES, Object, annotations_of, name_of, nested
from serving.core.model.quantity import Amounts, ExactAmount, amounts_of, pod_peak, total
from serving.net.cluster.kinds import KINDS, POD, SERVICE, Kind

_ONE = ExactAmount(10**9)
# Resources with separate quotas for request and limit; the plain name is the request.
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
# With a quota on one of these, each container must specify an amount.
_NEEDED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_COUNT = "count/"
_SERVICE_TYPES = {"LoadBalancer": "services.loadbalancers", "NodePort": "services.nodeports"}
# Kinds with a quota under their plain name, which is older than "count/".
_PLAIN = ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services")
_KINDS = {kind.resource: kind for kind in KINDS if kind.namespaced}

_NOTE = "kubernetes.io/limit-ranger"
_FIELDS = ("requests", "limits")
_CONTAINERS = (("containers", "container"), ("initContainers", "init container"))


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that one object uses of its namespace's quotas.

    ``usage`` are amounts by resource, and ``scopes`` the quota scopes that match a pod. ``priority_class`` is the
    pod's, or "".
    """

    usage: Amounts
    scopes: frozenset[str] = frozenset()
    priority_class: str = ""


ClaimsOf = Callable[[Kind], Iterable[Claim]]
"""The claims of all objects of a kind in one namespace."""


def claim_of(kind: Kind, whole: Object) -> Claim:
    """The resources that an object uses of quotas. A finished pod counts only for ``count/pods``.

    Raises ``InvalidValue`` for an invalid amount.
    """
    usage = {_COUNT + kind.resource: _ONE}
    if kind != POD:
        if kind.resource in _PLAIN:
            usage[kind.resource] = _ONE
        by_type = _SERVICE_TYPES.get(nested(whole, "spec", "type") or "")
        if kind == SERVICE and by_type:
            usage[by_type] = _ONE
        return Claim(usage=usage)
    spec = nested(whole, "spec") or {}
    if nested(whole, "status", "phase") in FINISHED_PHASES:
        return Claim(usage=usage, scopes=_scopes(spec, usage))
    requests, limits = pod_sums(spec, "requests"), pod_sums(spec, "limits")
    usage[POD.resource] = _ONE
    for name, amount in requests.items():
        usage[f"requests.{name}"] = amount
        if name in _COMPUTE or name.startswith("hugepages-"):
            usage[name] = amount
    usage |= {f"limits.{name}": limits[name] for name in _COMPUTE if name in limits}
    return Claim(usage=usage, scopes=_scopes(spec, usage), priority_class=spec.get("priorityClassName") or "")


def pod_sums(spec: Mapping[str, Any], field: str) -> dict[str, ExactAmount]:
    """A pod's ``requests`` or ``limits`` by resource: its containers' sum, or its largest init container if larger.

    Example: containers of 1 and 2 cpu after an init container of 4: max(4, 1 + 2) = 4.
    """
    peak = pod_peak(
        (amounts_of(nested(container, "resources", field) or {}) for container in spec.get("containers") or ()),
        (
            (
                amounts_of(nested(init_container, "resources", field) or {}),
                init_container.get("restartPolicy") == "Always",
            )
            for init_container in spec.get("initContainers") or ()
        ),
        none={},
        add=lambda amounts, other: total((amounts, other)),
        larger=_largest,
    )
    return total((peak, amounts_of(spec.get("overhead"))))


def _largest(amounts: Amounts, other: Amounts) -> dict[str, ExactAmount]:
    return {
        name: max((part[name] for part in (amounts, other) if name in part), key=lambda amount: amount.nanos)
        for name in {**amounts, **other}
    }


def _scopes(spec: Mapping[str, Any], usage: Amounts) -> frozenset[str]:
    ends = spec.get("activeDeadlineSeconds") is not None
    effort = any(name.partition(".")[2] in _COMPUTE[:2] and usage[name].nanos for name in usage)
    return frozenset(("Terminating" if ends else "NotTerminating", "NotBestEffort" if effort else "BestEffort"))


def _is_counted(quota: Object, claim: Claim) -> bool:
    """Whether a quota counts an object. A quota with scopes counts the pods that match all scopes."""
    written = nested(quota, "spec", "scopeSelector", "matchExpressions") or ()
    requirements = [
        *({"scopeName": scope, "operator": "Exists"} for scope in nested(quota, "spec", "scopes") or ()),
        *written,
    ]
    return all(_is_in(requirement, claim) for requirement in requirements)


def _is_in(requirement: Mapping[str, Any], claim: Claim) -> bool:
    if requirement.get("scopeName") != "PriorityClass":
        return requirement.get("scopeName") in claim.scopes
    mine, values = claim.priority_class, requirement.get("values") or ()
    match requirement.get("operator"):
        case "Exists":
            return bool(mine)
        case "In":
            return mine in values
        case "NotIn":
            return bool(claim.scopes) and mine not in values
        case _:
            return bool(claim.scopes) and not mine


def counted_kinds(quota: Object) -> frozenset[Kind]:
    """The kinds that a quota counts. A limit such as ``requests.cpu`` counts pods; ``count/secrets`` counts Secrets."""
    named = (name.removeprefix(_COUNT) for name in nested(quota, "spec", "hard") or ())
    plain = (SERVICE.resource if name in _SERVICE_TYPES.values() else name for name in named)
    return frozenset(_KINDS.get(name, POD) for name in plain)


def quota_refusal(kind: Kind, new: Object, quotas: Sequence[Object], *, claims_of: ClaimsOf) -> str:
    """Why the namespace's quotas refuse a new object; "" if they admit it."""
    claim = claim_of(kind, new)
    for quota in sorted(quotas, key=name_of):
        hard = amounts_of(nested(quota, "spec", "hard"))
        requested = {name: claim.usage[name] for name in hard if name in claim.usage}
        if not _is_counted(quota, claim):
            continue
        missing = _missing(new, hard) if kind == POD else ""
        if missing:
            return f"failed quota: {name_of(quota)}: must specify {missing}"
        if not requested:
            continue
        used = _used(quota, hard, claims_of(kind))
        over = [
            name
            for name, amount in sorted(requested.items())
            if amount.nanos > 0 and used[name].nanos + amount.nanos > hard[name].nanos
        ]
        if over:
            texts = (",".join(f"{name}={part[name]}" for name in over) for part in (requested, used, hard))
            return "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(name_of(quota), *texts)
    return ""


def _missing(pod: Object, hard: Amounts) -> str:
    """The limited resources that containers do not set: "limits.cpu for: app,helper; memory for: app"."""
    parts = []
    for name in sorted(amount_name for amount_name in hard if amount_name in _NEEDED):
        part, _, resource = name.rpartition(".")
        every = [*(nested(pod, "spec", "containers") or ()), *(nested(pod, "spec", "initContainers") or ())]
        lacking = {
            container.get("name", "")
            for container in every
            if resource not in (nested(container, "resources", part or "requests") or {})
        }
        if lacking:
            parts.append(f"{name} for: {','.join(sorted(lacking))}")
    return "; ".join(parts)


def _used(quota: Object, hard: Amounts, claims: Iterable[Claim]) -> dict[str, ExactAmount]:
    counted = (claim.usage for claim in claims if _is_counted(quota, claim))
    used = total({name: usage[name] for name in hard if name in usage} for usage in counted)
    return {name: used.get(name, ExactAmount(0)) for name in hard}


def quota_status(quota: Object, claims_of: ClaimsOf) -> Object:
    """The status of a quota: its limits, and the usage of each."""
    hard = amounts_of(nested(quota, "spec", "hard"))
    parts = [_used(quota, hard, claims_of(kind)) for kind in counted_kinds(quota)]
    used = total(parts)
    return {
        "hard": {name: str(amount) for name, amount in hard.items()},
        "used": {name: str(used[name]) for name in hard},
    }


def with_limit_defaults(pod: Object, ranges: Iterable[Object]) -> Object:
    """The pod with LimitRange defaults filled in, and an annotation listing them."""
    spec = {**pod["spec"]}
    notes: list[str] = []
    for limit_range in sorted(ranges, key=name_of):
        defaults = _defaults(limit_range)
        for field, title in _CONTAINERS:
            filled = [_filled(container, defaults) for container in spec.get(field) or ()]
            notes += [
                f"{resources} for {title} {container.get('name', '')}"
                for container, every in filled
                for resources in every
            ]
            if filled:
                spec[field] = [container for container, _ in filled]
    if not notes:
        return pod
    annotations = {**annotations_of(pod), _NOTE: f"LimitRanger plugin set: {'; '.join(notes)}"}
    return {**pod, "spec": spec, "metadata": {**pod["metadata"], "annotations": annotations}}


def _defaults(limit_range: Object) -> dict[str, dict[str, str]]:
    """A container's default limits and requests from a LimitRange, by "limits" or "requests", and by resource.

    Without an explicit default, the limit is ``max``, and the request is the limit or else ``min``.
    """
    defaults: dict[str, dict[str, str]] = {"limits": {}, "requests": {}}
    for item in _items(limit_range, "Container"):
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        defaults["limits"] |= limits
        defaults["requests"] |= requests
    return defaults


def _filled(container: Object, defaults: Mapping[str, Mapping[str, str]]) -> tuple[Object, list[str]]:
    """A container with defaults filled in, and the names of these defaults: "cpu, memory request", "memory limit"."""
    resources = {**(container.get("resources") or {})}
    filled: list[str] = []
    # A missing request equals the limit.
    own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    amounts = {"requests": own, "limits": resources.get("limits") or {}}
    for field in _FIELDS:
        missing = {name: text for name, text in defaults[field].items() if name not in amounts[field]}
        if missing:
            resources[field] = {**amounts[field], **missing}
            filled.append(f"{', '.join(sorted(missing))} {field.removesuffix('s')}")
    return {**container, "resources": resources} if filled else container, filled


def limit_breaches(pod: Object, ranges: Iterable[Object]) -> list[str]:
    """The messages about amounts of a pod that violate LimitRanges, sorted by the names of the LimitRanges."""
    spec = pod["spec"]
    breaches: list[str] = []
    every = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for limit_range in sorted(ranges, key=name_of):
        for item in _items(limit_range, "Container"):
            for container in every:
                breaches += _breaches(item, *(_of_container(container, field) for field in _FIELDS), title="Container")
        for item in _items(limit_range, "Pod"):
            breaches += _breaches(item, *(pod_sums(spec, field) for field in _FIELDS), title="Pod")
    return breaches


def _of_container(container: Object, field: str) -> Amounts:
    return pod_sums({"containers": [container]}, field)


def _breaches(item: Mapping[str, Any], requests: Amounts, limits: Amounts, *, title: str) -> Iterator[str]:
    for name, bound in sorted(amounts_of(item.get("min")).items()):
        what = f"minimum {name} usage per {title} is {bound}"
        yield from _out_of(what, bound, (("request", requests.get(name)), ("limit", limits.get(name))), is_max=False)
    for name, bound in sorted(amounts_of(item.get("max")).items()):
        what = f"maximum {name} usage per {title} is {bound}"
        yield from _out_of(what, bound, (("limit", limits.get(name)), ("request", requests.get(name))), is_max=True)
    for name, bound in sorted(amounts_of(item.get("maxLimitRequestRatio")).items()):
        what = f"{name} max limit to request ratio per {title} is {bound}"
        request, limit = requests.get(name, ExactAmount(0)), limits.get(name, ExactAmount(0))
        if not request.nanos:
            yield f"{what}, but no request is specified or request is 0"
        elif not limit.nanos:
            yield f"{what}, but no limit is specified or limit is 0"
        elif limit.nanos * 10**9 > request.nanos * bound.nanos:
            yield f"{what}, but provided ratio is {limit.nanos / request.nanos:f}"


def _out_of(
    what: str, bound: ExactAmount, amounts: Sequence[tuple[str, ExactAmount | None]], *, is_max: bool
) -> Iterator[str]:
    """Yield at most one message about amounts that violate a bound of a LimitRange.

    ``amounts`` are pairs of a title and an amount, None if it is not set. The first amount must be set, and each set
    amount must be at most ``bound`` if ``is_max``, otherwise at least ``bound``. The message begins with ``what``.
    """
    for index, (title, amount) in enumerate(amounts):
        if amount is None and not index:
            yield f"{what}.  No {title} is specified"
            return
        if amount is not None and (amount.nanos > bound.nanos if is_max else amount.nanos < bound.nanos):
            yield f"{what}, but {title} is {amount}"
            return


def _items(limit_range: Object, title: str) -> list[Mapping[str, Any]]:
    return [limit for limit in nested(limit_range, "spec", "limits") or () if limit.get("type") == title]
