"""Indexes of ownership and references between resources.

``put`` takes each object before and after a change; the other methods read. Returned names are in the namespace of the key.
"""

from collections import defaultdict
from collections.abc import Collection

from serving.cluster import kinds
from serving.cluster.kinds import Kind
from serving.controller.routes.httproutes import httproute_owner_name
from serving.controller.values.naming import revisions_named_by
from serving.model.knative import CONFIGURATION_LABEL, REVISION_LABEL, ROUTE_LABEL
from serving.model.objects import Key, Object, labels_of, nested

_Index = defaultdict[Key, set[str]]


class Relations:
    """Names of owned or referencing objects, by key."""

    def __init__(self) -> None:
        self._revisions: _Index = defaultdict(set)
        self._pods: _Index = defaultdict(set)
        self._httproutes: _Index = defaultdict(set)
        self._services: _Index = defaultdict(set)
        # Routes by what they reference: a configuration, a revision.
        self._routes_to_configuration: _Index = defaultdict(set)
        self._routes_to_revision: _Index = defaultdict(set)

    def put(self, kind: Kind, key: Key, *, before: Object | None, after: Object | None) -> None:
        """Take an object before and after a change; None where it does not exist."""
        match kind:
            case kinds.REVISION:
                _move(
                    self._revisions,
                    key,
                    before=owners_of(before, CONFIGURATION_LABEL),
                    after=owners_of(after, CONFIGURATION_LABEL),
                )
            case kinds.POD:
                _move(self._pods, key, before=owners_of(before, REVISION_LABEL), after=owners_of(after, REVISION_LABEL))
            case kinds.HTTP_ROUTE:
                owner = {httproute_owner_name(key[1])}
                _move(self._httproutes, key, before=owner if before else set(), after=owner if after else set())
            case kinds.SERVICE:
                _move(self._services, key, before=owners_of(before, ROUTE_LABEL), after=owners_of(after, ROUTE_LABEL))
            case kinds.ROUTE:
                before_names, after_names = configurations_named(before), configurations_named(after)
                _move(self._routes_to_configuration, key, before=before_names, after=after_names)
                _move(self._routes_to_revision, key, before=revisions_named(before), after=revisions_named(after))
            case _:
                pass

    def revisions_of(self, configuration: Key) -> Collection[str]:
        """The revisions of a configuration, by label."""
        return self._revisions.get(configuration, ())

    def pods_of(self, revision: Key) -> Collection[str]:
        """Pods of a revision, by label."""
        return self._pods.get(revision, ())

    def httproutes_of(self, route: Key) -> Collection[str]:
        """HTTPRoutes with a name of the route, whichever their owner."""
        return self._httproutes.get(route, ())

    def services_of(self, route: Key) -> Collection[str]:
        """Core Services by the label that names their route, whichever their owner."""
        return self._services.get(route, ())

    def routes_to_configuration(self, configuration: Key) -> Collection[str]:
        """Routes whose traffic references the configuration."""
        return self._routes_to_configuration.get(configuration, ())

    def routes_to_revision(self, revision: Key) -> Collection[str]:
        """Routes that reference the revision in their spec or status."""
        return self._routes_to_revision.get(revision, ())


def owners_of(one: Object | None, label: str) -> set[str]:
    """The owner of an object by a label: one name, or none."""
    name = labels_of(one).get(label) if one else None
    return {name} if name else set()


def configurations_named(route: Object | None) -> set[str]:
    """Configurations that the traffic of a route's spec references."""
    targets = nested(route, "spec", "traffic") or ()
    return {target["configurationName"] for target in targets if target.get("configurationName")}


def revisions_named(route: Object | None) -> set[str]:
    """Revisions that a route references."""
    return set(revisions_named_by(route)) if route else set()


def _move(index: _Index, key: Key, *, before: set[str], after: set[str]) -> None:
    namespace, name = key
    for parent in before - after:
        index[namespace, parent].discard(name)
        if not index[namespace, parent]:
            del index[namespace, parent]
    for parent in after - before:
        index[namespace, parent].add(name)
