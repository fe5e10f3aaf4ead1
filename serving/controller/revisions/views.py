"""A revision's scale and traffic path as Knative's internal kinds PodAutoscaler and ServerlessService.

Users and tools of Knative read both: ``kubectl get kpa,sks``. They are views, derived from the revision, its Deployment
and the slices of its public Service. No component reads them, and the API server rejects other writes to them.

Follows knative/serving 98e5ef90, pkg/apis/autoscaling/v1alpha1, and knative.dev/networking, v1alpha1.
"""

from collections.abc import Sequence

from serving.controller.revisions.public import traffic_path_of
from serving.controller.revisions.revision_status import desired_count_of, ready_count_of, was_ready
from serving.controller.values.conditions import Condition, ready_of, updated_conditions
from serving.controller.values.naming import deployment_name, private_service_name
from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    CLASS_ANNOTATION,
    CONDITION_ACTIVE,
    METRIC_ANNOTATION,
    ROUTING_STATE_LABEL,
    ConditionStatus,
    TrafficPath,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
)

_DEFAULT_CLASS = f"kpa.{AUTOSCALING_GROUP}"
_DEFAULT_METRIC = "concurrency"
_REACHABILITY = {"active": "Reachable", "reserve": "Unreachable"}
_NO_BACKENDS = "NoHealthyBackends"


def pod_autoscaler_view(
    revision: Object, deployment: Object | None, slices: Sequence[Object], *, before: Object | None, now: str
) -> Object:
    """The PodAutoscaler of a revision. ``before`` is the present view, whose transition times are kept."""
    ready_count = ready_count_of(deployment)
    defaults = {CLASS_ANNOTATION: _DEFAULT_CLASS, METRIC_ANNOTATION: _DEFAULT_METRIC}
    own = {key: value for key, value in annotations_of(revision).items() if key.startswith(f"{AUTOSCALING_GROUP}/")}
    conditions = [_active(revision), _initialized(revision, ready_count), _populated("SKSReady", slices, ready_count)]
    return {
        "apiVersion": "autoscaling.internal.knative.dev/v1alpha1",
        "kind": "PodAutoscaler",
        "metadata": {**_metadata(revision), "annotations": defaults | own},
        "spec": {
            "containerConcurrency": nested(revision, "spec", "containerConcurrency") or 0,
            "protocolType": _protocol_of(revision),
            "reachability": _REACHABILITY.get(labels_of(revision).get(ROUTING_STATE_LABEL, ""), ""),
            "scaleTargetRef": _target(revision),
        },
        "status": {
            "desiredScale": desired_count_of(deployment),
            "actualScale": ready_count,
            "serviceName": name_of(revision),
            "metricsServiceName": private_service_name(name_of(revision)),
            "conditions": _stamped(conditions, before, now=now),
        },
    }


def serverless_service_view(
    revision: Object, deployment: Object | None, slices: Sequence[Object], *, before: Object | None, now: str
) -> Object:
    """The ServerlessService of a revision. ``slices`` are the slices of its public Service, if any."""
    endpoints = [endpoint for slice_ in slices for endpoint in slice_.get("endpoints") or ()]
    names_pods = any(endpoint.get("targetRef") for endpoint in endpoints)
    wants_pods = not slices and traffic_path_of(revision) is TrafficPath.SERVE
    is_served = names_pods or wants_pods
    status = ConditionStatus.FALSE if is_served else ConditionStatus.TRUE
    activators = Condition(
        type="ActivatorEndpointsPopulated",
        status=status,
        reason="ActivatorEndpointsPopulated",
        message="Revision is backed by Activator",
        informative=True,
    )
    populated = _populated("EndpointsPopulated", slices, ready_count_of(deployment))
    return {
        "apiVersion": "networking.internal.knative.dev/v1alpha1",
        "kind": "ServerlessService",
        "metadata": _metadata(revision),
        "spec": {
            "mode": "Serve" if is_served else "Proxy",
            "numActivators": 0 if is_served else len(endpoints),
            "objectRef": _target(revision),
            "protocolType": _protocol_of(revision),
        },
        "status": {
            "serviceName": name_of(revision),
            "privateServiceName": private_service_name(name_of(revision)),
            "conditions": _stamped([populated], before, now=now, informative=[activators]),
        },
    }


def _metadata(revision: Object) -> Object:
    return {
        "name": name_of(revision),
        "namespace": namespace_of(revision),
        "labels": labels_of(revision),
        "ownerReferences": [owner_reference(revision)],
    }


def _target(revision: Object) -> Object:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment_name(name_of(revision))}


def _protocol_of(revision: Object) -> str:
    containers = nested(revision, "spec", "containers") or ()
    names = {port.get("name") for container in containers for port in container.get("ports") or ()}
    return "h2c" if "h2c" in names else "http1"


def _active(revision: Object) -> Condition:
    condition = condition_of(revision, CONDITION_ACTIVE)
    return Condition(
        type=CONDITION_ACTIVE,
        status=ConditionStatus(condition.get("status", ConditionStatus.UNKNOWN)),
        reason=condition.get("reason", ""),
        message=condition.get("message", ""),
    )


def _initialized(revision: Object, ready_count: int) -> Condition:
    is_initialized = ready_count > 0 or was_ready(revision)
    return Condition(
        type="ScaleTargetInitialized",
        status=ConditionStatus.TRUE if is_initialized else ConditionStatus.UNKNOWN,
    )


def _populated(condition_type: str, slices: Sequence[Object], ready_count: int) -> Condition:
    """Whether requests to the public Service reach pods, or an activator in a slice."""
    if ready_count or any(slice_.get("endpoints") for slice_ in slices):
        return Condition(type=condition_type, status=ConditionStatus.TRUE)
    message = "K8s Service is not ready"
    return Condition(type=condition_type, status=ConditionStatus.UNKNOWN, reason=_NO_BACKENDS, message=message)


def _stamped(
    conditions: Sequence[Condition], before: Object | None, *, now: str, informative: Sequence[Condition] = ()
) -> list[Object]:
    known = nested(before, "status", "conditions") or ()
    return updated_conditions([*conditions, ready_of(conditions), *informative], before=known, now=now)
