"""The effect of applied Ingresses and HTTPRoutes on this machine, for the output of ``serving apply``."""

import time
from collections.abc import Iterable, Iterator

from serving.core.model.objects import Object, name_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.home.controllers.ingressrules import Routing, routing_of
from serving.net.cluster.kinds import DEPLOYMENT, HTTP_ROUTE, INGRESS, SCALED_WORKLOAD, SERVICE
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.objects import items_of

# The controller needs milliseconds.
_WITHIN_S, _PAUSE_S = 3.0, 0.05
_ROUTES = (INGRESS, HTTP_ROUTE)


def routing_lines(api: ApiClient, routes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each Deployment behind a namespace's routes, by kind and name, and for each part without effect."""
    chosen = set(routes)
    present = [route for kind in _ROUTES for route in items_of(api, kind)]
    # The domain is in the objects that the controller writes.
    routing = routing_of(present, items_of(api, SERVICE), items_of(api, DEPLOYMENT), domain="localhost")
    workloads = _written(api, routing)
    for name, routed in routing.deployments.items():
        own = [route for route in routed.routes if _key(route) in chosen]
        if own and name in workloads:
            yield f"{_shown(own[0])}: {_described(workloads[name])}"
    for note in routing.notes:
        if _key(note.route) in chosen:
            yield f"{_shown(note.route)}: {note.text}"


def _written(api: ApiClient, routing: Routing) -> dict[str, Object]:
    """The ScaledWorkloads by target, once all of them exist."""
    deadline_s = time.monotonic() + _WITHIN_S
    while True:
        workloads = {
            nested(workload, "spec", "target", "name"): workload for workload in items_of(api, SCALED_WORKLOAD)
        }
        if routing.deployments.keys() <= workloads.keys() or time.monotonic() > deadline_s:
            return workloads
        time.sleep(_PAUSE_S)


def _described(workload: Object) -> str:
    spec = ScaledWorkloadSpec.from_object(workload)
    hosts = dict.fromkeys(host for rule in spec.routing for host in rule.hosts)
    served = f"requests for {', '.join(hosts)} go to deployment/{spec.target.name}"
    return f"{served}, which goes to zero without them (scaledworkload/{name_of(workload)})"


def _key(route: Object) -> tuple[str, str]:
    return str(route["kind"]), name_of(route)


def _shown(route: Object) -> str:
    return f"{str(route['kind']).lower()}/{name_of(route)}"
