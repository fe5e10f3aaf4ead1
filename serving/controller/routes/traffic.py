"""Resolves the traffic that a route requests to revisions by name.

Input: the targets of its spec, and the configurations and revisions that they reference; output: the targets with a revision
each, or the condition that says why not. Assignment is all or nothing: while one target has no ready revision, traffic does
not move, so requests never reach a revision that was not ready. A configuration target gets the configuration's latest ready
revision. Follows knative/serving 98e5ef90, pkg/reconciler/route/traffic.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.controller.revisions.revision_status import serving_state_of
from serving.controller.values.conditions import Condition
from serving.model.knative import CONDITION_READY, ConditionStatus, ServingState
from serving.model.objects import Object, condition_of, is_being_deleted, nested

ALL_TRAFFIC_ASSIGNED = "AllTrafficAssigned"


class RouteTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The configurations and revisions that a route references, by name."""

    configurations: Mapping[str, Object]
    revisions: Mapping[str, Object]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Targets with a revision each, without URLs; None if ``condition`` says why there are none."""

    targets: list[Object] | None
    condition: Condition


def assign(targets: Sequence[Object], known: RouteTargets) -> Assignment:
    """Assign a revision to every target, or report the first target that has none."""
    assigned: list[Object] = []
    for target in targets:
        found = _to_configuration(target, known) if target.get("configurationName") else _to_revision(target, known)
        if isinstance(found, Condition):
            return Assignment(targets=None, condition=found)
        assigned.append(found)
    return Assignment(targets=assigned, condition=Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.TRUE))


def can_serve(revision: Object | None) -> bool:
    """Whether a revision exists and is not being deleted."""
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
    made: Object = {"revisionName": revision, "latestRevision": latest}
    return made | {key: target[key] for key in ("percent", "tag") if target.get(key) is not None}


def _missing(kind: str, name: str) -> Condition:
    message = f'{kind} "{name}" referenced in traffic not found.'
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.FALSE, reason=f"{kind}Missing", message=message)


def _not_assigned(status: ConditionStatus, message: str) -> Condition:
    return Condition(type=ALL_TRAFFIC_ASSIGNED, status=status, reason="RevisionMissing", message=message)
