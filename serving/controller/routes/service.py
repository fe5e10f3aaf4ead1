"""Reconciles a Service: its Configuration and Route, and its status, which mirrors theirs.

Input: the service, its children if they exist, and whether the revision name of its template is taken; output: the
writes. Spec and labels of the children follow the service; annotations that other reconcilers own stay. The status of a
child that has not observed its latest spec is not mirrored. Follows knative/serving 98e5ef90, pkg/reconciler/service.
"""

import msgspec

from serving.controller.routes.confirmation import SILENT_S
from serving.controller.values.conditions import Condition, is_unsettled, mirrored, ready_of, status_with
from serving.controller.values.writes import UNSETTLED_S, Note, WritePlan, patch_of, status_patch
from serving.core.model.knative import (
    CLAIMED_TAGS_ANNOTATION,
    CONDITION_READY,
    LAST_APPLIED_ANNOTATION,
    ROLLED_BACK_ANNOTATION,
    ROLLOUT_ANNOTATION,
    SERVICE_LABEL,
    SERVICE_UID_LABEL,
    ConditionStatus,
    ConfigurationFields,
    RouteFields,
    ServiceFields,
    TrafficFields,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    is_being_deleted,
    is_controlled_by,
    labels_of,
    meant,
    merge_difference,
    name_of,
    namespace_of,
    nested,
    owner_reference,
    uid_of,
)
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Write

_CONFIGURATIONS_READY = "ConfigurationsReady"
_ROUTES_READY = "RoutesReady"
_MIGRATING = ("TrafficNotMigrated", "Traffic is not yet migrated to the latest revision.")
# Annotations of a child that the child's reconciler writes.
_CHILDS_OWN = {CLAIMED_TAGS_ANNOTATION, ROLLED_BACK_ANNOTATION, ROLLOUT_ANNOTATION}

FIRST_S = 60.0
"""How long a Service's first status is delayed while no pod starts, in seconds; ``kubectl get`` shows none until then."""


class ServiceChildren(msgspec.Struct, frozen=True, kw_only=True):
    """The children of a service; None for a missing child.

    ``name_is_taken``: a revision of another template has the name that the template requests.
    """

    configuration: Object | None
    route: Object | None
    name_is_taken: bool = False


def desired_configuration(service: Object) -> Object:
    """The Configuration of a service."""
    spec: ServiceFields = service["spec"]
    return _child(service, "Configuration", ConfigurationFields(template=spec["template"]))


def desired_route(service: Object) -> Object:
    """The Route of a service. A target without a revision gets the latest revision of the service's configuration."""
    spec: ServiceFields = service["spec"]
    traffic: list[TrafficFields] = [
        {"latestRevision": False, **target}
        if target.get("revisionName")
        else {"latestRevision": True, **target, "configurationName": name_of(service)}
        for target in spec.get("traffic") or [TrafficFields(latestRevision=True, percent=100)]
    ]
    return _child(service, "Route", RouteFields(traffic=traffic))


def _child(service: Object, kind: str, spec: ConfigurationFields | RouteFields) -> Object:
    annotations = {
        key: value
        for key, value in annotations_of(service).items()
        if key not in {LAST_APPLIED_ANNOTATION, *_CHILDS_OWN}
    }
    return {
        "apiVersion": service["apiVersion"],
        "kind": kind,
        "metadata": {
            "name": name_of(service),
            "namespace": namespace_of(service),
            "labels": {**labels_of(service), SERVICE_LABEL: name_of(service), SERVICE_UID_LABEL: uid_of(service)},
            "annotations": annotations,
            "ownerReferences": [owner_reference(service)],
        },
        "spec": spec,
    }


def reconcile_service(service: Object, children: ServiceChildren, *, now: str) -> WritePlan:
    """The writes for a service."""
    if is_being_deleted(service):
        return WritePlan()
    configuration, route = children.configuration, children.route
    writes: list[Write] = list(
        _brought_about(kinds.CONFIGURATION, service, configuration, desired=desired_configuration(service))
    )
    if not _must_wait(service, children):
        writes += _brought_about(kinds.ROUTE, service, route, desired=desired_route(service))
    if any(isinstance(write, Create) for write in writes):
        # The new children report soon, which makes this status write unnecessary.
        return WritePlan(writes=tuple(writes))
    status = _status(service, children, now=now)
    patches = status_patch(kinds.SERVING_SERVICE, service, status)
    waits = bool(patches) and not writes and is_unsettled(service, status)
    return WritePlan(
        writes=(*writes, *patches),
        notes=tuple(_notes(service, status)),
        # Ready, failed and no longer ready are written immediately; not ready yet may wait.
        debounce_s=_unsettled_s(service, configuration) if waits else 0.0,
    )


def _unsettled_s(service: Object, configuration: Object | None) -> float:
    """How long the write of an unsettled status is delayed.

    The first status repeats neither an empty status nor a Route that waits for the activators.
    """
    if conditions_of(service):
        return UNSETTLED_S
    ready = condition_of(configuration or {}, CONDITION_READY).get("status")
    if ready == ConditionStatus.TRUE:
        return SILENT_S
    return UNSETTLED_S if ready == ConditionStatus.UNKNOWN else FIRST_S


def _must_wait(service: Object, children: ServiceChildren) -> bool:
    """Whether the route must not change yet.

    A template may name its revision, and the server may refuse that template. Traffic that references the name must not
    reach an earlier revision of the same name. So the route waits until ``observedGeneration`` covers the template.
    """
    if not nested(service, "spec", "template", "metadata", "name"):
        return False
    return children.name_is_taken or not _is_up_to_date(children.configuration, desired_configuration(service))


def _brought_about(kind: Kind, service: Object, existing: Object | None, *, desired: Object) -> tuple[Write, ...]:
    """The write that creates or updates a child object. The controller does not change a child of another owner."""
    if existing is None:
        return (Create(kind=kind, body=desired),)
    if not is_controlled_by(existing, service):
        return ()
    return patch_of(kind, existing, _changes(existing, desired))


def _changes(existing: Object, desired: Object) -> Object:
    retained = {key: value for key, value in annotations_of(existing).items() if key in _CHILDS_OWN}
    before = {
        "metadata": {"labels": labels_of(existing), "annotations": annotations_of(existing)},
        "spec": existing.get("spec") or {},
    }
    after = {
        "metadata": {"labels": labels_of(desired), "annotations": {**annotations_of(desired), **retained}},
        # An empty field is no change: a real API server would count a new generation, which would create a revision.
        "spec": before["spec"] if _means(existing, desired) else desired["spec"],
    }
    return merge_difference(before, after)


def _means(child: Object, desired: Object) -> bool:
    return bool(meant(child.get("spec")) == meant(desired["spec"]))


def _is_up_to_date(child: Object | None, desired: Object) -> bool:
    return (
        child is not None
        and _means(child, desired)
        and nested(child, "status", "observedGeneration") == nested(child, "metadata", "generation")
    )


def _status(service: Object, children: ServiceChildren, *, now: str) -> Object:
    configuration = _own(children.configuration, service)
    route = _own(children.route, service)
    dependencies = [_configurations_ready(service, children), _routes_ready(service, children)]
    mirrored_fields = {
        **{
            key: nested(configuration, "status", key)
            for key in ("latestCreatedRevisionName", "latestReadyRevisionName")
        },
        **{key: nested(route, "status", key) for key in ("url", "address", "traffic")},
    }
    return status_with(service, [*dependencies, ready_of(dependencies)], mirrored_fields, now=now)


def _own(child: Object | None, service: Object) -> Object | None:
    return child if child is not None and is_controlled_by(child, service) else None


def _configurations_ready(service: Object, children: ServiceChildren) -> Condition:
    child = children.configuration
    if child is not None and not is_controlled_by(child, service):
        return _not_owned(_CONFIGURATIONS_READY, "Configuration", service)
    if not _is_up_to_date(child, desired_configuration(service)):
        return _out_of_date(_CONFIGURATIONS_READY, "Configuration")
    return mirrored(condition_of(child, CONDITION_READY), _CONFIGURATIONS_READY)


def _routes_ready(service: Object, children: ServiceChildren) -> Condition:
    child = children.route
    if child is not None and not is_controlled_by(child, service):
        return _not_owned(_ROUTES_READY, "Route", service)
    if children.name_is_taken:
        name = nested(service, "spec", "template", "metadata", "name")
        message = f'The revision name "{name}" is taken by a conflicting Revision, so traffic will not be migrated'
        return Condition(type=_ROUTES_READY, status=ConditionStatus.FALSE, reason="RevisionNameTaken", message=message)
    if child is None or not _is_up_to_date(child, desired_route(service)):
        return _out_of_date(_ROUTES_READY, "Route")
    condition = mirrored(condition_of(child, CONDITION_READY), _ROUTES_READY)
    if condition.status is ConditionStatus.TRUE and not _is_migrated(child, children.configuration):
        reason, message = _MIGRATING
        return Condition(type=_ROUTES_READY, status=ConditionStatus.UNKNOWN, reason=reason, message=message)
    return condition


def _is_migrated(route: Object, configuration: Object | None) -> bool:
    """Whether ``status.traffic`` equals ``spec.traffic`` with the current latest ready revision."""
    latest = nested(configuration, "status", "latestReadyRevisionName")
    keys = ("percent", "tag")
    wanted = [
        (latest if target.get("configurationName") else target.get("revisionName"), *map(target.get, keys))
        for target in nested(route, "spec", "traffic") or ()
    ]
    present = [
        (target.get("revisionName"), *map(target.get, keys)) for target in nested(route, "status", "traffic") or ()
    ]
    return wanted == present


def _not_owned(condition_type: str, kind: str, service: Object) -> Condition:
    message = f'There is an existing {kind} "{name_of(service)}" that we do not own.'
    return Condition(type=condition_type, status=ConditionStatus.FALSE, reason="NotOwned", message=message)


def _out_of_date(condition_type: str, kind: str) -> Condition:
    message = f"The {kind} is still working to reflect the latest desired specification."
    return Condition(type=condition_type, status=ConditionStatus.UNKNOWN, reason="OutOfDate", message=message)


def _notes(service: Object, status: Object) -> list[Note]:
    """Events for a service that fails, or works again. Its condition shows the first readiness."""
    old, new = condition_of(service, CONDITION_READY), condition_of({"status": status}, CONDITION_READY)
    if (old.get("status"), new.get("status")) == (ConditionStatus.FALSE, ConditionStatus.TRUE):
        return [Note(about=service, reason="ServiceReady", message=f"Service is ready at {status.get('url', '')}")]
    if new.get("status") == ConditionStatus.FALSE and new.get("message") != old.get("message"):
        return [Note(about=service, reason=new.get("reason", ""), message=new.get("message", ""), warning=True)]
    return []
