"""Revisions: creation from a Configuration's template, and reconciliation of Deployment, Services and status.

``desired_revision`` is the object to create; ``reconcile_revision`` plans the writes for an existing one, from its
children and the routes that reference it. A Retired revision without routes is deleted; garbage collection then deletes
the objects that it owns. ``servingState`` is the only field of a spec that changes.
"""

from collections.abc import Sequence

import msgspec

from serving.controller.revisions.defaults import spec_with_defaults
from serving.controller.revisions.deployment import desired_deployment, desired_private_service, template_patch
from serving.controller.revisions.digests import Resolution, known_images
from serving.controller.revisions.hpa import hpa_writes, is_of_an_hpa
from serving.controller.revisions.inprocess import is_own_proxy, proxy_wait_s
from serving.controller.revisions.public import PublicService, is_foreign, public_writes, traffic_path_of
from serving.controller.revisions.revision_status import (
    RevisionChildren,
    StartScale,
    desired_count_of,
    desired_status,
    failure_to_keep,
    not_ready_because,
    ready_count_of,
    serving_state_of,
    start_scale,
    was_ready,
)
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.values.conditions import is_unsettled
from serving.controller.values.naming import RoutingState, metadata_changes, revision_name, routing_state_of
from serving.controller.values.writes import (
    DEBOUNCE_S,
    STARTING_S,
    UNSETTLED_S,
    UNSTARTED_S,
    Note,
    WritePlan,
    deletion_of,
    patch_of,
    status_patch,
)
from serving.core.model.knative import (
    CONDITION_ACTIVE,
    CONDITION_READY,
    CONFIGURATION_GENERATION_LABEL,
    CONFIGURATION_LABEL,
    CONFIGURATION_UID_LABEL,
    CREATOR_ANNOTATION,
    LAST_APPLIED_ANNOTATION,
    LAST_MODIFIER_ANNOTATION,
    REVISION_STATE_ANNOTATIONS,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
    SERVICE_LABEL,
    SERVICE_UID_LABEL,
    SERVING_API_VERSION,
    TRAFFIC_PATH_ANNOTATION,
    ConditionStatus,
    ServingState,
    TrafficPath,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    is_being_deleted,
    is_true,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
)
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.budgets import read_budgets
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Patch, Write

_COUNTS = {"actualReplicas", "desiredReplicas"}
# How many times longer than a count the status of a revision waits that wakes or scales down: most pods are ready by
# then, and then one write is enough.
_BETWEEN_PERIODS = 5


class RevisionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision about a revision, except the revision.

    ``routes`` are the names of the routes that reference the revision. ``is_newest``: its configuration has no newer
    revision. ``is_settled``: its scale does not decide whether it gets traffic. ``is_awaited``: a route uses the
    configuration's latest revision. ``refusal`` is why the server refuses one of its children, or "". ``public`` is its
    public Service, None if the settings disable these. ``hpa`` is the HorizontalPodAutoscaler of its name.
    ``count_period_s`` is the delay of a write that changes only its number of pods. ``is_guarded``: a route limits its
    callers. ``log_url`` is the address of its logs, or "". ``unresolved`` are its images without a known digest.
    ``resolution`` are the registries' responses; None: registries are not queried.
    """

    children: RevisionChildren
    private_service: Object | None
    routes: Sequence[str] = ()
    is_newest: bool = True
    is_settled: bool = False
    is_awaited: bool = False
    refusal: str = ""
    public: PublicService | None = None
    hpa: Object | None = None
    count_period_s: float = 0.0
    is_guarded: bool = False
    log_url: str = ""
    unresolved: Sequence[str] = ()
    resolution: Resolution | None = None


def revision_name_for(configuration: Object) -> str:
    """The name of the current generation's revision: from the template, or generated with the generation's number."""
    own = nested(configuration, "spec", "template", "metadata", "name")
    return str(own or revision_name(name_of(configuration), nested(configuration, "metadata", "generation") or 0))


def desired_revision(
    configuration: Object,
    *,
    settings: ControllerSettings,
    scaling: AutoscalerSettings,
    now: str,
    routes: Sequence[str] = (),
) -> Object:
    """The revision to create for the configuration's current generation.

    The revision starts in Active. A revision with initial-scale 0 is ready without pods and starts in Reserve.
    ``routes`` are the names of the routes whose traffic it certainly gets.
    """
    template = configuration["spec"]["template"]
    labels, annotations = labels_of(template), annotations_of(template)
    modifier = annotations_of(configuration).get(LAST_MODIFIER_ANNOTATION)
    # A template exported from a revision contains that revision's state.
    not_asked = REVISION_STATE_ANNOTATIONS | {LAST_APPLIED_ANNOTATION}
    annotations = {key: value for key, value in annotations.items() if key not in not_asked}
    if modifier:
        annotations[CREATOR_ANNOTATION] = modifier
    if is_of_an_hpa(annotations, scaling):
        # It always has pods, and our autoscaler does not set its path.
        annotations[TRAFFIC_PATH_ANNOTATION] = TrafficPath.SERVE
    if routes:
        annotations[ROUTES_ANNOTATION] = ",".join(sorted(routes))
    routing_state = RoutingState.ACTIVE if routes else RoutingState.PENDING
    start = start_scale(annotations, scaling)
    state = ServingState.ACTIVE if start.start_count else ServingState.RESERVE
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Revision",
        "metadata": {
            "name": revision_name_for(configuration),
            "namespace": namespace_of(configuration),
            "labels": {**labels, **_own_labels(configuration), ROUTING_STATE_LABEL: routing_state.value},
            "annotations": {**annotations, ROUTING_STATE_MODIFIED_ANNOTATION: now},
            "ownerReferences": [owner_reference(configuration)],
        },
        "spec": {**spec_with_defaults(template.get("spec") or {}, settings), "servingState": state.value},
    }


def _own_labels(configuration: Object) -> dict[str, str]:
    theirs = labels_of(configuration)
    own = {
        CONFIGURATION_LABEL: name_of(configuration),
        CONFIGURATION_UID_LABEL: str(nested(configuration, "metadata", "uid") or ""),
        CONFIGURATION_GENERATION_LABEL: str(nested(configuration, "metadata", "generation")),
    }
    return own | {key: theirs[key] for key in (SERVICE_LABEL, SERVICE_UID_LABEL) if key in theirs}


def reconcile_revision(
    revision: Object, context: RevisionContext, *, scaling: AutoscalerSettings, now: str, sidecar: Sidecar | None = None
) -> WritePlan:
    """The writes for a revision: its children, labels and status.

    ``sidecar`` is the shared configuration of queue-proxies; None if they are not containers of the pod.
    """
    if is_being_deleted(revision):
        return WritePlan()
    if serving_state_of(revision) is ServingState.RETIRED and not context.routes:
        return WritePlan(writes=(deletion_of(kinds.REVISION, revision),))
    scale = start_scale(annotations_of(revision), scaling)
    is_budgeted = read_budgets(scaling.budget).of(namespace_of(revision)) and not is_of_an_hpa(
        annotations_of(revision), scaling
    )
    # Under a budget the autoscaler decides about the first pods of a new revision.
    first = msgspec.structs.replace(scale, start_count=0) if is_budgeted else scale
    refusal = context.refusal or _conflict(revision, context.public)
    resolution = context.resolution if context.unresolved else None
    status = desired_status(revision, context.children, scale, now=now, refusal=refusal, resolution=resolution)
    status.pop("logUrl", None)
    if context.log_url:
        status["logUrl"] = context.log_url
    after = {**revision, "status": status}
    ready = was_ready(revision) or was_ready(after)
    state = routing_state_of(
        routes=context.routes, is_newest=context.is_newest, is_awaited=context.is_awaited, was_ready=ready
    )
    failure = failure_to_keep(after)
    is_kept = sidecar is not None and labels_of(revision).get(ROUTING_STATE_LABEL) == state
    since = _unready_since(revision, after) if is_kept else now
    changes = metadata_changes(
        revision,
        routes=context.routes,
        state=state,
        was_ready=ready and since is not None,
        now=since or now,
        failure=failure,
    )
    is_unresolved = resolution is not None and (resolution.is_pending or bool(resolution.failure))
    public = () if context.public is None else public_writes(revision, context.public)
    pending: tuple[Write, ...] = (
        # Endpoints that no longer receive requests are removed first.
        *(write for write in public if isinstance(write, Patch)),
        *(() if context.refusal or is_unresolved else _missing(revision, context, first, sidecar=sidecar)),
        *(() if context.refusal else hpa_writes(revision, context.hpa, scaling)),
        *(write for write in public if isinstance(write, Create)),
        *patch_of(kinds.REVISION, revision, changes),
    )
    unsettled = is_unsettled(revision, status)
    # The write causes another decision about the revision, by which time its status may be settled.
    writes = pending if unsettled and pending else (*pending, *status_patch(kinds.REVISION, revision, status))
    is_transient = all(map(_is_count, writes)) or (all(map(_is_status, writes)) and _is_between_states(revision, after))
    debounce_s = context.count_period_s if is_transient and writes and not _is_pending(revision) else 0.0
    # The registry's answer causes the next decision.
    is_waiting = not is_unresolved and condition_of(after, CONDITION_READY).get("status") == "Unknown"
    return WritePlan(
        writes=writes,
        notes=(*_notes(revision, after), *_notes_of_images(revision, resolution)),
        again_after_s=_recheck_s(context.children, scale) if is_waiting else None,
        debounce_s=_unsettled_s(context.children, is_unresolved=is_unresolved)
        if unsettled and not pending
        else debounce_s,
        unresolved=tuple(context.unresolved) if is_unresolved else (),
        is_scale=context.is_settled
        and bool(writes)
        and all(map(_is_status, writes))
        and _without_scale(revision) == _without_scale(after),
    )


def revision_debounce_s(
    revision: Object | None, deployment: Object | None, changed: Kind | None, *, count_period_s: float
) -> float:
    """Seconds to wait for further changes of a revision, its Deployment and its pods, before a write.

    While a ready revision wakes or scales down, only counts in its status change: these wait ``count_period_s``. Until
    its first pod is ready, or its last one is not, they wait ``_BETWEEN_PERIODS`` times as long: that change of the
    Deployment ends the wait, as a pod that fails does. Nothing waits for a revision that is about to get traffic.
    """
    if revision is None or not conditions_of(revision):
        return 0.0 if changed is kinds.REVISION else DEBOUNCE_S
    # The pods of a revision with another path are endpoints of its public Service.
    is_endpoint = traffic_path_of(revision) is not TrafficPath.PROXY
    if is_endpoint or not is_true(revision, CONDITION_READY) or _is_pending(revision):
        return DEBOUNCE_S
    is_active = serving_state_of(revision) is ServingState.ACTIVE
    is_flipped = condition_of(revision, CONDITION_ACTIVE).get("status") != str(is_active)
    if not is_flipped and changed is kinds.REVISION:
        return DEBOUNCE_S
    is_between = is_flipped and bool(ready_count_of(deployment)) is not is_active
    is_awaited = is_between and changed is not kinds.POD and not is_true(deployment or {}, "ReplicaFailure")
    return count_period_s * (_BETWEEN_PERIODS if is_awaited else 1)


def _unready_since(before: Object, after: Object) -> str | None:
    """When a revision last became Ready, if it has just lost this state; None for other revisions.

    The status stores this time while the revision is Ready. The annotation is written only afterwards, which saves a
    write for each new revision.
    """
    is_ready, condition = is_true(after, CONDITION_READY), condition_of(before, CONDITION_READY)
    return None if is_ready or condition.get("status") != ConditionStatus.TRUE else condition.get("lastTransitionTime")


def _notes_of_images(revision: Object, resolution: Resolution | None) -> list[Note]:
    if resolution is None or not resolution.refused:
        return []
    return [Note(about=revision, reason="DigestNotResolved", message=resolution.refused, warning=True)]


def _recheck_s(children: RevisionChildren, scale: StartScale) -> float:
    """Seconds until the status of a starting revision may change without a change of its pods."""
    wait_s = scale.progress_deadline_s
    return (min(wait_s, proxy_wait_s(wait_s)) if is_own_proxy(children.deployment) else wait_s) + 1


def _unsettled_s(children: RevisionChildren, *, is_unresolved: bool) -> float:
    """How long the write of an unsettled status is delayed; longer while pods may still become ready."""
    starting = [
        pod for pod in children.pods if nested(pod, "status", "containerStatuses") and not is_true(pod, "Ready")
    ]
    is_expected = desired_count_of(children.deployment) > 0 and not is_unresolved
    if not is_expected or not_ready_because(starting):
        return UNSETTLED_S
    return STARTING_S if starting else UNSTARTED_S


def _conflict(revision: Object, public: PublicService | None) -> str:
    if public is None or not is_foreign(revision, public):
        return ""
    return f'There is an existing Service "{name_of(revision)}" that we do not own.'


def _is_count(write: Write) -> bool:
    """Whether a write changes only the number of pods."""
    return isinstance(write, Patch) and write.patch.get("status", {"": None}).keys() <= _COUNTS


def _is_status(write: Write) -> bool:
    return isinstance(write, Patch) and write.subresource == "status"


def _is_pending(revision: Object) -> bool:
    """Whether a revision may get traffic later, which depends on whether its pods stay ready."""
    return labels_of(revision).get(ROUTING_STATE_LABEL) == RoutingState.PENDING


def _without_scale(revision: Object) -> Object:
    """The status of a revision without the fields that change with its scale and serving state."""
    status = nested(revision, "status") or {}
    remaining = {key: value for key, value in status.items() if key not in _COUNTS | {"observedGeneration"}}
    others = [condition for condition in conditions_of(revision) if condition["type"] != CONDITION_ACTIVE]
    return {**remaining, "conditions": others}


def _is_between_states(before: Object, after: Object) -> bool:
    """Whether a revision is scaling from or to zero, so that only its number of pods still changes."""
    known = conditions_of(before)
    if any(condition["type"] != CONDITION_ACTIVE and condition not in known for condition in conditions_of(after)):
        return False
    actual, desired = (after["status"][key] for key in ("actualReplicas", "desiredReplicas"))
    active = condition_of(after, CONDITION_ACTIVE).get("status")
    return actual != desired or active != (ConditionStatus.TRUE if desired else ConditionStatus.FALSE)


def _missing(
    revision: Object, context: RevisionContext, scale: StartScale, *, sidecar: Sidecar | None
) -> Sequence[Write]:
    writes: list[Write] = []
    resolved = context.resolution
    if context.children.deployment is None:
        is_active = serving_state_of(revision) is ServingState.ACTIVE
        body = desired_deployment(
            revision,
            replica_count=scale.start_count if is_active else 0,
            progress_deadline_s=scale.progress_deadline_s,
            sidecar=sidecar,
            is_guarded=context.is_guarded,
            images={} if sidecar is None else {**known_images(revision), **(resolved.images if resolved else {})},
        )
        writes.append(Create(kind=kinds.DEPLOYMENT, body=body))
    else:
        writes += template_patch(context.children.deployment, is_guarded=context.is_guarded, sidecar=sidecar)
    if context.private_service is None:
        writes.append(Create(kind=kinds.SERVICE, body=desired_private_service(revision)))
    return writes


def _notes(before: Object, after: Object) -> list[Note]:
    """Events for a revision that becomes unready or ready again.

    The first readiness is recorded as an annotation instead.
    """
    old, new = condition_of(before, CONDITION_READY), condition_of(after, CONDITION_READY)
    if (old.get("status"), new.get("status")) == ("False", "True"):
        message = "Revision becomes ready upon all resources being ready"
        return [Note(about=before, reason="RevisionReady", message=message)]
    if new.get("status") == "False" and (old.get("status"), old.get("message")) != ("False", new.get("message")):
        return [Note(about=before, reason=new.get("reason", ""), message=new.get("message", ""), warning=True)]
    return []
