"""The use and price of services over a range, compared with services always on and with Knative's policy. Pure.

Input: the use of revisions and services, summed up from the history (``archive``, ``board``), and the estimates of the
autoscalers. ``serving cost`` and the page show the same records.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import labels_of, name_of, namespace_of, nested
from serving.core.scaling.revision import memory_of
from serving.core.settings.autoscaler import ADAPTIVE_POLICY

History = Mapping[str, Sequence[Any]]
"""Columns by name, with the times as ``at_s``."""

# A row counts until the next row, at most for the longest step.
_STEP_MAX_S = 600.0
RATES = ("rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx")
"""The columns with responses per second."""

HOUR_S = 3600.0
GIB = 2**30


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A revision in a range: responses, 5xx responses, mean and most pods, pod-hours, and the worst p99."""

    revision: str
    requests: int
    errors: int
    pods_mean: float
    pods_max: float
    pod_hours: float
    p99_max_s: float | None


def lengths_of(times: Sequence[float]) -> list[float]:
    """The seconds from each row to the next. The last row is as long as the row before it."""
    ends = [*times[1:], times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0.0)]
    return [min(_STEP_MAX_S, end - at_s) for at_s, end in zip(times, ends, strict=True)]


def summary(revision: str, history: History) -> StatsSummary:
    """Summarise the rows of a revision. Rows of a gap have no numbers."""
    lengths_s = lengths_of(history["at_s"])

    def total(*names: str) -> float:
        return sum(float(history[name][at] or 0) * length_s for at, length_s in enumerate(lengths_s) for name in names)

    pods = [count for count in history["ready"] if count is not None]
    known_s = sum(length_s for count, length_s in zip(history["ready"], lengths_s, strict=True) if count is not None)
    return StatsSummary(
        revision=revision,
        requests=round(total(*RATES)),
        errors=round(total("rps_5xx")),
        pods_mean=total("ready") / known_s if known_s else 0.0,
        pods_max=max(pods, default=0.0),
        pod_hours=total("ready") / HOUR_S,
        p99_max_s=max((p99_s for p99_s in history["p99_s"] if p99_s is not None), default=None),
    )


def price_of(pod_hours: float, *, memory_bytes: float, prices: Mapping[str, float]) -> float | None:
    """The price of ``pod_hours`` of pods with this memory; None if no prices are set."""
    if not any(prices.values()):
        return None
    return pod_hours * (prices.get("pod_hour", 0.0) + memory_bytes / GIB * prices.get("gib_hour", 0.0))


SERVICE_KIND = "Service"


class RevisionOwner(NamedTuple):
    """The service of a revision as "namespace/name", and the memory that one of its pods requests."""

    service: str
    memory_bytes: int


class RevisionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The pod-seconds of the ready pods of a revision, which has the form "namespace/name"."""

    revision: str
    owner: RevisionOwner
    pod_s: float


class ServiceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A service's seconds with history, and the pod-seconds (``absent_s``) that a minimum of one pod would add."""

    service: str
    known_s: float
    absent_s: float


class UsageReport(msgspec.Struct, frozen=True):
    """The usage of all revisions and services in a range, each at most once."""

    revisions: list[RevisionUsage]
    services: list[ServiceUsage]


class ServiceCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a service in a range.

    The fields ``always_on_`` are the cost if one pod of the newest revision always ran. The fields ``knative_`` are the
    cost under Knative's policy, None without an estimate. Prices are None if the operator has set none. ``known_hours``
    are the hours with history.
    """

    namespace: str
    service: str
    kind: str = SERVICE_KIND
    """Service, or the kind of a workload."""

    known_hours: float
    pod_hours: float
    gib_hours: float
    price: float | None
    always_on_pod_hours: float
    always_on_price: float | None
    knative_pod_hours: float | None
    knative_price: float | None


def owner_of(revision: Mapping[str, Any]) -> RevisionOwner:
    """The owner of a Revision; the Revision itself without a Service."""
    service = labels_of(revision).get(SERVICE_LABEL) or name_of(revision)
    return RevisionOwner(f"{namespace_of(revision)}/{service}", memory_of(nested(revision, "spec", "containers") or ()))


def workload_owner(pod: Mapping[str, Any], workload: str) -> RevisionOwner:
    """The owner of a workload's pods: the workload itself, with the memory of one pod."""
    return RevisionOwner(f"{namespace_of(pod)}/{workload}", memory_of(nested(pod, "spec", "containers") or ()))


def knative_ratios(stories: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Pod-seconds under Knative's policy divided by used pod-seconds, by "namespace/revision".

    The autoscalers estimate the former. The ratio is 1 if Knative's policy is in force, or without any usage.
    """
    ratios = {}
    for story in stories:
        costs = story.get("costs") or {}
        used_s = costs.get("adaptive_pod_seconds") if story.get("policy") == ADAPTIVE_POLICY else None
        ratios[f"{story['namespace']}/{story['revision']}"] = costs["knative_pod_seconds"] / used_s if used_s else 1.0
    return ratios


def service_costs(
    usage: UsageReport,
    *,
    ratios: Mapping[str, float],
    prices: Mapping[str, float],
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> list[ServiceCost]:
    """The cost of each service, sorted by namespace and name. ``prices`` has ``pod_hour`` and ``gib_hour``; 0: unset.

    ``kinds`` has the kinds of workloads, by "namespace/name".
    """
    revisions: defaultdict[str, list[RevisionUsage]] = defaultdict(list)
    for revision in usage.revisions:
        revisions[revision.owner.service].append(revision)
    services = (service for service in usage.services if service.service in revisions)
    return sorted(
        (
            msgspec.structs.replace(
                _cost_of(service, revisions[service.service], ratios=ratios, prices=prices),
                kind=kinds.get(service.service, SERVICE_KIND),
            )
            for service in services
        ),
        key=lambda cost: (cost.namespace, cost.service),
    )


def _cost_of(
    usage: ServiceUsage,
    revisions: list[RevisionUsage],
    *,
    ratios: Mapping[str, float],
    prices: Mapping[str, float],
) -> ServiceCost:
    def price(hours: Iterable[tuple[RevisionUsage, float]]) -> float | None:
        prices_of = [price_of(own, memory_bytes=revision.owner.memory_bytes, prices=prices) for revision, own in hours]
        return sum(cost for cost in prices_of if cost is not None) if any(prices.values()) else None

    used = [(revision, revision.pod_s / HOUR_S) for revision in revisions]
    newest = max(revisions, key=lambda revision: revision.revision)
    always_on = [*used, (newest, usage.absent_s / HOUR_S)]
    is_estimated = any(revision.revision in ratios for revision in revisions)
    under = [(revision, own * ratios.get(revision.revision, 1.0)) for revision, own in used]
    namespace, _, service = usage.service.partition("/")
    return ServiceCost(
        namespace=namespace,
        service=service,
        known_hours=usage.known_s / HOUR_S,
        pod_hours=_sum(used),
        gib_hours=sum(own * revision.owner.memory_bytes / GIB for revision, own in used),
        price=price(used),
        always_on_pod_hours=_sum(always_on),
        always_on_price=price(always_on),
        knative_pod_hours=_sum(under) if is_estimated else None,
        knative_price=price(under) if is_estimated else None,
    )


def _sum(hours: Iterable[tuple[RevisionUsage, float]]) -> float:
    return sum(own for _, own in hours)
