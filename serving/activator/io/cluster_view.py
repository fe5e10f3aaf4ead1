"""Watches the cluster for the ingress, and sets revisions Active.

``ClusterView`` watches Routes, Revisions, ScaledWorkloads, EndpointSlices, DomainMappings and ClusterDomainClaims, and
passes each change to the ingress. Slices of workloads are watched only in namespaces that have workloads.
``ClusterView`` sets a revision from Reserve to Active ("flips" it) with one PATCH on the last observed version, unless
the autoscaler does so before. After a conflict it reads the object, and patches again if it is still in Reserve.
``wake.py`` decides when to retry a failed flip. The activator writes nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from serving.activator.io.ingress import Ingress
from serving.activator.queueing.outcome import RevisionWake
from serving.activator.queueing.revisions import ServedRevision, fallback_of, revision_of, workload_of
from serving.activator.queueing.slices import ServedSlice, slice_of
from serving.activator.queueing.workloads import (
    SERVICE_NAME_LABEL,
    WorkloadBackend,
    WorkloadBackends,
    backend_of,
    fallback_backend_of,
)
from serving.activator.routing.hostclaims import (
    DomainTargets,
    ServedRoute,
    certificates_of,
    owner_of_rules,
    route_of,
    rules_of,
)
from serving.activator.routing.workloads import host_rules_of
from serving.core.model.errors import ClusterError, Conflict, NotFound, SettingsError
from serving.core.model.knative import REVISION_LABEL, RevisionKey, ServingState
from serving.core.model.nodata import NoData
from serving.core.model.objects import Object, nested, version_of
from serving.core.model.routehosts import HostRules
from serving.core.model.scaledworkload import ScaledWorkloadSpec, fallback_key, serving_state_patch
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    DOMAIN_MAPPING,
    ENDPOINT_SLICE,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    Kind,
)
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector

_log = logging.getLogger("activator")

# Writes of one flip without a pause; after them, ``wake.py`` decides when to retry.
_FLIP_TRIES_MAX = 5
# Delay of a flip, in seconds: a single machine's autoscaler sets the revision Active by the call that writes its scale.
_FLIP_LAG_S = 0.05


class ClusterView:
    """Keeps an ingress up to date with the watched resources of a cluster.

    ``flip`` and ``synced`` work only while ``run`` runs. ``on_route`` is called with each changed route, and with None
    for a deleted route. ``on_secrets`` is called after changes with the Secret (namespace, name) of each host that has
    one.
    """

    def __init__(  # noqa: PLR0913 - what it is wired with
        self,
        cluster: Cluster,
        ingress: Ingress,
        scaling: AutoscalerSettings,
        *,
        rules: HostRules,
        clock: Callable[[], float],
        on_route: Callable[[str, ServedRoute | None], None] = lambda _key, _route: None,
        on_secrets: Callable[[Mapping[str, tuple[str, str]]], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._ingress = ingress
        self._scaling = scaling
        self._rules = rules
        self._clock = clock
        self._group: SupervisedTasks | None = None
        self._flipping: set[RevisionKey] = set()
        # Slices of other Services lack this label.
        slices = Reflector(cluster, ENDPOINT_SLICE, label_selector=REVISION_LABEL, on_change=self._slice_changed)
        revisions = Reflector(cluster, REVISION, on_change=self._revision_changed)
        routes = Reflector(cluster, ROUTE, on_change=self._route_changed)
        self._revisions = revisions
        self._routes = routes
        mappings = Reflector(cluster, DOMAIN_MAPPING, on_change=self._mapping_changed)
        claims = Reflector(cluster, CLUSTER_DOMAIN_CLAIM, on_change=self._claim_changed)
        self._workloads = Reflector(cluster, SCALED_WORKLOAD, on_change=self._workload_changed)
        self._workload_slices = NamespacedReflectors(
            cluster, ENDPOINT_SLICE, label_selector=SERVICE_NAME_LABEL, on_change=self._workload_slice_changed
        )
        self._backends = WorkloadBackends()
        self._reflectors = (revisions, slices, routes, mappings, claims, self._workloads)
        self._domains = DomainTargets()
        self._certificates: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
        self._on_secrets = on_secrets
        self._on_route = on_route

    def reconfigure(self, scaling: AutoscalerSettings, rules: HostRules) -> None:
        """Schedule a recomputation of all revisions' targets and all routes' hosts from new settings."""
        if rules != self._rules:
            self._rules = rules
            self._routes.repeat_all()
            self._domains_changed()
        if scaling != self._scaling:
            self._scaling = scaling
            self._revisions.repeat_all()
            self._workloads.repeat_all()

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._workload_slices.synced()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with supervise() as group:
            self._group = group
            for reflector in self._reflectors:
                group.start(reflector.run(), name=f"activator {reflector!r}")
            group.start(self._workload_slices.run(), name="activator slices of workloads")

    def flip(self, wake: RevisionWake) -> None:
        """Set a revision Active, unless a write for it is in progress."""
        if self._group is None or wake.key in self._flipping:
            return
        self._flipping.add(wake.key)
        self._group.start(self._flip(wake.key, wake.resource_version), name=f"flip {wake.key[1]}")

    async def _flip(self, key: RevisionKey, resource_version: str) -> None:
        try:
            is_workload = key in self._workloads.cache and key not in self._revisions.cache
            kind = SCALED_WORKLOAD if is_workload else REVISION
            seen = self._workload_seen if is_workload else self._revision_seen
            if not is_workload:
                reserved_version = await self._reserved_version(key)
                if reserved_version is None:
                    return
                resource_version = reserved_version
            for _ in range(_FLIP_TRIES_MAX):
                if (after := await self._patched(kind, key, resource_version)) is not None:
                    _log.info("revision.activated", extra={"namespace": key[0], "revision": key[1]})
                    seen(after)
                    return
                # Both other daemons also write to a revision that goes to zero.
                revision = seen(await self._cluster.get(kind, *key))
                if revision is None or revision.serving_state is not ServingState.RESERVE:
                    return
                resource_version = revision.resource_version
            raise Conflict(f"{_FLIP_TRIES_MAX} conflicts with other writers")
        except NotFound:
            # The watch reports the deletion, which rejects waiting requests.
            return
        except ClusterError as error:
            _log.warning(
                "revision.activation-failed", extra={"namespace": key[0], "revision": key[1], "error": str(error)}
            )
        finally:
            self._flipping.discard(key)

    async def _reserved_version(self, key: RevisionKey) -> str | None:
        """The version of a revision that the autoscaler has not set Active with its scale after a while, or None."""
        await asyncio.sleep(_FLIP_LAG_S)
        revision = self._revisions.cache.get(key)
        is_reserved = revision is not None and nested(revision, "spec", "servingState") == ServingState.RESERVE
        return version_of(revision) if revision is not None and is_reserved else None

    async def _patched(self, kind: Kind, key: RevisionKey, resource_version: str) -> Object | None:
        """Set a revision Active, and return it; None if another daemon has written to the revision meanwhile."""
        patch = serving_state_patch(
            ServingState.ACTIVE, resource_version=resource_version, is_workload=kind == SCALED_WORKLOAD
        )
        try:
            return await self._cluster.patch(kind, *key, patch=patch)
        except Conflict:
            return None

    def _revision_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._ingress.routes.remove_revision(change.key)
            self._ingress.apply(self._ingress.router.remove_revision(change.key, self._clock()))
            if change.key in self._workloads.cache:
                self._workload_seen(self._workloads.cache[change.key])
        else:
            self._revision_seen(change.new)

    def _revision_seen(self, revision: Object) -> ServedRevision | None:
        """Add a listed or changed revision to the routes and the router; return None if it cannot be read."""
        served = revision_of(revision, self._scaling)
        if isinstance(served, NoData):
            _log_unreadable("Revision", revision, served.missing)
            return None
        self._ingress.routes.set_revision(served.key)
        self._ingress.apply(self._ingress.router.set_revision(served, self._clock()))
        return served

    def _workload_changed(self, change: CacheChange) -> None:
        if change.type is not EventType.DELETED:
            self._workload_seen(change.new)
            return
        self._set_backend(change.key, None)
        self._set_fallback(fallback_key(change.key), None, None)
        self._ingress.routes.set_rules("/".join(change.key), ())
        if change.key not in self._revisions.cache:
            self._ingress.apply(self._ingress.router.remove_revision(change.key, self._clock()))

    def _workload_seen(self, workload: Object) -> ServedRevision | None:
        """Add a listed or changed workload to the routes and the router; return None if it cannot be read."""
        try:
            spec = ScaledWorkloadSpec.from_object(workload)
        except SettingsError as error:
            _log_unreadable("ScaledWorkload", workload, str(error))
            return None
        served, backend = workload_of(workload, spec, self._scaling), backend_of(workload, spec)
        if isinstance(served, NoData):
            _log_unreadable("ScaledWorkload", workload, served.missing)
            return None
        if served.key in self._revisions.cache:
            # The controller says so in a condition.
            return served
        self._set_backend(served.key, backend)
        self._set_fallback(fallback_key(served.key), fallback_of(served), fallback_backend_of(workload, spec))
        self._ingress.routes.set_rules("/".join(served.key), list(host_rules_of(workload, spec)))
        self._ingress.apply(self._ingress.router.set_revision(served, self._clock()))
        return served

    def _set_backend(self, key: RevisionKey, backend: WorkloadBackend | None) -> None:
        """Replace the Service of a workload or fallback, and the slices that belong to the Service."""
        if self._backends.backend(key) == backend:
            return
        cached = self._workload_slices.cache(key[0])
        for endpoint_slice in self._backends.own_slices(key, cached):
            if isinstance(endpoint_slice, ServedSlice):
                self._ingress.apply(self._ingress.router.remove_slice(endpoint_slice.key, self._clock()))
        self._backends.put(key, backend)
        self._workload_slices.choose(self._backends.namespaces)
        for endpoint_slice in self._backends.own_slices(key, cached):
            self._slice_seen(endpoint_slice)

    def _set_fallback(self, key: RevisionKey, fallback: ServedRevision | None, backend: WorkloadBackend | None) -> None:
        is_known = self._ingress.router.directory.revision(key) is not None
        self._set_backend(key, backend)
        if fallback is not None:
            self._ingress.apply(self._ingress.router.set_revision(fallback, self._clock()))
        elif is_known:
            self._ingress.apply(self._ingress.router.remove_revision(key, self._clock()))

    def _workload_slice_changed(self, change: CacheChange) -> None:
        for served in self._backends.slices(change.new):
            if change.type is not EventType.DELETED:
                self._slice_seen(served)
            elif isinstance(served, ServedSlice):
                self._ingress.apply(self._ingress.router.remove_slice(served.key, self._clock()))

    def _slice_seen(self, served: ServedSlice | NoData) -> None:
        if isinstance(served, ServedSlice):
            self._ingress.apply(self._ingress.router.set_slice(served, self._clock()))
        else:
            _log.error("object.unreadable", extra={"kind": "EndpointSlice", "missing": served.missing})

    def _slice_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._ingress.apply(self._ingress.router.remove_slice("/".join(change.key), self._clock()))
            return
        served = slice_of(change.new)
        if isinstance(served, ServedSlice):
            self._ingress.apply(self._ingress.router.set_slice(served, self._clock()))
        else:
            _log_unreadable("EndpointSlice", change.new, served.missing)

    def _route_changed(self, change: CacheChange) -> None:
        self._certificates.pop(change.key, None)
        if change.type is EventType.DELETED:
            self._ingress.routes.remove("/".join(change.key))
            self._ingress.routes.set_rules(owner_of_rules("/".join(change.key)), ())
            self._on_route("/".join(change.key), None)
        else:
            route = route_of(change.new, self._rules)
            if isinstance(route, ServedRoute):
                self._ingress.routes.set(route)
                self._certificates[change.key] = certificates_of(route, self._rules)
                self._ingress.routes.set_rules(owner_of_rules(route.key), rules_of(route))
                self._on_route(route.key, route)
            else:
                _log_unreadable("Route", change.new, route.missing)
        self._secrets_changed()

    def _mapping_changed(self, change: CacheChange) -> None:
        if self._domains.put(change.key, None if change.type is EventType.DELETED else change.new):
            self._domains_changed()

    def _claim_changed(self, change: CacheChange) -> None:
        if self._domains.claim(change.key[1], None if change.type is EventType.DELETED else change.new):
            self._domains_changed()

    def _domains_changed(self) -> None:
        self._ingress.routes.set_domains(self._domains.hosts(self._rules), self._domains.claims)
        self._secrets_changed()

    def _secrets_changed(self) -> None:
        own = {
            host: secret
            for key, secrets in self._certificates.items()
            for host, secret in secrets.items()
            # A status grants no host: the oldest claim does.
            if self._ingress.routes.holder_of(host) == "/".join(key)
        }
        self._on_secrets({**self._domains.secrets(self._ingress.routes.holds), **own})


def _log_unreadable(kind: str, resource: Object, missing: str) -> None:
    extra = {"kind": kind, "object": resource["metadata"].get("name"), "missing": missing}
    _log.error("object.unreadable", extra=extra)
