"""What the controller has seen of all resources, who must be looked at when one changes, and the decision for each.

A large memory without i/o: ``put`` and ``drop`` take what a watch brings and return the keys of resources whose decision
may now be another; ``decide`` gives the plan for one key from what is known. Only what can matter wakes somebody: the
count of a revision's pods is nothing to its configuration. ``loop.py`` moves objects in and plans out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from serving.controller.activators import Activators
from serving.controller.configuration import reconcile_configuration, revision_name_is_taken
from serving.controller.domain_mapping import MappingContext, reconcile_claim, reconcile_domain_mapping, target_of
from serving.controller.domains import Domains
from serving.controller.hosts import Claims, Key, claims_of
from serving.controller.httproutes import HttpRoutes, httproute_owner_name
from serving.controller.naming import deployment_name, private_service_name
from serving.controller.public import PublicService, pod_backends, public_owner_name, slice_names, traffic_path_of
from serving.controller.relations import Relations, configurations_named, owners_of, revisions_named
from serving.controller.revision import RevisionContext, reconcile_revision
from serving.controller.revision_status import RevisionChildren, ready_count_of, serving_state_of
from serving.controller.route import RouteContext, reconcile_route
from serving.controller.service import ServiceChildren, reconcile_service
from serving.controller.sidecar import Sidecar
from serving.controller.traffic import RouteTargets
from serving.controller.writes import ResourceKind, WritePlan
from serving.model.knative import (
    CONDITION_READY,
    CONFIGURATION_LABEL,
    REVISION_LABEL,
    SERVICE_LABEL,
    ServingState,
    TrafficPath,
)
from serving.model.objects import (
    Object,
    annotations_of,
    condition_of,
    labels_of,
    name_of,
    namespace_of,
    nested,
    uid_of,
    version_of,
)
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.controller import ControllerSettings

__all__ = ["ControllerCache", "WorkKey"]

WorkKey = tuple[ResourceKind, str, str]

# Longer than answers to writes are under way.
_GONE_KNOWN_MAX = 4096

_OWNER_NAMES: dict[ResourceKind, Callable[[str], str]] = {
    ResourceKind.CORE_SERVICE: str,
    ResourceKind.ENDPOINT_SLICE: public_owner_name,
    ResourceKind.HTTP_ROUTE: httproute_owner_name,
}


class ControllerCache:
    """All objects by kind, namespace and name, with the indexes that decisions need."""

    def __init__(
        self, settings: ControllerSettings, scaling: AutoscalerSettings, *, sidecar: Sidecar | None = None
    ) -> None:
        self._settings = settings
        self._scaling = scaling
        self._sidecar = sidecar
        self._objects: dict[ResourceKind, dict[Key, Object]] = {resource: {} for resource in ResourceKind}
        self._relations = Relations()
        # Why the server has no HTTPRoutes, "" if it has.
        self._httproutes_missing = ""
        self._claims = Claims()
        self._domains = Domains()
        self._activators = Activators()
        # Uids of what went last: the answer to a write may come after the news that its object is gone.
        self._gone: OrderedDict[str, None] = OrderedDict()
        # Why the server did not take what a resource's plan creates, with the generation that asked for it.
        self._refusals: dict[WorkKey, tuple[object, str]] = {}

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {resource.split('.')[0]}" for resource, found in self._objects.items())
        return f"ControllerCache({counts})"

    def reconfigure(self, settings: ControllerSettings, scaling: AutoscalerSettings) -> set[WorkKey]:
        """Decide with these settings from now on; returns who must be looked at: everybody."""
        self._settings, self._scaling = settings, scaling
        for key, route in self._objects[ResourceKind.ROUTE].items():
            self._claims.put(key, claims_of(route, settings))
        kinds = (
            ResourceKind.SERVICE,
            ResourceKind.CONFIGURATION,
            ResourceKind.ROUTE,
            ResourceKind.REVISION,
            ResourceKind.DOMAIN_MAPPING,
        )
        return {key for resource in kinds for key in self.keys(resource)}

    def get(self, resource: ResourceKind, key: Key) -> Object | None:
        """An object as it was last seen."""
        return self._objects[resource].get(key)

    def keys(self, resource: ResourceKind) -> list[WorkKey]:
        """All keys of a kind."""
        return [(resource, *key) for key in self._objects[resource]]

    def put(self, resource: ResourceKind, found: Object) -> set[WorkKey]:
        """Take an object as it is now; returns who must be looked at. What is known, or older, is ignored."""
        key = (namespace_of(found), name_of(found))
        before = self._objects[resource].get(key)
        if before is not None and _is_known(found, before):
            return set()
        self._objects[resource][key] = found
        self._relations.put(resource, key, before=before, after=found)
        if resource is ResourceKind.DOMAIN_MAPPING:
            self._domains.put(key, before=before, after=found)
        return set(self._woken(resource, key, before=before, after=found))

    def put_written(self, resource: ResourceKind, found: Object) -> set[WorkKey]:
        """Take what the server made of our write, unless the object is gone again meanwhile."""
        return set() if uid_of(found) in self._gone else self.put(resource, found)

    def drop(self, resource: ResourceKind, key: Key) -> set[WorkKey]:
        """Forget an object that is gone; returns who must be looked at."""
        before = self._objects[resource].pop(key, None)
        if before is None:
            return set()
        self._refusals.pop((resource, *key), None)
        self._gone[uid_of(before)] = None
        while len(self._gone) > _GONE_KNOWN_MAX:
            self._gone.popitem(last=False)
        self._relations.put(resource, key, before=before, after=None)
        if resource is ResourceKind.DOMAIN_MAPPING:
            self._domains.put(key, before=before, after=None)
        return set(self._woken(resource, key, before=before, after=None))

    def put_activators(self, key: Key, found: Object) -> set[WorkKey]:
        """Take a slice of the activators' inner Service as it is now; returns who must be looked at."""
        return self._public_keys() if self._activators.put(key, found) else set()

    def drop_activators(self, key: Key) -> set[WorkKey]:
        """Forget a slice of the activators' inner Service; returns who must be looked at."""
        return self._public_keys() if self._activators.drop(key) else set()

    def set_httproutes_missing(self, why: str) -> set[WorkKey]:
        """Why the server has no HTTPRoutes, "" if it has; returns who must be looked at."""
        if why == self._httproutes_missing:
            return set()
        self._httproutes_missing = why
        return set(self.keys(ResourceKind.ROUTE))

    def _public_keys(self) -> set[WorkKey]:
        return {*self.keys(ResourceKind.REVISION), *self.keys(ResourceKind.ROUTE)}

    def refuse(self, key: WorkKey, message: str) -> set[WorkKey]:
        """The server does not take what the plan of a resource creates, and will not until its spec changes."""
        resource, namespace, name = key
        found = self.get(resource, (namespace, name))
        if found is None:
            return set()
        self._refusals[key] = (nested(found, "metadata", "generation"), message)
        return {key}

    def _refusal(self, key: WorkKey, found: Object) -> str:
        generation, message = self._refusals.get(key, (None, ""))
        return message if generation == nested(found, "metadata", "generation") else ""

    def decide(self, key: WorkKey, *, now: str, now_s: float) -> WritePlan:
        """The plan for a resource; an empty one if it does not exist. ``now_s`` is the time of the stamp ``now``, exactly."""
        resource, *place = key
        where: Key = (place[0], place[1])
        found = self._objects[resource].get(where)
        if found is None:
            return WritePlan()
        match resource:
            case ResourceKind.SERVICE:
                plan = reconcile_service(found, self._children(where), now=now)
            case ResourceKind.CONFIGURATION:
                plan = self._decide_configuration(where, found, now)
            case ResourceKind.ROUTE:
                plan = self._decide_route(where, found, now=now, now_s=now_s)
            case ResourceKind.REVISION:
                around = self._around(where, found)
                plan = reconcile_revision(found, around, scaling=self._scaling, now=now, sidecar=self._sidecar)
            case ResourceKind.DOMAIN_MAPPING:
                plan = self._decide_domain_mapping(where, found, now)
            case ResourceKind.DOMAIN_CLAIM:
                mapping = self.get(ResourceKind.DOMAIN_MAPPING, (nested(found, "spec", "namespace") or "", where[1]))
                plan = reconcile_claim(found, mapping)
            case _:
                plan = WritePlan()
        return plan

    def _children(self, where: Key) -> ServiceChildren:
        configuration = self.get(ResourceKind.CONFIGURATION, where)
        name = nested(configuration, "spec", "template", "metadata", "name") or ""
        named = self.get(ResourceKind.REVISION, (where[0], name))
        is_taken = (
            configuration is not None
            and named is not None
            and revision_name_is_taken(configuration, {name: named}, self._settings)
        )
        return ServiceChildren(
            configuration=configuration, route=self.get(ResourceKind.ROUTE, where), name_is_taken=is_taken
        )

    def _decide_configuration(self, where: Key, found: Object, now: str) -> WritePlan:
        own_name = nested(found, "spec", "template", "metadata", "name") or ""
        revisions = self._named(ResourceKind.REVISION, where[0], names={*self._relations.revisions_of(where), own_name})
        return reconcile_configuration(
            found,
            revisions,
            settings=self._settings,
            scaling=self._scaling,
            now=now,
            refusal=self._refusal((ResourceKind.CONFIGURATION, *where), found),
        )

    def _decide_route(self, where: Key, found: Object, *, now: str, now_s: float) -> WritePlan:
        namespace, _ = where
        known = RouteTargets(
            configurations=self._named(ResourceKind.CONFIGURATION, namespace, names=configurations_named(found)),
            revisions=self._named(ResourceKind.REVISION, namespace, names=revisions_named(found)),
        )
        holders = {host: self._claims.holder(host) for host in claims_of(found, self._settings)}
        lost = {host: holder for host, holder in holders.items() if holder is not None and holder != where}
        refusal = self._refusal((ResourceKind.ROUTE, *where), found)
        place = RouteContext(lost=lost, public=self._public(where), refusal=refusal, httproutes=self._httproutes(where))
        return reconcile_route(found, known, place, settings=self._settings, now=now, now_s=now_s)

    def _decide_domain_mapping(self, where: Key, found: Object, now: str) -> WritePlan:
        target = target_of(found)
        context = MappingContext(
            claim=self.get(ResourceKind.DOMAIN_CLAIM, ("", where[1])),
            target=self.get(*target) if target else None,
            holder=self._claims.holder(where[1]),
        )
        return reconcile_domain_mapping(found, context, settings=self._settings, now=now)

    def _named(self, resource: ResourceKind, namespace: str, *, names: Iterable[str]) -> dict[str, Object]:
        return {name: one for name in names if (one := self.get(resource, (namespace, name)))}

    def _around(self, where: Key, revision: Object) -> RevisionContext:
        namespace, name = where
        deployment = self.get(ResourceKind.DEPLOYMENT, (namespace, deployment_name(name)))
        # Pods are asked only while none is ready: of a thousand that are up there is nothing to learn.
        asked = () if ready_count_of(deployment) else self._relations.pods_of(where)
        pods = [one for pod in asked if (one := self.get(ResourceKind.POD, (namespace, pod)))]
        parent: Key = (namespace, labels_of(revision).get(CONFIGURATION_LABEL, ""))
        configuration = self.get(ResourceKind.CONFIGURATION, parent)
        newest = nested(configuration, "status", "latestCreatedRevisionName")
        return RevisionContext(
            beneath=RevisionChildren(deployment=deployment, pods=pods),
            private_service=self.get(ResourceKind.CORE_SERVICE, (namespace, private_service_name(name))),
            routes=sorted(self._relations.routes_to_revision(where)),
            is_newest=newest in (None, name),
            is_awaited=bool(self._relations.routes_to_configuration(parent)),
            refusal=self._refusal((ResourceKind.REVISION, *where), revision),
            public=self._public(where, traffic_path_of(revision)),
            hpa=self.get(ResourceKind.HPA, where),
        )

    def _public(self, where: Key, path: TrafficPath = TrafficPath.PROXY) -> PublicService | None:
        """The public Service of a revision or route, where there are such."""
        if not self._settings.public_services:
            return None
        namespace, name = where
        slices = [self.get(ResourceKind.ENDPOINT_SLICE, (namespace, one)) for one in slice_names(name)]
        # As long as they are not named, who they are is nothing to look at.
        is_asked = path is TrafficPath.SERVE or not self._activators.backends
        names = self._relations.pods_of(where) if is_asked else ()
        return PublicService(
            service=self.get(ResourceKind.CORE_SERVICE, where),
            slices=[one for one in slices if one],
            activators=self._activators.backends,
            pods=pod_backends(one for pod in names if (one := self.get(ResourceKind.POD, (namespace, pod)))),
            path=path,
        )

    def _httproutes(self, where: Key) -> HttpRoutes | None:
        if not self._settings.gateway:
            return None
        found = self._named(ResourceKind.HTTP_ROUTE, where[0], names=self._relations.httproutes_of(where))
        return HttpRoutes(found=[found[name] for name in sorted(found)], missing=self._httproutes_missing)

    def _woken(
        self, resource: ResourceKind, key: Key, *, before: Object | None, after: Object | None
    ) -> Iterator[WorkKey]:
        namespace, _ = key
        yield from self._domains.woken(resource, key, before=before, after=after)
        match resource:
            case ResourceKind.CORE_SERVICE | ResourceKind.ENDPOINT_SLICE | ResourceKind.HTTP_ROUTE:
                yield from self._woken_by_public(resource, key)
            case _:
                pass
        match resource:
            case (
                ResourceKind.ENDPOINT_SLICE
                | ResourceKind.HTTP_ROUTE
                | ResourceKind.DOMAIN_MAPPING
                | ResourceKind.DOMAIN_CLAIM
            ):
                return
            case ResourceKind.HPA:
                # How its scaling goes is nothing to decide on.
                if nested(before, "spec") != nested(after, "spec"):
                    yield (ResourceKind.REVISION, namespace, key[1])
                return
            case ResourceKind.DEPLOYMENT | ResourceKind.CORE_SERVICE | ResourceKind.POD:
                yield from ((ResourceKind.REVISION, namespace, name) for name in _either(before, after, REVISION_LABEL))
                return
            case ResourceKind.CONFIGURATION | ResourceKind.ROUTE:
                # By its name too: one that is in a service's way has no label of it.
                names = _either(before, after, SERVICE_LABEL) | {key[1]}
                yield from ((ResourceKind.SERVICE, namespace, name) for name in names)
            case _:
                pass
        yield (resource, *key)
        match resource:
            case ResourceKind.CONFIGURATION:
                yield from self._woken_by_configuration(key, before, after)
            case ResourceKind.ROUTE:
                yield from self._woken_by_route(key, before, after)
            case ResourceKind.REVISION if _matters(before) != _matters(after):
                yield from (
                    (ResourceKind.CONFIGURATION, namespace, one) for one in _either(before, after, CONFIGURATION_LABEL)
                )
                yield from ((ResourceKind.ROUTE, namespace, one) for one in self._relations.routes_to_revision(key))
            case _:
                pass

    def _woken_by_public(self, resource: ResourceKind, key: Key) -> Iterator[WorkKey]:
        """By name and not by owner: one that is in the way matters, too."""
        namespace, name = key
        owner = _OWNER_NAMES[resource](name)
        for one in (ResourceKind.REVISION, ResourceKind.ROUTE):
            if self._settings.public_services and (namespace, owner) in self._objects[one]:
                yield (one, namespace, owner)

    def _woken_by_configuration(self, key: Key, before: Object | None, after: Object | None) -> Iterator[WorkKey]:
        namespace, _ = key
        yield from ((ResourceKind.ROUTE, namespace, route) for route in self._relations.routes_to_configuration(key))
        newest = [nested(one, "status", "latestCreatedRevisionName") for one in (before, after)]
        if newest[0] != newest[1]:
            yield from ((ResourceKind.REVISION, namespace, name) for name in newest if name)

    def _woken_by_route(self, key: Key, before: Object | None, after: Object | None) -> Iterator[WorkKey]:
        namespace, _ = key
        # Only those that it begins or ceases to name: for the others nothing has changed.
        for name in revisions_named(before) ^ revisions_named(after):
            yield (ResourceKind.REVISION, namespace, name)
        claims = {} if after is None else claims_of(after, self._settings)
        claimed = {} if before is None else claims_of(before, self._settings)
        if before is None or claims != claimed:
            yield from ((ResourceKind.ROUTE, *rival) for rival in self._claims.put(key, claims))
            for host in claims.keys() ^ claimed.keys():
                yield from ((ResourceKind.DOMAIN_MAPPING, *mapping) for mapping in self._domains.of_host(host))
        # Whether a revision is awaited hangs on who goes with the latest.
        for name in configurations_named(before) ^ configurations_named(after):
            newest = nested(
                self.get(ResourceKind.CONFIGURATION, (namespace, name)), "status", "latestCreatedRevisionName"
            )
            yield from ((ResourceKind.REVISION, namespace, one) for one in (newest,) if one)


def _is_known(found: Object, known: Object) -> bool:
    """Whether ``found`` is the known state of the same object or one before. Versions that are no numbers say nothing."""
    if uid_of(found) != uid_of(known):
        return False
    new, old = version_of(found), version_of(known)
    return new.isdecimal() and old.isdecimal() and int(new) <= int(old)


def _either(before: Object | None, after: Object | None, label: str) -> set[str]:
    return owners_of(before, label) | owners_of(after, label)


def _matters(revision: Object | None) -> object:
    """What of a revision its configuration and routes go by."""
    if revision is None:
        return None
    ready = condition_of(revision, CONDITION_READY)
    return (
        uid_of(revision),
        ready.get("status"),
        ready.get("message"),
        labels_of(revision),
        annotations_of(revision),
        # Whether it has pods is its own affair, and goes to and fro with each that is woken.
        serving_state_of(revision) is ServingState.RETIRED,
        nested(revision, "metadata", "deletionTimestamp"),
    )
