"""Which resources belong to which, and name which: what of the objects is asked for again and again, kept as indexes.

Pure bookkeeping: ``put`` takes each object as it was and as it is now, the rest reads. Names are of one namespace, that of the
key that is asked for.
"""

from collections import defaultdict
from collections.abc import Collection

from serving.controller.hosts import Key
from serving.controller.httproutes import httproute_owner_name
from serving.controller.routing import revisions_named_by
from serving.controller.writes import ResourceKind
from serving.model.knative import CONFIGURATION_LABEL, REVISION_LABEL, ROUTE_LABEL
from serving.model.objects import Object, labels_of, nested

__all__ = ["Relations", "configurations_named", "owners_of", "revisions_named"]

_Index = defaultdict[Key, set[str]]


class Relations:
    """Names by the key of who they belong to, or who they name."""

    def __init__(self) -> None:
        self._revisions: _Index = defaultdict(set)
        self._pods: _Index = defaultdict(set)
        self._httproutes: _Index = defaultdict(set)
        self._services: _Index = defaultdict(set)
        # Routes by what they name: a configuration, a revision.
        self._routes_to_configuration: _Index = defaultdict(set)
        self._routes_to_revision: _Index = defaultdict(set)

    def __repr__(self) -> str:
        return f"Relations({len(self._revisions)} configurations with revisions, {len(self._pods)} revisions with pods)"

    def put(self, resource: ResourceKind, key: Key, *, before: Object | None, after: Object | None) -> None:
        """An object was this, and is that now; None where there is none."""
        match resource:
            case ResourceKind.REVISION:
                _move(
                    self._revisions,
                    key,
                    before=owners_of(before, CONFIGURATION_LABEL),
                    after=owners_of(after, CONFIGURATION_LABEL),
                )
            case ResourceKind.POD:
                _move(self._pods, key, before=owners_of(before, REVISION_LABEL), after=owners_of(after, REVISION_LABEL))
            case ResourceKind.HTTP_ROUTE:
                owner = {httproute_owner_name(key[1])}
                _move(self._httproutes, key, before=owner if before else set(), after=owner if after else set())
            case ResourceKind.CORE_SERVICE:
                _move(self._services, key, before=owners_of(before, ROUTE_LABEL), after=owners_of(after, ROUTE_LABEL))
            case ResourceKind.ROUTE:
                before_names, after_names = configurations_named(before), configurations_named(after)
                _move(self._routes_to_configuration, key, before=before_names, after=after_names)
                _move(self._routes_to_revision, key, before=revisions_named(before), after=revisions_named(after))
            case _:
                pass

    def revisions_of(self, configuration: Key) -> Collection[str]:
        """By its label."""
        return self._revisions.get(configuration, ())

    def pods_of(self, revision: Key) -> Collection[str]:
        """By its label."""
        return self._pods.get(revision, ())

    def httproutes_of(self, route: Key) -> Collection[str]:
        """By the names that a route's have, whoever made them."""
        return self._httproutes.get(route, ())

    def services_of(self, route: Key) -> Collection[str]:
        """Core Services by the label that names their route, whoever made them."""
        return self._services.get(route, ())

    def routes_to_configuration(self, configuration: Key) -> Collection[str]:
        """Routes whose traffic names it."""
        return self._routes_to_configuration.get(configuration, ())

    def routes_to_revision(self, revision: Key) -> Collection[str]:
        """Routes that name it, in their spec or status."""
        return self._routes_to_revision.get(revision, ())


def owners_of(one: Object | None, label: str) -> set[str]:
    """Whom an object belongs to by a label: one name, or none."""
    name = labels_of(one).get(label) if one else None
    return {name} if name else set()


def configurations_named(route: Object | None) -> set[str]:
    """By the traffic of a route's spec."""
    targets = nested(route, "spec", "traffic") or ()
    return {target["configurationName"] for target in targets if target.get("configurationName")}


def revisions_named(route: Object | None) -> set[str]:
    """By a route."""
    return set(revisions_named_by(route)) if route else set()


def _move(index: _Index, key: Key, *, before: set[str], after: set[str]) -> None:
    namespace, name = key
    for parent in before - after:
        index[namespace, parent].discard(name)
        if not index[namespace, parent]:
            del index[namespace, parent]
    for parent in after - before:
        index[namespace, parent].add(name)
