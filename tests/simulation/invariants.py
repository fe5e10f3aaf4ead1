"""The invariants after each write, and those at rest."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from serving.core.model.knative import AUTOSCALING_GROUP, REVISION_LABEL
from serving.core.model.objects import Object, annotations_of, condition_of, labels_of, name_of, nested, uid_of
from serving.core.settings.activator import ActivatorSettings
from serving.net.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD, REVISION, SERVING_SERVICE, Kind
from serving.net.cluster.port import EventType
from tests.simulation.world import PODS_PER_NODE, World

_SERVICE_NAME = "kubernetes.io/service-name"
_MAX = f"{AUTOSCALING_GROUP}/max-scale"
_WATCHED = (SERVING_SERVICE, REVISION, DEPLOYMENT, POD)
# A request waits for queue_wait_max_s at most, and runs for some seconds.
_REQUEST_MAX_S = ActivatorSettings().queue_wait_max_s + 30.0


async def watched(world: World, fault: Callable[[str], None]) -> None:
    """Check each write of the watched kinds until cancelled."""
    async with asyncio.TaskGroup() as group:
        for kind in _WATCHED:
            group.create_task(_watch(world, kind, fault))


async def _watch(world: World, kind: Kind, fault: Callable[[str], None]) -> None:
    before: dict[str, Object] = {}
    listing = await world.store.list(kind)
    async with world.store.watch(kind, resource_version=listing.resource_version) as events:
        async for event in events:
            if event.type is EventType.BOOKMARK:
                continue
            uid = uid_of(event.object)
            known = before.get(uid)
            before[uid] = event.object
            if event.type is EventType.DELETED:
                del before[uid]
            results = list(write_faults(kind, known, event.object))
            if kind is POD and node_of(event.object) and not node_of(known):
                results += placement_faults(before.values(), node_of(event.object))
            for text in results:
                world.report(f"FAULT {text}")
                fault(text)


def node_of(pod: Object | None) -> str:
    """The node of a pod; "" before it is bound."""
    return nested(pod or {}, "spec", "nodeName") or ""


def placement_faults(pods: Iterable[Object], node: str) -> Iterator[str]:
    """Whether a node has room for all its pods after a new one; ``pods`` are all pods."""
    count = sum(node_of(pod) == node for pod in pods)
    if count > PODS_PER_NODE:
        yield f"{count} pods on {node}"


def write_faults(kind: Kind, before: Object | None, after: Object) -> Iterator[str]:
    """The problems of a write: the object before, None for a new one, and after."""
    name = f"{kind.name} {name_of(after)}"
    generation, observed = nested(after, "metadata", "generation") or 0, nested(after, "status", "observedGeneration")
    if observed is not None and observed > generation:
        yield f"{name} observed generation {observed} of {generation}"
    if before is not None:
        if (nested(before, "metadata", "generation") or 0) > generation:
            yield f"{name} lost a generation"
        if (nested(before, "status", "observedGeneration") or 0) > (observed or 0):
            yield f"{name} forgot an observed generation"
    if kind is POD:
        if not any(
            owner_reference.get("controller") for owner_reference in nested(after, "metadata", "ownerReferences") or ()
        ):
            yield f"{name} has no owner"
        if node_of(before) not in {"", node_of(after)}:
            yield f"{name} moved from {node_of(before)} to {node_of(after)}"
    if kind is DEPLOYMENT:
        limit = int(annotations_of(after).get(_MAX) or _template_max(after) or 0)
        replicas = nested(after, "spec", "replicas") or 0
        if limit and replicas > limit:
            yield f"{name} has {replicas} replicas, at most {limit} are allowed"


def _template_max(deployment: Object) -> str:
    """max-scale as the template of a Deployment has it."""
    return annotations_of(nested(deployment, "spec", "template") or {}).get(_MAX, "")


async def at_rest(world: World) -> list[str]:
    """The differences from the users' last requested state."""
    services = {name_of(service): service for service in (await world.store.list(SERVING_SERVICE)).items}
    revisions = {name_of(revision): revision for revision in (await world.store.list(REVISION)).items}
    deployments = {name_of(deployment): deployment for deployment in (await world.store.list(DEPLOYMENT)).items}
    pods = (await world.store.list(POD)).items
    slices = (await world.store.list(ENDPOINT_SLICE)).items
    results = [*_services(services), *_pods(pods, revisions, deployments), *_scales(revisions, deployments, pods)]
    results += [*_slices(slices, revisions, pods), *_leaders(world)]
    results += [f"{request} was forgotten" for request in world.requests if not request.outcome]
    late = [
        request for request in world.requests if request.outcome and request.ended_s - request.at_s > _REQUEST_MAX_S
    ]
    return [*results, *(f"{request} ended after {request.ended_s - request.at_s:.0f} s" for request in late)]


def _services(services: Mapping[str, Object]) -> Iterator[str]:
    for name, service in services.items():
        status = service.get("status") or {}
        if status.get("observedGeneration") != nested(service, "metadata", "generation"):
            yield f"Service {name} has not observed its generation"
        ready = condition_of(service, "Ready")
        if ready.get("status") != "True":
            yield f"Service {name} is not ready: {ready}"
        if status.get("latestReadyRevisionName") != status.get("latestCreatedRevisionName"):
            yield f"Service {name}: {status.get('latestReadyRevisionName')} is not the latest revision"
        targets = status.get("traffic") or []
        if [target.get("revisionName") for target in targets] != [status.get("latestReadyRevisionName")]:
            yield f"Service {name} sends its traffic to {targets}"


def _pods(pods: list[Object], revisions: Mapping[str, Object], deployments: Mapping[str, Object]) -> Iterator[str]:
    owners = {uid_of(deployment) for deployment in deployments.values()}
    for pod in pods:
        revision = labels_of(pod).get(REVISION_LABEL)
        if revision not in revisions:
            yield f"Pod {name_of(pod)} has no revision"
        if not owners & {
            owner_reference["uid"] for owner_reference in nested(pod, "metadata", "ownerReferences") or ()
        }:
            yield f"Pod {name_of(pod)} has no Deployment"
        if not node_of(pod):
            yield f"Pod {name_of(pod)} has no node"


def _slices(slices: list[Object], revisions: Mapping[str, Object], pods: list[Object]) -> Iterator[str]:
    """The slice that activators follow has the addresses of all pods."""
    for name in revisions:
        lines = {
            address
            for slice_ in slices
            if labels_of(slice_).get(_SERVICE_NAME) == f"{name}-private"
            for endpoint in slice_.get("endpoints") or ()
            for address in endpoint["addresses"]
        }
        there = {nested(pod, "status", "podIP") for pod in pods if labels_of(pod).get(REVISION_LABEL) == name}
        if lines != there:
            yield f"Revision {name} has the endpoints {sorted(lines)}, its pods {sorted(map(str, there))}"


def _leaders(world: World) -> Iterator[str]:
    leading = [name for name, leader in world.leaders.items() if leader.is_leading]
    if len(leading) != 1:
        yield f"{leading or 'nobody'} leads"


def _scales(revisions: Mapping[str, Object], deployments: Mapping[str, Object], pods: list[Object]) -> Iterator[str]:
    for name, revision in revisions.items():
        deployment = deployments.get(f"{name}-deployment")
        if deployment is None:
            yield f"Revision {name} has no Deployment"
            continue
        replicas = nested(deployment, "spec", "replicas") or 0
        own = [pod for pod in pods if labels_of(pod).get(REVISION_LABEL) == name]
        if len(own) != replicas:
            yield f"Revision {name} has {len(own)} pods, its Deployment asks for {replicas}"
        is_routed = labels_of(revision).get("serving.knative.dev/routingState") == "active"
        wanted = int(annotations_of(revision).get(f"{AUTOSCALING_GROUP}/min-scale") or 0) if is_routed else 0
        if replicas != wanted:
            yield f"Revision {name} has a scale of {replicas} without a request, {wanted} is wanted"
