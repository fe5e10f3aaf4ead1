"""A revision of the class hpa: its HorizontalPodAutoscaler, which Kubernetes scales it by; our autoscaler leaves it alone.

Input: a revision, the one that is there, the autoscaler's settings; output: what to write. An hpa knows no zero: there is
always a pod, and requests go to pods directly. Follows knative/serving 98e5ef90, pkg/reconciler/autoscaling/hpa:

| metric | target | is compared with |
|---|---|---|
| cpu, which is the default | percent | the cpu that pods use, of what they request |
| memory | MiB | what a pod uses |
| any other | a number | the metric of that name of a pod, on the average, by custom.metrics.k8s.io |

Without a target Kubernetes has its own: 80 percent of the cpu. A window goes for both directions.
"""

import math
from collections.abc import Mapping

from serving.controller.naming import deployment_name
from serving.controller.routing import RoutingState
from serving.controller.writes import Create, ResourceKind, Write, deletion_of, patch_of
from serving.model.knative import (
    CONFIGURATION_LABEL,
    REVISION_LABEL,
    REVISION_UID_LABEL,
    ROUTING_STATE_LABEL,
    SERVICE_LABEL,
)
from serving.model.objects import (
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
from serving.model.quantity import format_bytes
from serving.scaling.resolve import resolve_annotations
from serving.scaling.spec import ScalingSpec
from serving.settings.annotations import read_annotations
from serving.settings.autoscaler import HPA_CLASS, AutoscalerSettings

__all__ = ["hpa_writes", "is_of_an_hpa"]

# The most that the field can say.
_NO_LIMIT = 2**31 - 1
_MIB = 2**20
_CPU, _MEMORY = "cpu", "memory"
_SUFFIXES = ("k", "M", "G", "T", "P", "E")


def is_of_an_hpa(annotations: Mapping[str, str], settings: AutoscalerSettings) -> bool:
    """Whether revisions with these annotations are scaled by a HorizontalPodAutoscaler."""
    return _spec_of(annotations, settings, reachable=True).class_name == HPA_CLASS


def hpa_writes(revision: Object, found: Object | None, settings: AutoscalerSettings) -> tuple[Write, ...]:
    """What is to be written so that a revision has the hpa that it asks for, and no other.

    One of the same name that is not the revision's is left as it is.
    """
    if found is not None and not is_controlled_by(found, revision):
        return ()
    if not is_of_an_hpa(annotations_of(revision), settings):
        return () if found is None else (deletion_of(ResourceKind.HPA, found),)
    wanted = _desired(revision, settings)
    if found is None:
        return (Create(resource=ResourceKind.HPA, body=wanted),)
    lacking = _lacking(nested(found, "spec") or {}, wanted["spec"])
    return patch_of(ResourceKind.HPA, found, {"spec": lacking} if lacking else {})


def _lacking(found: Mapping[str, object], wanted: Mapping[str, object]) -> Object:
    """What has to be added or set; what only the one that is there has, the server has filled in."""
    patch: Object = {}
    for key, value in wanted.items():
        before = found.get(key)
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
        "minReplicas": _min(resolved),
        "maxReplicas": resolved.max_scale or _NO_LIMIT,
    }
    if scaling.target is not None:
        spec["metrics"] = [_metric(scaling.metric or _CPU, scaling.target)]
    if scaling.stable_window_s is not None:
        rules = {"stabilizationWindowSeconds": int(scaling.stable_window_s)}
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


def _min(spec: ScalingSpec) -> int:
    """A revision without a route needs a single pod."""
    return max(1, spec.min_scale if spec.reachable else 0)


def _spec_of(annotations: Mapping[str, str], settings: AutoscalerSettings, *, reachable: bool) -> ScalingSpec:
    return resolve_annotations(annotations, settings, container_concurrency=0, reachable=reachable)


def _metric(name: str, target: float) -> Object:
    """Targets of an hpa are whole numbers: 70.5 percent are 71."""
    whole = math.ceil(target)
    if name == _CPU:
        return _resource(name, {"type": "Utilization", "averageUtilization": whole})
    if name == _MEMORY:
        return _resource(name, {"type": "AverageValue", "averageValue": format_bytes(whole * _MIB)})
    aim = {"type": "AverageValue", "averageValue": _quantity(whole)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": aim}}


def _quantity(whole: int) -> str:
    """As the server writes it, so that what it answers is what was asked for: 1500 is "1500", 2000 is "2k"."""
    suffixes = iter(_SUFFIXES)
    suffix = ""
    while whole % 1000 == 0 and (larger := next(suffixes, "")):
        whole, suffix = whole // 1000, larger
    return f"{whole}{suffix}"


def _resource(name: str, target: Object) -> Object:
    return {"type": "ResourceKind", "resource": {"name": name, "target": target}}
