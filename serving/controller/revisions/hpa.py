"""The HorizontalPodAutoscaler of a revision with the class hpa, which our autoscaler does not scale.

Input: a revision, its existing HorizontalPodAutoscaler, the autoscaler's settings; output: the writes. A
HorizontalPodAutoscaler cannot scale to zero: at least one pod exists, and requests go to pods directly. Follows
knative/serving 98e5ef90, pkg/reconciler/autoscaling/hpa:

| metric | target | compared with |
|---|---|---|
| cpu, the default | percent | the CPU usage of pods relative to their requests |
| memory | MiB | the memory usage of a pod |
| any other | a number | the average of the pod metric of that name, from custom.metrics.k8s.io |

Without a target Kubernetes uses 80 percent of the CPU. A window applies to both directions.
"""

import math
from collections.abc import Mapping

from serving.controller.values.naming import RoutingState, deployment_name
from serving.controller.values.writes import deletion_of, patch_of
from serving.core.model.knative import (
    CONFIGURATION_LABEL,
    REVISION_LABEL,
    REVISION_UID_LABEL,
    ROUTING_STATE_LABEL,
    SERVICE_LABEL,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    is_controlled_by,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
    uid_of,
)
from serving.core.model.quantity import INT32_MAX, format_bytes
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import HPA_CLASS, AutoscalerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write

_MIB = 2**20
_CPU, _MEMORY = "cpu", "memory"
_SUFFIXES = ("k", "M", "G", "T", "P", "E")


def is_of_an_hpa(annotations: Mapping[str, str], settings: AutoscalerSettings) -> bool:
    """Whether a HorizontalPodAutoscaler scales revisions with these annotations."""
    return _spec_of(annotations, settings, reachable=True).class_name == HPA_CLASS


def hpa_writes(revision: Object, existing: Object | None, settings: AutoscalerSettings) -> tuple[Write, ...]:
    """The writes after which a revision's HorizontalPodAutoscaler is as desired.

    An object of the same name with another owner is not changed.
    """
    if existing is not None and not is_controlled_by(existing, revision):
        return ()
    if not is_of_an_hpa(annotations_of(revision), settings):
        return () if existing is None else (deletion_of(kinds.HORIZONTAL_POD_AUTOSCALER, existing),)
    wanted = _desired(revision, settings)
    if existing is None:
        return (Create(kind=kinds.HORIZONTAL_POD_AUTOSCALER, body=wanted),)
    lacking = _lacking(nested(existing, "spec") or {}, wanted["spec"])
    return patch_of(kinds.HORIZONTAL_POD_AUTOSCALER, existing, {"spec": lacking} if lacking else {})


def _lacking(present: Mapping[str, object], wanted: Mapping[str, object]) -> Object:
    """The fields to add or change. Fields that only ``present`` has are the server's defaults."""
    patch: Object = {}
    for key, value in wanted.items():
        before = present.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = _lacking(before, value)
            if inner:
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


def _desired(revision: Object, settings: AutoscalerSettings) -> Object:
    annotations = annotations_of(revision)
    scaling = read_annotations(annotations, settings).scaling
    is_reached = labels_of(revision).get(ROUTING_STATE_LABEL) != RoutingState.RESERVE
    resolved = _spec_of(annotations, settings, reachable=is_reached)
    spec: Object = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment_name(name_of(revision))},
        # A revision without a route keeps 1.
        "minReplicas": max(1, resolved.min_scale if resolved.reachable else 0),
        "maxReplicas": resolved.max_scale or INT32_MAX,
    }
    if scaling.target is not None:
        spec["metrics"] = [_metric(scaling.metric or _CPU, scaling.target)]
    if (window_s := scaling.override("stable_window_s")) is not None:
        rules = {"stabilizationWindowSeconds": int(window_s)}
        spec["behavior"] = {"scaleDown": rules, "scaleUp": rules}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": name_of(revision),
            "namespace": namespace_of(revision),
            "labels": {
                **{
                    key: value
                    for key, value in labels_of(revision).items()
                    if key in {CONFIGURATION_LABEL, SERVICE_LABEL}
                },
                REVISION_LABEL: name_of(revision),
                REVISION_UID_LABEL: uid_of(revision),
            },
            "ownerReferences": [owner_reference(revision)],
        },
        "spec": spec,
    }


def _spec_of(annotations: Mapping[str, str], settings: AutoscalerSettings, *, reachable: bool) -> ScalingSpec:
    return resolve_annotations(annotations, settings, container_concurrency=0, reachable=reachable)


def _metric(name: str, target: float) -> Object:
    """The target rounded up to a whole number: 70.5 percent is 71."""
    whole = math.ceil(target)
    if name == _CPU:
        return _resource(name, {"type": "Utilization", "averageUtilization": whole})
    if name == _MEMORY:
        return _resource(name, {"type": "AverageValue", "averageValue": format_bytes(whole * _MIB)})
    aim = {"type": "AverageValue", "averageValue": _quantity(whole)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": aim}}


def _quantity(whole: int) -> str:
    """The quantity in the server's format, so that its response equals the request: 1500 is "1500", 2000 is "2k"."""
    suffixes = iter(_SUFFIXES)
    suffix = ""
    while whole % 1000 == 0 and (larger := next(suffixes, "")):
        whole, suffix = whole // 1000, larger
    return f"{whole}{suffix}"


def _resource(name: str, target: Object) -> Object:
    return {"type": "Resource", "resource": {"name": name, "target": target}}
