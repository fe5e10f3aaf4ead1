"""Reconciles a Route: its URLs, its traffic by revision, its readiness, and the Services of its tags.

Input: the route, the objects that its targets reference, and its ``RouteContext``; output: the writes. Traffic stays as
assigned while the spec references a revision that is not ready. With a rollout duration, traffic moves in steps
(``rollout.py``). A host that another route claimed first stays with that route. IngressReady is true once all
activators serve the status (``io/route_prober.py``). Behind a Gateway, the Gateway must also have accepted the route's
HTTPRoutes. Without cert-manager, CertificateProvisioned is true with the reason.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serving.controller.revisions.public import PublicService, is_foreign, public_writes
from serving.controller.revisions.settling import is_ready
from serving.controller.routes.certificates import (
    Certificates,
    CertifiedHost,
    Secured,
    needs_certificate,
    reconcile_certificates,
)
from serving.controller.routes.hosts import inner_url, public_url, tag_claims
from serving.controller.routes.httproutes import HttpRoutes, reconcile_httproutes
from serving.controller.routes.rollout import (
    Assignment,
    RouteTargets,
    advance,
    assign,
    can_serve,
    newest_of,
    next_step_s,
    observe_ready,
    rollout_goal,
    rollout_of_status,
    split_targets,
)
from serving.controller.routes.rolloutcheck import CheckedRollout, RolloutJudgement, checked_rollout
from serving.controller.values.conditions import Condition, is_unsettled, ready_of, status_with
from serving.controller.values.writes import (
    UNSETTLED_S,
    UNSTARTED_S,
    Note,
    WritePlan,
    deletion_of,
    patch_of,
    status_patch,
)
from serving.core.model.errors import Problem
from serving.core.model.knative import (
    CLAIMED_TAGS_ANNOTATION,
    CONDITION_READY,
    CONFIGURATION_LABEL,
    ROLLED_BACK_ANNOTATION,
    ROLLOUT_ANNOTATION,
    ConditionStatus,
)
from serving.core.model.objects import (
    Key,
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    is_being_deleted,
    is_controlled_by,
    is_true,
    labels_of,
    merge_difference,
    name_of,
    namespace_of,
    nested,
)
from serving.core.model.rollout import Rollout, read_rollout, write_rollout
from serving.core.model.rolloutcheck import BrokenCheck, RolloutWatch
from serving.core.model.routehosts import HostRules, Hosts, hosts_of, inner_names, is_cluster_local, tags_of
from serving.core.model.routepolicy import route_digest, route_policy
from serving.core.settings.annotations import read_rollout_duration
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Write

_INGRESS_READY = "IngressReady"
_ROLLOUT_IN_PROGRESS = Condition(
    type=_INGRESS_READY,
    status=ConditionStatus.UNKNOWN,
    reason="RolloutInProgress",
    message="A gradual rollout of the latest revision(s) is in progress.",
)
_UNCONFIRMED = Condition(
    type=_INGRESS_READY,
    status=ConditionStatus.UNKNOWN,
    reason="Uninitialized",
    message="Waiting for load balancer to be ready",
)
_UNCONFIGURED = Condition(
    type=_INGRESS_READY,
    status=ConditionStatus.UNKNOWN,
    reason="IngressNotConfigured",
    message="No traffic is assigned yet.",
)


class TagServices(msgspec.Struct, frozen=True, kw_only=True):
    """The existing Services of a route's tags, by tag, and leftover Services of removed tags."""

    by_tag: Mapping[str, PublicService] = {}
    unused: Sequence[Object] = ()


def tag_service_name(route: Object, settings: ControllerSettings, tag: str) -> str:
    """The name of a tag's Service: the first label of its cluster-local host."""
    return hosts_of(route, settings.host_rules, tag=tag).inner.partition(".")[0]


def is_local_tag(route: Object, services: TagServices, tag: str) -> bool:
    """Whether only the cluster-local listener serves a tag."""
    public = services.by_tag.get(tag)
    service = public.service if public else None
    return is_cluster_local(route) or (service is not None and is_cluster_local(service))


def tag_service_writes(route: Object, services: TagServices, settings: ControllerSettings) -> Iterator[Write]:
    """Yield the writes that create each tag's Service and delete leftover Services."""
    for tag, public in services.by_tag.items():
        yield from public_writes(route, public, name=tag_service_name(route, settings, tag))
    for service in services.unused:
        if is_controlled_by(service, route):
            yield deletion_of(kinds.SERVICE, service)


class RouteContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a route's decision, except its targets.

    ``lost`` are the route's hosts that another route claims, each with the other route. ``public`` is the public
    Service, None if the settings disable it; ``refusal`` is why the server refuses it, or "". ``tag_services`` are the
    Services of the tags. ``httproutes`` are the route's HTTPRoutes, None without a Gateway. ``confirmed`` is the digest
    that all activators served last, None without activators. ``certificates`` are the Certificates of the hosts, None
    without cert-manager. ``judged`` are the last judgements about revisions in a checked rollout.
    """

    lost: Mapping[str, Key]
    public: PublicService | None = None
    refusal: str = ""
    httproutes: HttpRoutes | None = None
    confirmed: str | None = None
    judged: Mapping[str, RolloutJudgement] = {}
    tag_services: TagServices = TagServices()
    certificates: Certificates | None = None


def reconcile_route(
    route: Object, known: RouteTargets, context: RouteContext, *, settings: ControllerSettings, now: str, now_s: float
) -> WritePlan:
    """The writes for a route. ``now_s`` is the time in seconds since the epoch, ``now`` the same as a timestamp."""
    if is_being_deleted(route):
        return WritePlan()
    traffic = nested(route, "spec", "traffic") or ()
    assignment = assign(traffic, known)
    checked = checked_rollout(route, assignment, context.judged)
    rollout = _rollout(route, assignment, known, settings=settings, now_s=now_s, checked=checked)
    targets: Sequence[Object] | None = nested(route, "status", "traffic") or None
    if assignment.targets is not None:
        targets = split_targets(traffic, assignment.targets, rollout)
    writes, ingress = _by_gateway(route, targets, context, rollout=rollout, settings=settings)
    certified, secured, certificate = _certificates(route, context, settings)
    changing = _routing_status(route, targets, context=context, settings=settings, secured=secured)
    annotations = _annotations(route, rollout, settings=settings, now=now, broken=checked.broken)
    after = {**route, "metadata": {**route["metadata"], "annotations": annotations}, "status": changing}
    digest = route_digest(after, settings.host_rules)
    ingress = _in_the_way(route, context, settings) or ingress
    unconfirmed = ""
    if ingress.status is ConditionStatus.TRUE and not _is_confirmed(route, digest, context, rules=settings.host_rules):
        unconfirmed = digest if targets else ""
        ingress = _UNCONFIRMED if targets else _UNCONFIGURED
    due_s = None
    if assignment.targets is not None and not rollout.is_done:
        if ingress.status is ConditionStatus.TRUE:
            rollout = observe_ready(rollout, duration_s=_duration_s(route, settings), now_s=now_s)
            annotations = _annotations(route, rollout, settings=settings, now=now, broken=checked.broken)
            ingress = _ROLLOUT_IN_PROGRESS
        # A held step continues when a judgement allows it, or when its revision is ready again.
        is_held = checked.paused.intersection(newest_of(rollout)) or _unready(rollout, known)
        due_s = None if is_held else next_step_s(rollout)
    assigned = checked.condition() or assignment.condition
    conditions = [assigned, ingress, certificate]
    status = status_with(route, [*conditions, ready_of(conditions)], changing, now=now)
    before_status = (
        *(() if context.public is None or context.refusal else public_writes(route, context.public)),
        *tag_service_writes(route, context.tag_services, settings),
        *patch_of(kinds.ROUTE, route, _annotation_changes(route, annotations)),
        *(() if context.refusal else writes),
        *(() if context.refusal else certified),
    )
    targeted = (*known.configurations.values(), *known.revisions.values())
    # Without targets activators have nothing to serve.
    can_wait = not targets and is_unsettled(route, status)
    notes = (*_notes(route, ingress), *checked.notes(route))
    if can_wait and before_status:
        # The write causes another decision about the route.
        return WritePlan(writes=before_status, notes=notes)
    return WritePlan(
        writes=(*before_status, *status_patch(kinds.ROUTE, route, status)),
        notes=notes,
        watch=_watch(route, rollout, checked, settings=settings),
        again_after_s=None if due_s is None else max(due_s - now_s, 0.0),
        debounce_s=(UNSETTLED_S if all(map(conditions_of, targeted)) else UNSTARTED_S) if can_wait else 0.0,
        unconfirmed=unconfirmed,
    )


def _is_confirmed(route: Object, digest: str, context: RouteContext, *, rules: HostRules) -> bool:
    """Whether all activators serve the new status. An unchanged status that was Ready before a restart is confirmed."""
    if context.confirmed is None or digest == context.confirmed:
        return True
    condition = condition_of(route, _INGRESS_READY)
    was_confirmed = is_true(route, _INGRESS_READY) or condition.get("reason") == _ROLLOUT_IN_PROGRESS.reason
    return was_confirmed and route_digest(route, rules) == digest


def _watch(
    route: Object, rollout: Rollout, checked: CheckedRollout, *, settings: ControllerSettings
) -> RolloutWatch | None:
    names = tuple(name for name in newest_of(rollout) if name not in checked.broken)
    if checked.check is None or not names:
        return None
    return RolloutWatch(check=checked.check, revisions=names, wait_max_s=2 * _duration_s(route, settings))


def _rollout(
    route: Object,
    assignment: Assignment,
    known: RouteTargets,
    *,
    settings: ControllerSettings,
    now_s: float,
    checked: CheckedRollout,
) -> Rollout:
    """The current state of the route's rollouts. It does not change while targets cannot be assigned."""
    before = read_rollout(annotations_of(route))
    if assignment.targets is None:
        return before
    traffic = nested(route, "spec", "traffic") or ()
    goal = rollout_goal(traffic, assignment.targets)
    if not _duration_s(route, settings):
        return goal
    if not before.configurations:
        configurations = {
            name: labels_of(revision).get(CONFIGURATION_LABEL, "") for name, revision in known.revisions.items()
        }
        served = nested(route, "status", "traffic") or ()
        before = rollout_of_status(traffic, served, configurations=configurations)
    failed = _failed(goal, known)
    return advance(
        goal,
        before,
        can_serve=lambda name: can_serve(known.revisions.get(name)) and name not in failed,
        now_s=now_s,
        paused=checked.paused | _unready(before, known),
        broken=checked.broken,
    )


def _unready(rollout: Rollout, known: RouteTargets) -> frozenset[str]:
    """The newest revisions of rollouts that are not ready. Their rollout steps wait."""
    newest = (known.revisions.get(name) for name in newest_of(rollout))
    return frozenset(name_of(revision) for revision in newest if revision is not None and not is_ready(revision))


def _failed(goal: Rollout, known: RouteTargets) -> frozenset[str]:
    """The failed revisions of a route, without the revision that each configuration is rolling out."""
    goals = {target.configuration_name: target.revisions[-1].revision_name for target in goal.configurations}
    return frozenset(
        name
        for name, revision in known.revisions.items()
        if goals.get(labels_of(revision).get(CONFIGURATION_LABEL, ""), name) != name
        and condition_of(revision, CONDITION_READY).get("status") == ConditionStatus.FALSE
    )


def _duration_s(route: Object, settings: ControllerSettings) -> float:
    duration = read_rollout_duration(annotations_of(route))
    return settings.rollout_duration_s if duration is None or isinstance(duration, Problem) else duration


def _by_gateway(
    route: Object,
    targets: Sequence[Object] | None,
    context: RouteContext,
    *,
    rollout: Rollout,
    settings: ControllerSettings,
) -> tuple[tuple[Write, ...], Condition]:
    if context.httproutes is None:
        return (), Condition(type=_INGRESS_READY, status=ConditionStatus.TRUE)
    own = (namespace_of(route), name_of(route))
    hidden = {
        "": own,
        **{
            hosts_of(route, settings.host_rules, tag=tag).shown: own
            for tag in tags_of(route)
            if _is_local(route, context, tag)
        },
    }
    lost = {**hidden, **context.lost}
    return reconcile_httproutes(route, targets, context.httproutes, rollout=rollout, settings=settings, lost=lost)


def _is_local(route: Object, context: RouteContext, tag: str) -> bool:
    return is_local_tag(route, context.tag_services, tag)


def _notes(before: Object, after: Condition) -> Iterator[Note]:
    """Yield warnings: why requests do not arrive, and an invalid rollout duration."""
    duration = read_rollout_duration(annotations_of(before))
    if isinstance(duration, Problem) and nested(before, "status", "observedGeneration") is None:
        yield Note(about=before, reason="RolloutDurationInvalid", message=str(duration), warning=True)
    condition = condition_of(before, _INGRESS_READY)
    if after.status is ConditionStatus.FALSE and (condition.get("status"), condition.get("message")) != (
        ConditionStatus.FALSE,
        after.message,
    ):
        yield Note(about=before, reason=after.reason, message=after.message, warning=True)


def _annotations(
    route: Object, rollout: Rollout, *, settings: ControllerSettings, now: str, broken: Mapping[str, BrokenCheck]
) -> dict[str, str]:
    claims = tag_claims(route, now)
    own = {CLAIMED_TAGS_ANNOTATION, ROLLED_BACK_ANNOTATION, ROLLOUT_ANNOTATION}
    after = {key: value for key, value in annotations_of(route).items() if key not in own}
    if claims:
        after[CLAIMED_TAGS_ANNOTATION] = json.dumps(claims, sort_keys=True)
    if rollout.configurations and _duration_s(route, settings):
        after[ROLLOUT_ANNOTATION] = write_rollout(rollout)
    if broken:
        after[ROLLED_BACK_ANNOTATION] = msgspec.json.encode(broken, order="sorted").decode()
    return after


def _annotation_changes(route: Object, annotations: Mapping[str, str]) -> Object:
    before = {"metadata": {"annotations": annotations_of(route)}}
    return merge_difference(before, {"metadata": {"annotations": annotations}})


def _routing_status(
    route: Object,
    targets: Sequence[Object] | None,
    *,
    context: RouteContext,
    settings: ControllerSettings,
    secured: Secured,
) -> Object:
    """The fields of the status that activators read; None removes a field."""
    lost = context.lost
    hosts = hosts_of(route, settings.host_rules)
    return {
        "url": _url(hosts, "", settings, secured=secured) if hosts.shown not in lost else None,
        "address": (
            {"url": inner_url(hosts.inner, settings, has_certificate=("", True) in secured)}
            if hosts.inner not in lost
            else None
        ),
        "traffic": [
            _with_url(route, target, context=context, settings=settings, secured=secured) for target in targets or ()
        ]
        or None,
    }


def _with_url(
    route: Object, target: Object, *, context: RouteContext, settings: ControllerSettings, secured: Secured
) -> Object:
    shown = {key: value for key, value in target.items() if key != "url"}
    tag = target.get("tag")
    if not tag:
        return shown
    hosts, is_local = hosts_of(route, settings.host_rules, tag=tag), _is_local(route, context, tag)
    if is_local:
        hosts = msgspec.structs.replace(hosts, shown=hosts.inner)
    url = _url(hosts, tag, settings, secured=secured)
    return shown if hosts.shown in context.lost or not url else {**shown, "url": url}


def _url(hosts: Hosts, tag: str, settings: ControllerSettings, *, secured: Secured) -> str | None:
    """The URL at which clients reach a route or a tag; None without a host."""
    has_certificate = (tag, hosts.is_local) in secured
    if hosts.is_local:
        return inner_url(hosts.inner, settings, has_certificate=has_certificate)
    return public_url(hosts.shown, settings, has_certificate=has_certificate) if hosts.shown else None


def _certificates(
    route: Object, context: RouteContext, settings: ControllerSettings
) -> tuple[tuple[Write, ...], Secured, Condition]:
    """The writes for Certificates, the hosts with a certificate, and CertificateProvisioned."""
    own = hosts_of(route, settings.host_rules)
    if context.certificates is None:
        return (), frozenset(), _without_certificate(is_local=own.is_local)
    hosts = list(_certified_hosts(route, context, settings))
    writes, secured, condition = reconcile_certificates(route, hosts, context.certificates)
    return writes, secured, condition if hosts else _without_certificate(is_local=own.is_local)


def _certified_hosts(route: Object, context: RouteContext, settings: ControllerSettings) -> Iterator[CertifiedHost]:
    rules = settings.host_rules
    has_certificates = rules.has_certificates and needs_certificate(route)
    for tag in ("", *tags_of(route)):
        hosts = hosts_of(route, rules, tag=tag)
        is_local = hosts.is_local or (tag and _is_local(route, context, tag))
        if has_certificates and not is_local and hosts.shown and hosts.shown not in context.lost:
            yield CertifiedHost(tag=tag, names=(hosts.shown,), issuer=settings.issuer)
        if rules.has_local_certificates and hosts.inner not in context.lost:
            names = inner_names(hosts.inner, rules)
            yield CertifiedHost(tag=tag, names=names, issuer=settings.cluster_local_issuer, is_local=True)


def _in_the_way(route: Object, context: RouteContext, settings: ControllerSettings) -> Condition | None:
    if context.public is not None and is_foreign(route, context.public):
        message = f'There is an existing Service "{name_of(route)}" that we do not own.'
        return Condition(type=_INGRESS_READY, status=ConditionStatus.FALSE, reason="NotOwned", message=message)
    if context.refusal:
        return Condition(
            type=_INGRESS_READY, status=ConditionStatus.FALSE, reason="CreationFailed", message=context.refusal
        )
    problems = route_policy(annotations_of(route)).problems
    if problems:
        message = "; ".join(problems)
        return Condition(type=_INGRESS_READY, status=ConditionStatus.FALSE, reason="InvalidAnnotation", message=message)
    lost = context.lost
    for tag in ("", *tags_of(route)):
        hosts = hosts_of(route, settings.host_rules, tag=tag)
        if hosts.problem:
            status, reason = ConditionStatus.FALSE, "DomainNameInvalid"
            return Condition(type=_INGRESS_READY, status=status, reason=reason, message=hosts.problem)
        for host in (hosts.shown, hosts.inner):
            if host in lost:
                holder = "/".join(lost[host])
                message = f'The host "{host}" is already in use by Route "{holder}", which claimed it first.'
                return Condition(
                    type=_INGRESS_READY, status=ConditionStatus.FALSE, reason="DomainAlreadyClaimed", message=message
                )
    return None


def _without_certificate(*, is_local: bool) -> Condition:
    message = "TLS is not enabled for cluster-local" if is_local else "external-domain-tls is not enabled"
    return Condition(
        type="CertificateProvisioned", status=ConditionStatus.TRUE, reason="TLSNotEnabled", message=message
    )
