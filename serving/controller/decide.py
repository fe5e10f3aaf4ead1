"""Plans the writes for one key: collects a resource's context from the cache, and calls its reconciler."""

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from serving.controller.affected import configurations_named, revisions_named
from serving.controller.cache import ControllerCache, holder_of
from serving.controller.keda.conversion import convert_route
from serving.controller.keda.reconcile import reconcile_keda_route
from serving.controller.revisions.configuration import reconcile_configuration, revision_name_is_taken
from serving.controller.revisions.digests import unresolved_images
from serving.controller.revisions.public import PublicService, pod_backends, slice_names, traffic_path_of
from serving.controller.revisions.revision import RevisionContext, reconcile_revision
from serving.controller.revisions.revision_status import RevisionChildren, ready_count_of, with_ready_count
from serving.controller.revisions.settling import is_settled
from serving.controller.routes.certificates import Certificates
from serving.controller.routes.domain_mapping import (
    MappingContext,
    reconcile_claim,
    reconcile_domain_mapping,
    target_of,
)
from serving.controller.routes.hosts import claims_of
from serving.controller.routes.httproutes import HttpRoutes
from serving.controller.routes.rollout import RouteTargets
from serving.controller.routes.route import RouteContext, TagServices, reconcile_route, tag_service_name
from serving.controller.routes.service import ServiceChildren, reconcile_service
from serving.controller.values.naming import RoutingState, deployment_name, private_service_name
from serving.controller.values.writes import WorkKey, WritePlan, status_patch
from serving.controller.workloads.inplace import in_place_writes, slice_name
from serving.controller.workloads.rights import rights_writes
from serving.controller.workloads.status import WorkloadView, workload_status
from serving.core.model.knative import CONFIGURATION_LABEL, ROUTES_ANNOTATION, ROUTING_STATE_LABEL, TrafficPath
from serving.core.model.objects import (
    Key,
    Object,
    annotations_of,
    condition_of,
    is_being_deleted,
    is_controlled_by,
    labels_of,
    namespace_of,
    nested,
    uid_of,
)
from serving.core.model.routehosts import certificate_name, tags_of
from serving.core.model.routepolicy import RoutePolicy, route_policy
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind

# Owners whose deletion deletes a resource.
_OWNERS = {
    kinds.CONFIGURATION: kinds.SERVING_SERVICE,
    kinds.ROUTE: kinds.SERVING_SERVICE,
    kinds.REVISION: kinds.CONFIGURATION,
}
# Time to the next decision about a revision whose routes have no traffic yet, in seconds; they may never reference it.
_ROUTES_UNKNOWN_S = 10.0


def decide(cache: ControllerCache, key: WorkKey, *, now: str, now_s: float) -> WritePlan:
    """The plan for a resource; empty if it does not exist. ``now_s`` and ``now`` are the same time in two formats."""
    kind, *place = key
    where: Key = (place[0], place[1])
    if kind is kinds.ROLE_BINDING:
        return _decide_rights(cache, where)
    resource = cache.get(kind, where)
    if resource is None or _is_orphaned(cache, kind, where, resource=resource):
        return WritePlan()
    return _decide_resource(cache, key, resource, now=now, now_s=now_s)


def _decide_resource(cache: ControllerCache, key: WorkKey, resource: Object, *, now: str, now_s: float) -> WritePlan:
    kind, where = key[0], (key[1], key[2])
    match kind:
        case kinds.SERVING_SERVICE:
            plan = reconcile_service(resource, _children(cache, where), now=now)
        case kinds.CONFIGURATION:
            plan = _decide_configuration(cache, where, resource, now=now)
        case kinds.ROUTE:
            plan = _decide_route(cache, where, resource, now=now, now_s=now_s)
        case kinds.REVISION:
            plan = _decide_revision(cache, where, resource, now=now)
        case kinds.DOMAIN_MAPPING:
            plan = _decide_domain_mapping(cache, where, resource, now=now)
        case kinds.CLUSTER_DOMAIN_CLAIM:
            mapping = cache.get(kinds.DOMAIN_MAPPING, (nested(resource, "spec", "namespace") or "", where[1]))
            plan = reconcile_claim(resource, mapping)
        case kinds.SCALED_WORKLOAD if not is_being_deleted(resource):
            plan = _decide_workload(cache, where, resource, now=now)
        case kinds.HTTP_SCALED_OBJECT | kinds.INTERCEPTOR_ROUTE:
            scaled_objects = cache.within(kinds.KEDA_SCALED_OBJECT, where[0])
            conversion = convert_route(resource, scaled_objects, pages=cache.within(kinds.CONFIG_MAP, where[0]))
            workload, refusal = cache.get(kinds.SCALED_WORKLOAD, where), cache.refusal(key, resource)
            plan = reconcile_keda_route(kind, resource, conversion, workload=workload, now=now, refusal=refusal)
        case _:
            plan = WritePlan()
    return plan


def _is_orphaned(cache: ControllerCache, kind: Kind, where: Key, *, resource: Object) -> bool:
    """Whether an object's owner is deleted. Garbage collection will delete the object, and writes to it would fail."""
    owner_kind = _OWNERS.get(kind)
    for reference in nested(resource, "metadata", "ownerReferences") or ():
        if owner_kind and reference.get("controller") and reference.get("kind") == owner_kind.name:
            owner = cache.get(owner_kind, (where[0], reference.get("name", "")))
            return owner is None or uid_of(owner) != reference.get("uid") or is_being_deleted(owner)
    return False


def _children(cache: ControllerCache, where: Key) -> ServiceChildren:
    configuration = cache.get(kinds.CONFIGURATION, where)
    name = nested(configuration, "spec", "template", "metadata", "name") or ""
    named = cache.get(kinds.REVISION, (where[0], name))
    is_taken = (
        configuration is not None
        and named is not None
        and revision_name_is_taken(configuration, {name: named}, cache.settings)
    )
    route = cache.get(kinds.ROUTE, where)
    return ServiceChildren(configuration=configuration, route=route, name_is_taken=is_taken)


def _decide_configuration(cache: ControllerCache, where: Key, configuration: Object, *, now: str) -> WritePlan:
    own_name = nested(configuration, "spec", "template", "metadata", "name") or ""
    names = {*cache.indexes.relations.revisions_of(where), own_name}
    return reconcile_configuration(
        configuration,
        cache.named(kinds.REVISION, where[0], names=names),
        settings=cache.settings,
        scaling=cache.scaling,
        now=now,
        refusal=cache.refusal((kinds.CONFIGURATION, *where), configuration),
        # On a single machine the first routing state is written with the first readiness, which no status stores.
        routes=() if cache.sidecar is None else _latest_routes(cache, where, configuration),
    )


def _latest_routes(cache: ControllerCache, where: Key, configuration: Object) -> tuple[str, ...]:
    """The route of a configuration's service, by name, if it uses the latest revision; empty otherwise."""
    service = cache.get(kinds.SERVING_SERVICE, where)
    if service is None or not is_controlled_by(configuration, service):
        return ()
    targets: Sequence[Object] = nested(service, "spec", "traffic") or ({},)
    return () if all(target.get("revisionName") for target in targets) else (where[1],)


def _decide_route(cache: ControllerCache, where: Key, route: Object, *, now: str, now_s: float) -> WritePlan:
    namespace, _ = where
    targets = RouteTargets(
        configurations=cache.named(kinds.CONFIGURATION, namespace, names=configurations_named(route)),
        revisions=cache.named(kinds.REVISION, namespace, names=revisions_named(route)),
    )
    holders = {host: cache.indexes.claims.holder(host) for host in claims_of(route, cache.settings.host_rules)}
    context = RouteContext(
        lost={host: holder for host, holder in holders.items() if holder is not None and holder != where},
        public=_public(cache, where, is_of_route=True),
        refusal=cache.refusal((kinds.ROUTE, *where), route),
        httproutes=_httproutes(cache, where),
        confirmed=cache.confirmed_digest(where),
        judged=cache.judged.get(where, {}),
        tag_services=_tag_services(cache, where, route),
        certificates=_certificates(cache, where),
    )
    return reconcile_route(route, targets, context, settings=cache.settings, now=now, now_s=now_s)


def _decide_revision(cache: ControllerCache, where: Key, revision: Object, *, now: str) -> WritePlan:
    context = _revision_context(cache, where, revision)
    plan = reconcile_revision(revision, context, scaling=cache.scaling, now=now, sidecar=cache.sidecar)
    if any(_routes_before(cache, revision)):
        return msgspec.structs.replace(plan, again_after_s=_ROUTES_UNKNOWN_S)
    return plan


def _decide_domain_mapping(cache: ControllerCache, where: Key, mapping: Object, *, now: str) -> WritePlan:
    target = target_of(mapping)
    context = MappingContext(
        claim=cache.get(kinds.CLUSTER_DOMAIN_CLAIM, ("", where[1])),
        target=cache.get(*target) if target else None,
        holder=cache.indexes.claims.holder(where[1]),
        certificates=_mapping_certificates(cache, where[0], mapping),
    )
    return reconcile_domain_mapping(mapping, context, settings=cache.settings, now=now)


def _decide_workload(cache: ControllerCache, where: Key, workload: Object, *, now: str) -> WritePlan:
    view = _workload_view(cache, where)
    status = workload_status(workload, view, settings=cache.settings, scaling=cache.scaling, now=now)
    activators = cache.activators.backends
    names = [slice_name(workload, family) for family in activators]
    slices = cache.named(kinds.ENDPOINT_SLICE, where[0], names=names)
    writes = (*status_patch(kinds.SCALED_WORKLOAD, workload, status), *in_place_writes(workload, activators, slices))
    return WritePlan(writes=writes)


def _decide_rights(cache: ControllerCache, where: Key) -> WritePlan:
    """The plan for a RoleBinding by which the ScaledWorkloads of its namespace are scaled, present or not."""
    if not cache.has_rights:
        return WritePlan()
    is_wanted = where[0] in cache.indexes.workloads.namespaces and cache.may_scale(where[0])
    binding = cache.get(kinds.ROLE_BINDING, where)
    writes = rights_writes(where[0], binding, is_wanted=is_wanted, system_namespace=cache.system_namespace)
    return WritePlan(writes=tuple(writes))


def _workload_view(cache: ControllerCache, where: Key) -> WorkloadView:
    namespace, _ = where
    known = cache.indexes.workloads.get(where)
    if known.spec is None:
        return WorkloadView(own=known)
    kind, name = known.target
    scales = cache.indexes.workloads.scales
    fallback = known.spec.cold_start.fallback
    holders = {host: holder_of(cache, namespace, host) for host in known.spec.all_hosts}
    return WorkloadView(
        own=known,
        target=scales.get(where) if kind is None else cache.get(kind, (namespace, name)),
        service=cache.get(kinds.SERVICE, (namespace, known.spec.service.name)),
        fallback=None if fallback is None else cache.get(kinds.SERVICE, (namespace, fallback.name)),
        is_known_kind=kind is not None or where in scales,
        scalers=cache.within(kinds.HORIZONTAL_POD_AUTOSCALER, namespace),
        workloads=cache.indexes.workloads,
        is_revision=cache.get(kinds.REVISION, where) is not None,
        holders={host: holder for host, holder in holders.items() if holder is not None},
        is_permitted=cache.may_scale(namespace),
    )


def _revision_context(cache: ControllerCache, where: Key, revision: Object) -> RevisionContext:
    namespace, name = where
    relations = cache.indexes.relations
    deployment = cache.get(kinds.DEPLOYMENT, (namespace, deployment_name(name)))
    if cache.counts_pods and deployment is not None:
        pods_by_name = cache.named(kinds.POD, namespace, names=relations.pods_of(where))
        deployment = with_ready_count(deployment, pods_by_name.values())
    # Pods are read only while none is ready, because ready pods have no failure; one of them shows the images.
    is_asked = not (ready_count_of(deployment) and nested(revision, "status", "containerStatuses"))
    names = relations.pods_of(where) if is_asked else ()
    pods: Iterator[Object] = (body for pod in names if (body := cache.get(kinds.POD, (namespace, pod))))
    if ready_count_of(deployment):
        # An evicted pod stays listed, and may have another image.
        pods = itertools.islice((body for body in pods if nested(body, "status", "phase") != "Failed"), 1)
    if cache.settings.pod_is_always_schedulable:
        pods = (body for body in pods if condition_of(body, "PodScheduled").get("status") != "False")
    is_resolving = cache.sidecar is not None and deployment is None
    parent: Key = (namespace, labels_of(revision).get(CONFIGURATION_LABEL, ""))
    configuration = cache.get(kinds.CONFIGURATION, parent)
    newest, latest_ready = (
        nested(configuration, "status", f"latest{which}RevisionName") for which in ("Created", "Ready")
    )
    policies = _policies(cache, where)
    # Statuses are not on disk: until they are written, a revision of an earlier process keeps its state.
    is_known_idle = labels_of(revision).get(ROUTING_STATE_LABEL) == RoutingState.RESERVE
    return RevisionContext(
        children=RevisionChildren(
            deployment=deployment,
            pods=list(pods),
        ),
        private_service=cache.get(kinds.SERVICE, (namespace, private_service_name(name))),
        routes=sorted({*relations.routes_to_revision(where), *_routes_before(cache, revision)}),
        is_newest=newest == name or (newest is None and not is_known_idle),
        is_settled=is_settled(
            revision, cache.get(kinds.REVISION, (namespace, latest_ready or "")), newest=newest or ""
        ),
        is_awaited=bool(relations.routes_to_configuration(parent)),
        refusal=cache.refusal((kinds.REVISION, *where), revision),
        public=_public(cache, where, _path(cache, revision, policies)),
        hpa=cache.get(kinds.HORIZONTAL_POD_AUTOSCALER, where),
        count_period_s=cache.settings.count_period_s,
        # On a single machine the kubelet pins the images of a revision.
        unresolved=unresolved_images(revision, cache.settings.skipped_registries) if is_resolving else (),
        resolution=cache.resolution(where, uid_of(revision)) if is_resolving else None,
        log_url=cache.settings.revision_url_template.replace("${REVISION_UID}", uid_of(revision)),
        is_guarded=any(policy.is_guarded for policy in policies),
    )


def _routes_before(cache: ControllerCache, revision: Object) -> Iterator[str]:
    """Routes that referenced a revision before a restart, and whose status has no traffic yet."""
    for name in filter(None, annotations_of(revision).get(ROUTES_ANNOTATION, "").split(",")):
        route = cache.get(kinds.ROUTE, (namespace_of(revision), name))
        if route is not None and not nested(route, "status", "traffic"):
            yield name


def _policies(cache: ControllerCache, where: Key) -> list[RoutePolicy]:
    """The policies of the routes that reference a revision."""
    names = cache.indexes.relations.routes_to_revision(where)
    routes = [cache.get(kinds.ROUTE, (where[0], name)) for name in names]
    return [route_policy(annotations_of(route)) for route in routes if route is not None]


def _path(cache: ControllerCache, revision: Object, policies: Sequence[RoutePolicy]) -> TrafficPath:
    """The endpoints of a revision's public Service: activators, if a route or inner TLS requires them."""
    if cache.sidecar is not None and cache.sidecar.inner_tls.is_strict:
        # Clients of the Service have no certificate that a pod accepts.
        return TrafficPath.PROXY
    if any(policy.needs_activator for policy in policies):
        return TrafficPath.PROXY
    return traffic_path_of(revision)


def _public(
    cache: ControllerCache, where: Key, path: TrafficPath = TrafficPath.PROXY, *, is_of_route: bool = False
) -> PublicService | None:
    """The public Service of a revision or route; None if the settings disable public Services."""
    if not cache.settings.public_services:
        return None
    namespace, name = where
    slices = [cache.get(kinds.ENDPOINT_SLICE, (namespace, slice_name)) for slice_name in slice_names(name)]
    backends = cache.activators.backends
    # Pods outside all slices need not be read.
    names = cache.indexes.relations.pods_of(where) if path is TrafficPath.SERVE or not backends else ()
    return PublicService(
        service=cache.get(kinds.SERVICE, where),
        slices=[slice_ for slice_ in slices if slice_],
        activators=backends,
        pods=pod_backends(body for pod in names if (body := cache.get(kinds.POD, (namespace, pod)))),
        path=path,
        has_tls=is_of_route and cache.settings.host_rules.has_local_certificates,
    )


def _tag_services(cache: ControllerCache, where: Key, route: Object) -> TagServices:
    namespace, name = where
    names = {tag: tag_service_name(route, cache.settings, tag) for tag in tags_of(route)}
    services = {tag: _public(cache, (namespace, service_name), is_of_route=True) for tag, service_name in names.items()}
    known = cache.named(kinds.SERVICE, namespace, names=cache.indexes.relations.services_of(where))
    return TagServices(
        by_tag={tag: public for tag, public in services.items() if public is not None},
        unused=[known[service_name] for service_name in sorted(known) if service_name not in {*names.values(), name}],
    )


def _certificates(cache: ControllerCache, where: Key) -> Certificates | None:
    if not cache.settings.wants_certificates:
        return None
    existing = cache.named(kinds.CERTIFICATE, where[0], names=cache.indexes.relations.certificates_of(where))
    missing = cache.missing.get(kinds.CERTIFICATE, "")
    return Certificates(existing=[existing[name] for name in sorted(existing)], missing=missing)


def _mapping_certificates(cache: ControllerCache, namespace: str, mapping: Object) -> Certificates | None:
    if not cache.settings.host_rules.has_certificates:
        return None
    existing = cache.get(kinds.CERTIFICATE, (namespace, certificate_name(uid_of(mapping), owner="mapping")))
    missing = cache.missing.get(kinds.CERTIFICATE, "")
    return Certificates(existing=() if existing is None else (existing,), missing=missing)


def _httproutes(cache: ControllerCache, where: Key) -> HttpRoutes | None:
    if not cache.settings.gateway:
        return None
    existing = cache.named(kinds.HTTP_ROUTE, where[0], names=cache.indexes.relations.httproutes_of(where))
    return HttpRoutes(
        existing=[existing[name] for name in sorted(existing)], missing=cache.missing.get(kinds.HTTP_ROUTE, "")
    )
