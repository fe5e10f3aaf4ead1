"""LimitRanges: defaults for the resources of containers, and bounds for containers and pods. Pure.

Input: a Pod and the LimitRanges of its namespace, in the order of their names. Output: the pod with the defaults, and each breach in
the words of a kube-apiserver. Follows kubernetes/kubernetes 1.31, plugin/pkg/admission/limitranger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serving.home.admission.quotas import pod_sums
from serving.model.amounts import Amounts, ExactAmount, amounts_of
from serving.model.objects import Object, annotations_of, name_of, nested

_NOTE = "kubernetes.io/limit-ranger"
_FIELDS = ("requests", "limits")
_CONTAINERS = (("containers", "container"), ("initContainers", "init container"))


def with_limit_defaults(pod: Object, ranges: Iterable[Object]) -> Object:
    """The pod with the defaults that its containers leave open, and the annotation that lists them."""
    spec = {**pod["spec"]}
    notes: list[str] = []
    for limit_range in sorted(ranges, key=name_of):
        defaults = _defaults(limit_range)
        for field, title in _CONTAINERS:
            filled = [_filled(container, defaults) for container in spec.get(field) or ()]
            notes += [f"{said} for {title} {one.get('name', '')}" for one, every in filled for said in every]
            if filled:
                spec[field] = [one for one, _ in filled]
    if not notes:
        return pod
    annotations = {**annotations_of(pod), _NOTE: f"LimitRanger plugin set: {'; '.join(notes)}"}
    return {**pod, "spec": spec, "metadata": {**pod["metadata"], "annotations": annotations}}


def _defaults(limit_range: Object) -> dict[str, dict[str, str]]:
    """The requests and limits of a container without: a limit is the maximum, a request the limit or the minimum, if not given."""
    found: dict[str, dict[str, str]] = {"limits": {}, "requests": {}}
    for item in _items(limit_range, "Container"):
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        found["limits"] |= limits
        found["requests"] |= requests
    return found


def _filled(container: Object, defaults: Mapping[str, Mapping[str, str]]) -> tuple[Object, list[str]]:
    """A container with the defaults, and what was set: "cpu, memory request", "memory limit"."""
    resources = {**(container.get("resources") or {})}
    said: list[str] = []
    # A request that is missing is its limit.
    own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    given = {"requests": own, "limits": resources.get("limits") or {}}
    for field in _FIELDS:
        missing = {name: text for name, text in defaults[field].items() if name not in given[field]}
        if missing:
            resources[field] = {**given[field], **missing}
            said.append(f"{', '.join(sorted(missing))} {field.removesuffix('s')}")
    return {**container, "resources": resources} if said else container, said


def limit_breaches(pod: Object, ranges: Iterable[Object]) -> list[str]:
    """What of a pod is out of bounds, in the order of the LimitRanges."""
    spec = pod["spec"]
    found: list[str] = []
    every = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for limit_range in sorted(ranges, key=name_of):
        for item in _items(limit_range, "Container"):
            for container in every:
                found += _breaches(item, *(_of_container(container, field) for field in _FIELDS), title="Container")
        for item in _items(limit_range, "Pod"):
            found += _breaches(item, *(pod_sums(spec, field) for field in _FIELDS), title="Pod")
    return found


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
    what: str, bound: ExactAmount, given: Sequence[tuple[str, ExactAmount | None]], *, is_max: bool
) -> Iterator[str]:
    """The first of the two that is out of bounds; the first one must be given."""
    for index, (title, amount) in enumerate(given):
        if amount is None and not index:
            yield f"{what}.  No {title} is specified"
            return
        if amount is not None and (amount.nanos > bound.nanos if is_max else amount.nanos < bound.nanos):
            yield f"{what}, but {title} is {amount}"
            return


def _items(limit_range: Object, title: str) -> list[Mapping[str, Any]]:
    return [one for one in nested(limit_range, "spec", "limits") or () if one.get("type") == title]
