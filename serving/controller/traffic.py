"""From the traffic that a route asks for to revisions by name.

Input: the targets of its spec, the configurations and revisions that they name; output: the targets with a revision each,
or the condition that says why not. It is all or nothing: as long as one target has no ready revision, traffic stays where
it is, so that a rollout never sends a request to what has not been ready. A target that names a configuration gets the
revision of it that was ready last. Follows knative/serving 98e5ef90, pkg/reconciler/route/traffic.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.controller.conditions import Condition
from serving.controller.revision_status import serving_state_of
from serving.model.knative import CONDITION_READY, ConditionStatus, ServingState
from serving.model.objects import Object, condition_of, is_being_deleted, nested

__all__ = ["ALL_TRAFFIC_ASSIGNED", "Assignment", "RouteTargets", "assign", "can_serve"]

ALL_TRAFFIC_ASSIGNED = "AllTrafficAssigned"


class RouteTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What a route's targets may name, by name, in its namespace."""

    configurations: Mapping[str, Object]
    revisions: Mapping[str, Object]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Targets with a revision each, without URLs; None where ``condition`` says that they cannot be had now."""

    targets: list[Object] | None
    condition: Condition


def assign(targets: Sequence[Object], known: RouteTargets) -> Assignment:
    """Assign every target to a revision, or say what is in the way of the first that cannot be."""
    assigned: list[Object] = []
    for target in targets:
        found = _to_configuration(target, known) if target.get("configurationName") else _to_revision(target, known)
        if isinstance(found, Condition):
            return Assignment(targets=None, condition=found)
        assigned.append(found)
    return Assignment(targets=assigned, condition=Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.TRUE))


def can_serve(revision: Object | None) -> bool:
    """Whether a revision exists and stays."""
    return (
        revision is not None
        and not is_being_deleted(revision)
        and serving_state_of(revision) is not ServingState.RETIRED
    )


def _to_configuration(target: Object, known: RouteTargets) -> Object | Condition:
    name = target["configurationName"]
    configuration = known.configurations.get(name)
    if configuration is None or is_being_deleted(configuration):
        return _missing("Configuration", name)
    revision = nested(configuration, "status", "latestReadyRevisionName")
    if revision:
        return _target(target, revision, latest=True)
    if condition_of(configuration, CONDITION_READY).get("status") == ConditionStatus.FALSE:
        return _not_assigned(ConditionStatus.FALSE, f'Configuration "{name}" does not have any ready Revision.')
    return _not_assigned(ConditionStatus.UNKNOWN, f'Configuration "{name}" is waiting for a Revision to become ready.')


def _to_revision(target: Object, known: RouteTargets) -> Object | Condition:
    name = target.get("revisionName", "")
    revision = known.revisions.get(name)
    if not can_serve(revision):
        return _missing("Revision", name)
    status = condition_of(revision or {}, CONDITION_READY).get("status")
    if status == ConditionStatus.TRUE:
        return _target(target, name, latest=False)
    if status == ConditionStatus.FALSE:
        return _not_assigned(ConditionStatus.FALSE, f'Revision "{name}" failed to become ready.')
    return _not_assigned(ConditionStatus.UNKNOWN, f'Revision "{name}" is not yet ready.')


def _target(target: Object, revision: str, *, latest: bool) -> Object:
    """As the status has it: a revision by name, and whether it moves on with the latest."""
    made: Object = {"revisionName": revision, "latestRevision": latest}
    return made | {key: target[key] for key in ("percent", "tag") if target.get(key) is not None}


def _missing(kind: str, name: str) -> Condition:
    message = f'{kind} "{name}" referenced in traffic not found.'
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.FALSE, reason=f"{kind}Missing", message=message)


def _not_assigned(status: ConditionStatus, message: str) -> Condition:
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=status, reason="RevisionMissing", message=message)
