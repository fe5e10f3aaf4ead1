"""The controller's cache of objects, with the indexes used by its decisions.

``put`` and ``drop`` apply the changes from watches, and return the keys of the affected resources (``affected.py``).
``decide.py`` reads the cache. The module has no I/O.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping

import msgspec

from serving.controller.affected import CacheIndexes, Change, Relations, affected_by
from serving.controller.revisions.digests import Resolution
from serving.controller.revisions.public import Activators
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.routes.domain_mapping import Domains
from serving.controller.routes.hosts import Claims, claims_of
from serving.controller.routes.rolloutcheck import RolloutJudgement
from serving.controller.values.writes import WATCHED_KINDS, WorkKey
from serving.controller.workloads.known import KnownWorkloads
from serving.controller.workloads.rights import RIGHTS
from serving.core.model.objects import Key, Object, name_of, namespace_of, nested, uid_of, version_of
from serving.core.scaling.policies.index import PolicyCheck
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind

# Remembered deletions: more than writes can be in flight.
_GONE_KNOWN_MAX = 4096


class ControllerCache:
    """Objects by kind, namespace and name. Decisions read ``settings``, ``scaling`` and ``indexes``.

    ``counts_pods``: ready pods of revisions are counted here, since the status of their Deployments is not written.
    """

    def __init__(  # noqa: PLR0913 - what the decisions of a controller depend on
        self,
        settings: ControllerSettings,
        scaling: AutoscalerSettings,
        *,
        sidecar: Sidecar | None = None,
        system_namespace: str,
        check_schedules: PolicyCheck = lambda _: (),
        objects_map: Callable[[], MutableMapping[Key, Object]] = dict,
        counts_pods: bool = False,
    ) -> None:
        self.settings = settings
        self.scaling = scaling
        self.sidecar = sidecar
        self.counts_pods = counts_pods
        self.system_namespace = system_namespace
        self.activators = Activators()
        self.indexes = CacheIndexes(
            objects={kind: objects_map() for kind in WATCHED_KINDS},
            relations=Relations(),
            claims=Claims(),
            domains=Domains(),
            workloads=KnownWorkloads(check_schedules),
        )
        self.missing: dict[Kind, str] = {}
        """Why the server has no objects of a kind; "" if it does."""

        self._objects = self.indexes.objects
        # Uids of recently deleted objects, because a write's response may arrive after the deletion's watch event.
        self._gone: OrderedDict[str, None] = OrderedDict()
        # The resourceVersion of the last list of each kind.
        self._listed: dict[Kind, str] = {}
        # Why the server refused an object of a resource's plan, with the resource's generation.
        self._refusals: dict[WorkKey, tuple[object, str]] = {}
        # By route: the digest that all activators last served.
        self._confirmed: dict[Key, str] = {}
        self.judged: dict[Key, Mapping[str, RolloutJudgement]] = {}
        """By route: the last judgements about checked rollouts."""

        # By revision: its uid, and the registries' answers.
        self._resolutions: dict[Key, tuple[str, Resolution]] = {}

    def reconfigure(
        self, settings: ControllerSettings, scaling: AutoscalerSettings, proxy: QueueProxySettings | None = None
    ) -> set[WorkKey]:
        """Apply new settings; return the keys of all affected resources.

        ``proxy`` are the settings of queue-proxies; None keeps the present settings.
        """
        self.settings = settings
        self.scaling = scaling
        if self.sidecar is not None:
            proxy = proxy or self.sidecar.proxy
            self.sidecar = msgspec.structs.replace(self.sidecar, settings=settings.sidecar, proxy=proxy)
        for key, route in self._objects[kinds.ROUTE].items():
            self.indexes.claims.put(key, claims_of(route, settings.host_rules))
        decided = (
            kinds.SERVING_SERVICE,
            kinds.CONFIGURATION,
            kinds.ROUTE,
            kinds.REVISION,
            kinds.DOMAIN_MAPPING,
        )
        return {*(key for kind in decided for key in self.keys(kind)), *self.rights_keys()}

    def get(self, kind: Kind, key: Key) -> Object | None:
        """The last observed object; None if it does not exist."""
        return self._objects[kind].get(key)

    def named(self, kind: Kind, namespace: str, *, names: Iterable[str]) -> dict[str, Object]:
        """The existing objects with these names in a namespace."""
        return {name: resource for name in names if (resource := self.get(kind, (namespace, name)))}

    def within(self, kind: Kind, namespace: str) -> list[Object]:
        """The objects of a namespace, by name."""
        objects = self._objects[kind]
        return [objects[key] for key in sorted(key for key in objects if key[0] == namespace)]

    def keys(self, kind: Kind) -> list[WorkKey]:
        """All keys of a kind."""
        return [(kind, *key) for key in self._objects[kind]]

    def put(self, kind: Kind, resource: Object) -> set[WorkKey]:
        """Store an object's current state, unless it is a known or older version; return the affected keys."""
        key = (namespace_of(resource), name_of(resource))
        before = self._objects[kind].get(key)
        if before is not None and _is_known(resource, before):
            return set()
        self._objects[kind][key] = resource
        return self._affected(Change(kind=kind, key=key, before=before, after=resource))

    def put_written(self, kind: Kind, resource: Object) -> set[WorkKey]:
        """Store the object returned by a write, unless it is already deleted; return the affected keys."""
        if uid_of(resource) in self._gone:
            return set()
        is_listed = (namespace_of(resource), name_of(resource)) in self._objects[kind]
        if not is_listed and _order(resource, self._listed.get(kind, "")) < 0:
            # A newer list lacks the object.
            return set()
        return self.put(kind, resource)

    def apply_list(self, kind: Kind, keys: Container[Key], *, version: str) -> set[WorkKey]:
        """Drop objects that a list of this version does not contain; return the affected keys.

        Such an object was stored by a write and deleted before the list. No watch reports its deletion.
        """
        self._listed[kind] = version
        objects = self._objects[kind]
        missing = [key for key in objects if key not in keys and _order(objects[key], version) <= 0]
        return {woken for key in missing for woken in self.drop(kind, key)}

    def drop(self, kind: Kind, key: Key) -> set[WorkKey]:
        """Drop a deleted object; return the affected keys."""
        before = self._objects[kind].pop(key, None)
        if before is None:
            return set()
        self._refusals.pop((kind, *key), None)
        if kind is kinds.ROUTE:
            self._confirmed.pop(key, None)
            self.judged.pop(key, None)
        if kind is kinds.REVISION:
            self._resolutions.pop(key, None)
        self._gone[uid_of(before)] = None
        while len(self._gone) > _GONE_KNOWN_MAX:
            self._gone.popitem(last=False)
        return self._affected(Change(kind=kind, key=key, before=before, after=None))

    def _affected(self, change: Change) -> set[WorkKey]:
        self.indexes.relations.put(change.kind, change.key, before=change.before, after=change.after)
        if change.kind is kinds.DOMAIN_MAPPING:
            self.indexes.domains.put(change.key, before=change.before, after=change.after)
        if change.kind is kinds.SCALED_WORKLOAD:
            self.indexes.workloads.put(change.key, change.after)
        return set(affected_by(change, self.indexes, self.settings))

    @property
    def has_rights(self) -> bool:
        """Whether the first lists of RoleBindings and of labelled namespaces are complete. Never on a server without RBAC."""
        return self._listed.keys() >= {kinds.NAMESPACE, kinds.ROLE_BINDING}

    def may_scale(self, namespace: str) -> bool:
        """Whether ScaledWorkloads of a namespace may be scaled."""
        is_open = not self.has_rights or self.settings.workload_namespaces == "all"
        return is_open or self.get(kinds.NAMESPACE, ("", namespace)) is not None

    def rights_keys(self) -> set[WorkKey]:
        """The keys of all ScaledWorkloads and of the RoleBindings of their namespaces."""
        bindings = {(kinds.ROLE_BINDING, namespace, RIGHTS) for namespace in self.indexes.workloads.namespaces}
        return {*self.keys(kinds.SCALED_WORKLOAD), *self.keys(kinds.ROLE_BINDING), *bindings}

    def put_scale(self, key: Key, scale: Object | None) -> set[WorkKey]:
        """Store the scale of a workload's target whose kind is not watched; return the affected keys."""
        scales = self.indexes.workloads.scales
        if self.get(kinds.SCALED_WORKLOAD, key) is None or scales.get(key, {}) == scale:
            return set()
        scales[key] = scale
        return {(kinds.SCALED_WORKLOAD, *key)}

    def put_activators(self, key: Key, endpoint_slice: Object) -> set[WorkKey]:
        """Store a slice of the activators' inner Service; return the affected keys."""
        return self._keys_with_activators() if self.activators.put(key, endpoint_slice) else set()

    def drop_activators(self, key: Key) -> set[WorkKey]:
        """Drop a slice of the activators' inner Service; return the affected keys."""
        return self._keys_with_activators() if self.activators.drop(key) else set()

    def _keys_with_activators(self) -> set[WorkKey]:
        return {key for kind in (kinds.REVISION, kinds.ROUTE, kinds.SCALED_WORKLOAD) for key in self.keys(kind)}

    def activator_addresses(self) -> tuple[str, ...]:
        """The inner address HOST:PORT of each activator process; empty if none is known."""
        return self.settings.activator_page_addresses or self.activators.addresses

    def confirm(self, route: Key, digest: str) -> set[WorkKey]:
        """Record that all activators serve a route with this digest; return the affected keys."""
        if route not in self._objects[kinds.ROUTE]:
            return set()
        self._confirmed[route] = digest
        return {(kinds.ROUTE, *route)}

    def judge(self, route: Key, judgements: Mapping[str, RolloutJudgement]) -> set[WorkKey]:
        """Store the verdicts on the revisions of a route's rollouts; return the affected keys."""
        before = self.judged.get(route, {})
        if route not in self._objects[kinds.ROUTE]:
            return set()
        self.judged[route] = judgements
        verdicts = {name: judgement.verdict for name, judgement in before.items()}
        return (
            set()
            if verdicts == {name: judgement.verdict for name, judgement in judgements.items()}
            else {(kinds.ROUTE, *route)}
        )

    def resolve(self, revision: Key, uid: str, resolution: Resolution) -> set[WorkKey]:
        """Store the registries' responses about a revision's images; return the affected keys."""
        if uid_of(self.get(kinds.REVISION, revision) or {}) != uid:
            return set()
        self._resolutions[revision] = (uid, resolution)
        return {(kinds.REVISION, *revision)}

    def resolution(self, revision: Key, uid: str) -> Resolution:
        """The registries' responses about a revision's images; pending before the first response."""
        known, resolution = self._resolutions.get(revision, ("", Resolution()))
        return resolution if known == uid else Resolution()

    def confirmed_digest(self, route: Key) -> str | None:
        """The digest that all activators last confirmed, "" before the first; None without activators."""
        return self._confirmed.get(route, "") if self.activator_addresses() else None

    def set_missing(self, kind: Kind, why: str) -> set[WorkKey]:
        """Store why the server does not serve a route kind ("" if it does); return the affected keys."""
        if why == self.missing.get(kind, ""):
            return set()
        self.missing[kind] = why
        return {*self.keys(kinds.ROUTE), *(self.keys(kinds.DOMAIN_MAPPING) if kind is kinds.CERTIFICATE else ())}

    def refuse(self, key: WorkKey, message: str) -> set[WorkKey]:
        """Record that the server refused an object of a resource's plan.

        This lasts until the resource's spec changes.
        """
        kind, namespace, name = key
        resource = self.get(kind, (namespace, name))
        if resource is None:
            return set()
        refusal = (nested(resource, "metadata", "generation"), message)
        is_known = self._refusals.get(key) == refusal
        self._refusals[key] = refusal
        return set() if is_known else {key}

    def refusal(self, key: WorkKey, resource: Object) -> str:
        """Why the server refused an object of a resource's plan; "" if it refused none."""
        generation, message = self._refusals.get(key, (None, ""))
        return message if generation == nested(resource, "metadata", "generation") else ""


def activator_pages(cache: ControllerCache) -> tuple[str, ...]:
    """The address HOST:PORT of each activator's metrics page; empty if none is known."""
    return cache.settings.activator_page_addresses or cache.activators.pages


def holder_of(cache: ControllerCache, namespace: str, host: str) -> str | None:
    """The object of another namespace that holds a host: a Route or a ClusterDomainClaim; None if there is none."""
    route = cache.indexes.claims.holder(host)
    if route is not None and route[0] != namespace:
        return f"Route {'/'.join(route)}"
    claim = cache.get(kinds.CLUSTER_DOMAIN_CLAIM, ("", host))
    owner = nested(claim, "spec", "namespace")
    return None if owner in (None, namespace) else f"namespace {owner}, by a ClusterDomainClaim"


def _order(resource: Object, version: str) -> int:
    """Compare versions: 1 if the object is newer, -1 if it is older or equal, 0 if either is not a number."""
    own = version_of(resource)
    if not (own.isdecimal() and version.isdecimal()):
        return 0
    return 1 if int(own) > int(version) else -1


def _is_known(resource: Object, known: Object) -> bool:
    """Whether ``resource`` is the known or an older state of the same object. A non-numeric version counts as newer."""
    if uid_of(resource) != uid_of(known):
        return False
    new, old = version_of(resource), version_of(known)
    return new.isdecimal() and old.isdecimal() and int(new) <= int(old)
