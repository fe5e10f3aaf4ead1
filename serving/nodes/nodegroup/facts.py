"""Reads objects for node groups: the state of a Node, and the requests and placement of a Pod.

Input: API objects; output: the records of ``records.py``. An invalid amount counts as absent; the API server refuses
such values anyway. Source of the rules: atlassian/escalator 043bb1b, pkg/k8s.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import (
    CONFIG_SOURCE_ANNOTATION,
    FORCE_REMOVAL_TAINT,
    MIRROR_POD_ANNOTATION,
    NO_DELETE_ANNOTATION,
    REMOVAL_TAINT,
    ConditionStatus,
)
from serving.core.model.objects import condition_of, nested, timestamp_s
from serving.core.model.quantity import Resources, pod_peak, resources_of
from serving.nodes.nodegroup.records import (
    Affinity,
    Amount,
    Expression,
    GroupNode,
    GroupPod,
    Placement,
    PodPhase,
    RemovalTaint,
)

_ALWAYS = "Always"
_FROM_FILE = "file"
_PHASES = {phase.value: phase for phase in PodPhase}


class InitContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an init container. A sidecar (restartPolicy Always) keeps running with later containers."""

    request: Resources
    is_sidecar: bool = False


def pod_request(
    containers: Sequence[Resources],
    init_containers: Sequence[InitContainer] = (),
    *,
    overhead: Resources | None = None,
    sidecars_count_as_init_containers: bool = False,
) -> Amount:
    """Cpu and memory of a pod: the sum of its containers, or the largest init container if larger, plus overhead.

    Example: containers of 2000 m and 1000 m after init containers of 2000 m and 2000 m: max(3000, 2000) = 3000 m. Init
    containers run one after another, so only the largest counts. A sidecar of 500 m that starts before them keeps
    running: max(3500, 2500) = 3500 m. With the quirk ``sidecars_count_as_init_containers`` the sidecar
    counts as an ordinary init container.
    """
    before = [
        (_amount(init_container.request), init_container.is_sidecar and not sidecars_count_as_init_containers)
        for init_container in init_containers
    ]
    peak = pod_peak(map(_amount, containers), before, none=Amount(), add=operator.add, larger=_larger)
    return peak + _amount(overhead or Resources())


def _amount(resources: Resources) -> Amount:
    return Amount(cpu_m=resources.cpu_m or 0, memory_bytes=resources.memory_bytes or 0)


def _larger(amount: Amount, other: Amount) -> Amount:
    return Amount(cpu_m=max(amount.cpu_m, other.cpu_m), memory_bytes=max(amount.memory_bytes, other.memory_bytes))


def node_of(node: Mapping[str, Any]) -> GroupNode:
    """The fields of a Node object that scaling uses."""
    metadata = node["metadata"]
    taints = {taint.get("key"): taint for taint in nested(node, "spec", "taints") or ()}
    removal = taints.get(REMOVAL_TAINT)
    allocatable = resources_of(nested(node, "status", "allocatable"))
    return GroupNode(
        name=metadata["name"],
        created_at_s=timestamp_s(metadata.get("creationTimestamp") or "") or 0.0,
        allocatable=Amount(cpu_m=allocatable.cpu_m or 0, memory_bytes=allocatable.memory_bytes or 0),
        labels=metadata.get("labels") or {},
        is_cordoned=bool(nested(node, "spec", "unschedulable")),
        is_force_tainted=FORCE_REMOVAL_TAINT in taints,
        removal_taint=None if removal is None else RemovalTaint(at_s=_unix_s(removal.get("value"))),
        is_protected=bool((metadata.get("annotations") or {}).get(NO_DELETE_ANNOTATION)),
        is_ready=condition_of(node, "Ready").get("status") == ConditionStatus.TRUE,
    )


def pod_of(pod: Mapping[str, Any]) -> GroupPod:
    """The fields of a Pod object that scaling uses."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    scheduled = condition_of(pod, "PodScheduled").get("status") == ConditionStatus.TRUE
    request = _request(spec)
    original = _request(spec, sidecars_count_as_init_containers=True) if spec.get("initContainers") else request
    return GroupPod(
        name=f"{metadata.get('namespace', '')}/{metadata['name']}",
        request=request,
        phase=_PHASES.get(nested(pod, "status", "phase") or "", PodPhase.UNKNOWN),
        node_name=spec.get("nodeName") or None,
        is_scheduled=scheduled,
        placement=_placement(metadata, spec),
        original_request=None if original == request else original,
    )


def is_mirror_pod(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is static. The API cannot evict a static pod."""
    annotations = nested(pod, "metadata", "annotations") or {}
    return MIRROR_POD_ANNOTATION in annotations or annotations.get(CONFIG_SOURCE_ANNOTATION) == _FROM_FILE


def _request(spec: Mapping[str, Any], *, sidecars_count_as_init_containers: bool = False) -> Amount:
    before = [
        InitContainer(request=_requested(init_container), is_sidecar=init_container.get("restartPolicy") == _ALWAYS)
        for init_container in spec.get("initContainers") or ()
    ]
    overhead = spec.get("overhead")
    return pod_request(
        [_requested(container) for container in spec.get("containers") or ()],
        before,
        overhead=resources_of(overhead),
        sidecars_count_as_init_containers=sidecars_count_as_init_containers,
    )


def _requested(container: Mapping[str, Any]) -> Resources:
    return resources_of((container.get("resources") or {}).get("requests"))


def _placement(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Placement:
    owners = metadata.get("ownerReferences") or ()
    return Placement(
        node_selector=spec.get("nodeSelector") or {},
        affinity=_affinity(spec.get("affinity")),
        owner_kind=_owner_kind(owners),
        is_static=(metadata.get("annotations") or {}).get(CONFIG_SOURCE_ANNOTATION) == _FROM_FILE,
    )


def _owner_kind(owners: Iterable[Mapping[str, Any]]) -> str | None:
    """``DaemonSet`` if any owner is one (as in Escalator), else the kind of the first owner; None without owners."""
    kinds = [str(owner.get("kind", "")) for owner in owners]
    return "DaemonSet" if "DaemonSet" in kinds else (kinds[0] if kinds else None)


def _affinity(written: Mapping[str, Any] | None) -> Affinity | None:
    if written is None:
        return None
    node = written.get("nodeAffinity")
    terms = nested(node, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms") or ()
    return Affinity(
        required_node_terms=None if node is None else tuple(_term(term) for term in terms),
        has_pod_affinity=written.get("podAffinity") is not None,
        has_pod_anti_affinity=written.get("podAntiAffinity") is not None,
    )


def _term(written: Mapping[str, Any]) -> tuple[Expression, ...]:
    return tuple(
        Expression(
            key=match_expression["key"],
            operator=match_expression.get("operator", ""),
            values=tuple(match_expression.get("values") or ()),
        )
        for match_expression in written.get("matchExpressions") or ()
    )


def _unix_s(value: object) -> float | None:
    text = str(value or "")
    return float(text) if text.isdecimal() else None
