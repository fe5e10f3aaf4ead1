"""Reconciles a Configuration: creates a revision per generation, selects the latest ready one, retires others.

Input: the configuration and its revisions; output: the writes. The latest ready revision changes once a newer one has
settled. It changes back to an older one only if the newer one failed in its first minute (``settling.py``). If the
latest ready revision is deleted, or a single machine's store lost the status, the newest revision that was ready takes
over. A revision name in a template belongs to one content: the same name with other content is refused. Follows
knative/serving 98e5ef90, pkg/reconciler/configuration.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from serving.controller.revisions.defaults import fields_not_allowed, spec_with_defaults, timeouts_too_long
from serving.controller.revisions.revision import desired_revision, revision_name_for
from serving.controller.revisions.revision_status import serving_state_of
from serving.controller.revisions.settling import LatestReady, latest_ready_of
from serving.controller.values.conditions import Condition, is_unsettled, status_with
from serving.controller.values.naming import RoutingState
from serving.controller.values.writes import UNSTARTED_S, Note, WritePlan, patch_of, status_patch
from serving.core.model.event import GIVEN_BACK_REASON
from serving.core.model.knative import (
    CONDITION_READY,
    CONFIGURATION_GENERATION_LABEL,
    CREATOR_ANNOTATION,
    NO_GC_ANNOTATION,
    REVISION_STATE_ANNOTATIONS,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
    ConditionStatus,
    ServingState,
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
    name_of,
    nested,
    timestamp_s,
)
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import DISABLED, ControllerSettings
from serving.core.settings.metadatakeys import check_keys
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Patch, Write

# Annotations that the controller and the autoscaler write on revisions.
_OWN_LABELS = frozenset({CONFIGURATION_GENERATION_LABEL, ROUTING_STATE_LABEL})
_OWN_ANNOTATIONS = REVISION_STATE_ANNOTATIONS | {CREATOR_ANNOTATION}


def collectable(
    configuration: Object, revisions: Sequence[Object], settings: ControllerSettings, *, now: str
) -> list[Object]:
    """The revisions to retire now. Those without traffic for longest are first."""
    now_s = timestamp_s(now)
    assert now_s is not None, now
    idle = sorted(
        (revision for revision in revisions if _may_go(revision, configuration)),
        key=lambda revision: (_active_s(revision), name_of(revision)),
    )
    stale = [revision for revision in idle if _is_stale(revision, settings, now_s)]
    gone = stale[: max(0, len(idle) - settings.min_non_active_revisions)]
    if settings.max_non_active_revisions != DISABLED:
        gone_names = {name_of(revision) for revision in gone}
        rest = [revision for revision in idle if name_of(revision) not in gone_names]
        gone += rest[: max(0, len(rest) - settings.max_non_active_revisions)]
    return gone


def _may_go(revision: Object, configuration: Object) -> bool:
    status = nested(configuration, "status") or {}
    latest = {status.get("latestReadyRevisionName"), status.get("latestCreatedRevisionName")}
    return (
        labels_of(revision).get(ROUTING_STATE_LABEL) == RoutingState.RESERVE
        and name_of(revision) not in latest
        and annotations_of(revision).get(NO_GC_ANNOTATION, "").lower() != "true"
        and serving_state_of(revision) is not ServingState.RETIRED
        and not is_being_deleted(revision)
    )


def _is_stale(revision: Object, settings: ControllerSettings, now_s: float) -> bool:
    ages = (
        (settings.retain_since_create_time_s, _created_s(revision)),
        (settings.retain_since_last_active_time_s, _active_s(revision)),
    )
    limits = [(keep_s, since_s) for keep_s, since_s in ages if keep_s != DISABLED]
    return bool(limits) and all(now_s - since_s >= keep_s for keep_s, since_s in limits)


def _created_s(revision: Object) -> float:
    """The creation time; infinity if unknown, so that the revision is kept."""
    stamp = timestamp_s(nested(revision, "metadata", "creationTimestamp"))
    return float("inf") if stamp is None else stamp


def _active_s(revision: Object) -> float:
    """The last time that a route referenced the revision, or its creation time."""
    stamp = timestamp_s(annotations_of(revision).get(ROUTING_STATE_MODIFIED_ANNOTATION))
    return _created_s(revision) if stamp is None else stamp


class _Latest(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of the current generation, or None. ``refusal`` is why it cannot be created."""

    revision: Object | None
    refusal: str = ""


def reconcile_configuration(  # noqa: PLR0913 - the inputs of one decision
    configuration: Object,
    revisions: Mapping[str, Object],
    *,
    settings: ControllerSettings,
    scaling: AutoscalerSettings,
    now: str,
    refusal: str = "",
    routes: Sequence[str] = (),
) -> WritePlan:
    """The writes for a configuration. ``revisions`` are the revisions that it may own, by name.

    ``refusal`` is why the server refused the revision of this generation, or "". ``routes`` are the names of the routes
    that use its latest revision.
    """
    if is_being_deleted(configuration):
        return WritePlan()
    latest = _latest(configuration, revisions, settings=settings, scaling=scaling)
    if latest.revision is None and refusal and not latest.refusal:
        latest = _Latest(revision=None, refusal=refusal)
    own = [revision for revision in revisions.values() if is_controlled_by(revision, configuration)]
    writes: list[Write] = []
    notes: list[Note] = []
    if latest.revision is None and not latest.refusal:
        # The traffic of a further revision waits until it is ready; a first revision is the only one that can get it.
        certain = () if own else routes
        body = desired_revision(configuration, settings=settings, scaling=scaling, now=now, routes=certain)
        writes.append(Create(kind=kinds.REVISION, body=body))
        if nested(configuration, "status", "latestCreatedRevisionName"):
            # The first revision has Events already.
            notes.append(Note(about=configuration, reason="Created", message=f'Created Revision "{name_of(body)}"'))
    usable = {name_of(revision): revision for revision in own if serving_state_of(revision) is not ServingState.RETIRED}
    ready = latest_ready_of(
        usable.get(nested(configuration, "status", "latestReadyRevisionName") or ""),
        list(usable.values()),
        latest.revision,
        settle_time_s=settings.settle_time_s,
        now_s=timestamp_s(now) or 0.0,
        gave_back=bool(_rollback_message(configuration, latest)),
    )
    status = _status(configuration, ready, latest, now=now)
    can_wait = not configuration.get("status") and is_unsettled(configuration, status)
    if can_wait and writes:
        # The write's response causes another decision, and a revision that is ready soon makes this write unnecessary.
        return WritePlan(writes=tuple(writes), notes=tuple(notes))
    writes += status_patch(kinds.CONFIGURATION, configuration, status)
    writes += _retirements({**configuration, "status": status}, own, settings, now=now)
    notes += _notes(configuration, status, latest)
    return WritePlan(
        writes=tuple(writes),
        notes=tuple(notes),
        # The Service, which repeats the name, waits longer.
        debounce_s=UNSTARTED_S if can_wait and not conditions_of(latest.revision or {}) else 0.0,
        again_after_s=ready.settles_in_s,
    )


def revision_name_is_taken(
    configuration: Object, revisions: Mapping[str, Object], settings: ControllerSettings
) -> bool:
    """Whether the template's revision name belongs to another configuration, or to a revision with other content."""
    name = nested(configuration, "spec", "template", "metadata", "name")
    revision = revisions.get(name) if name else None
    if revision is None:
        return False
    if not is_controlled_by(revision, configuration):
        return True
    generation = str(nested(configuration, "metadata", "generation"))
    return labels_of(revision).get(CONFIGURATION_GENERATION_LABEL) != generation and not _has_content(
        revision, configuration, settings
    )


def _has_content(revision: Object, configuration: Object, settings: ControllerSettings) -> bool:
    wanted = spec_with_defaults(nested(configuration, "spec", "template", "spec") or {}, settings)
    present = spec_with_defaults(revision.get("spec") or {}, settings)
    return bool(meant({**wanted, "servingState": ""}) == meant({**present, "servingState": ""}))


def _latest(
    configuration: Object,
    revisions: Mapping[str, Object],
    *,
    settings: ControllerSettings,
    scaling: AutoscalerSettings,
) -> _Latest:
    name = revision_name_for(configuration)
    revision = revisions.get(name)
    has_own_name = bool(nested(configuration, "spec", "template", "metadata", "name"))
    is_taken = (
        revision_name_is_taken(configuration, revisions, settings)
        if has_own_name
        else revision is not None and not is_controlled_by(revision, configuration)
    )
    if is_taken:
        return _Latest(revision=None, refusal=f'revisions.serving.knative.dev "{name}" already exists')
    if revision is None and not has_own_name:
        revision = _unchanged(configuration, revisions, settings=settings, scaling=scaling)
    if revision is not None:
        return _Latest(revision=revision)
    template = nested(configuration, "spec", "template") or {}
    problems = [
        *read_annotations(annotations_of(template), scaling).problems,
        *timeouts_too_long(template.get("spec") or {}, settings),
        *fields_not_allowed(template.get("spec") or {}, settings),
    ]
    keys = (problem.what for problem in check_keys("Configuration", configuration).problems)
    return _Latest(revision=None, refusal="; ".join([*keys, *map(str, problems)]))


def _unchanged(
    configuration: Object,
    revisions: Mapping[str, Object],
    *,
    settings: ControllerSettings,
    scaling: AutoscalerSettings,
) -> Object | None:
    """The latest created revision, if the template still describes it; else None.

    The generation is not sufficient: an API server increments it even if a client only adds ``resources: {}``.
    """
    name = nested(configuration, "status", "latestCreatedRevisionName")
    revision = revisions.get(name) if name else None
    if (
        revision is None
        or not is_controlled_by(revision, configuration)
        or serving_state_of(revision) is ServingState.RETIRED
    ):
        return None
    wanted = desired_revision(configuration, settings=settings, scaling=scaling, now="")
    is_same = (
        _has_content(revision, configuration, settings)
        and _requested(labels_of(revision), _OWN_LABELS) == _requested(labels_of(wanted), _OWN_LABELS)
        and _requested(annotations_of(revision), _OWN_ANNOTATIONS)
        == _requested(annotations_of(wanted), _OWN_ANNOTATIONS)
    )
    return revision if is_same else None


def _requested(texts: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """The labels or annotations from the template: all except those that the controller sets itself, ``own``."""
    return {key: text for key, text in texts.items() if key not in own}


def _status(configuration: Object, ready: LatestReady, latest: _Latest, *, now: str) -> Object:
    before = nested(configuration, "status") or {}
    created = (
        before.get("latestCreatedRevisionName")
        if latest.refusal
        else name_of(latest.revision) or revision_name_for(configuration)
    )
    conditions = [_ready_condition(before, latest, ready), *_rollback_condition(before, ready, latest)]
    names = {"latestCreatedRevisionName": created or None, "latestReadyRevisionName": ready.name or None}
    return status_with(configuration, conditions, names, now=now)


def _rollback_condition(before: Object, ready: LatestReady, latest: _Latest) -> Iterator[Condition]:
    """Yield a condition if the latest revision failed in its first minute and an older one has its traffic again."""
    present = _rollback_message({"status": before}, latest)
    if ready.failed is not None:
        why = condition_of(ready.failed, CONDITION_READY).get("message") or "not ready"
        name = name_of(ready.failed)
        present = f'Revision "{name}" failed within its first minute: {why}. Its traffic went back to "{ready.name}".'
    elif name_of(latest.revision) == ready.name or not present:
        return
    status, reason = ConditionStatus.TRUE, "RevisionFailed"
    yield Condition(type=GIVEN_BACK_REASON, status=status, reason=reason, message=present, informative=True)


def _rollback_message(configuration: Object, latest: _Latest) -> str:
    """The message of the condition that the latest revision lost its traffic; "" without such a condition."""
    message = str(condition_of(configuration, GIVEN_BACK_REASON).get("message", ""))
    return message if f'"{name_of(latest.revision)}" failed' in message else ""


def _ready_condition(before: Object, latest: _Latest, latest_ready: LatestReady) -> Condition:
    if latest.refusal:
        return _failed("RevisionFailed", f"Revision creation failed with message: {latest.refusal}.")
    ready = condition_of(latest.revision or {}, CONDITION_READY)
    if latest_ready.settling:
        failure = condition_of({"status": before}, CONDITION_READY)
        is_same = before.get("latestCreatedRevisionName") == latest_ready.settling
        if is_same and failure.get("status") == ConditionStatus.FALSE:
            # A container that keeps exiting is ready between two exits.
            return _failed(failure.get("reason", ""), failure.get("message", ""))
        stays = "is ready, and takes the traffic if it stays so"
        if latest_ready.settles_in_s is None:
            stays = "was ready, and takes the traffic after its pods are ready again"
        message = f'Revision "{latest_ready.settling}" {stays}.'
        return Condition(
            type=CONDITION_READY, status=ConditionStatus.UNKNOWN, reason="RevisionSettling", message=message
        )
    if ready.get("status") == ConditionStatus.TRUE:
        return Condition(type=CONDITION_READY, status=ConditionStatus.TRUE)
    if ready.get("status") == ConditionStatus.FALSE:
        name = name_of(latest.revision or {})
        return _failed("RevisionFailed", f'Revision "{name}" failed with message: {ready.get("message", "")}.')
    return Condition(type=CONDITION_READY, status=ConditionStatus.UNKNOWN)


def _failed(reason: str, message: str) -> Condition:
    return Condition(type=CONDITION_READY, status=ConditionStatus.FALSE, reason=reason, message=message)


def _retirements(
    configuration: Object, own: Sequence[Object], settings: ControllerSettings, *, now: str
) -> Sequence[Patch]:
    """Retire the collectable revisions. Activators never wake a Retired revision, and the next decision deletes it."""
    return [
        patch
        for revision in collectable(configuration, own, settings, now=now)
        for patch in patch_of(kinds.REVISION, revision, {"spec": {"servingState": ServingState.RETIRED.value}})
    ]


def _notes(configuration: Object, status: Object, latest: _Latest) -> list[Note]:
    before = nested(configuration, "status", "latestReadyRevisionName") or ""
    ready = status.get("latestReadyRevisionName", "")
    notes: list[Note] = []
    if ready and before and ready != before:
        message = f'LatestReadyRevisionName updated to "{ready}"'
        notes.append(Note(about=configuration, reason="LatestReadyUpdate", message=message))
    rollback = condition_of({"status": status}, GIVEN_BACK_REASON).get("message")
    if rollback and rollback != condition_of(configuration, GIVEN_BACK_REASON).get("message"):
        notes.append(Note(about=configuration, reason=GIVEN_BACK_REASON, message=rollback, warning=True))
    old, new = condition_of(configuration, CONDITION_READY), condition_of({"status": status}, CONDITION_READY)
    if new.get("status") == ConditionStatus.FALSE and new.get("message") != old.get("message"):
        reason = "CreationFailed" if latest.refusal else "LatestCreatedFailed"
        notes.append(Note(about=configuration, reason=reason, message=new.get("message", ""), warning=True))
    return notes
