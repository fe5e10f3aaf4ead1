"""Whether a pending pod starves: the group has room for it in sum, and no node has.

Inputs: the group's pods, its untainted nodes and what is free on each; output: the names of the pods that starve. It
does not know whether the scheduler has other reasons to leave a pod pending. Source: atlassian/escalator 043bb1b,
pkg/k8s/util.go; what differs is behind quirks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from serving.nodegroup.records import Amount, GroupNode, GroupPod, PodPhase
from serving.settings.nodegroup_quirks import NodeGroupQuirks


def free_amounts(nodes: Iterable[GroupNode], pods: Iterable[GroupPod]) -> dict[str, Amount]:
    """What is left on each node: its allocatable minus the requests of pods scheduled to it that are not finished."""
    taken: dict[str, Amount] = defaultdict(Amount)
    for pod in pods:
        if pod.node_name is not None and pod.is_scheduled and pod.phase in {PodPhase.PENDING, PodPhase.RUNNING}:
            taken[pod.node_name] += pod.request
    return {node.name: node.allocatable - taken[node.name] for node in nodes}


def starving_pods(
    pods: Collection[GroupPod], *, free: Mapping[str, Amount], largest: Sequence[Amount], quirks: NodeGroupQuirks
) -> tuple[str, ...]:
    """Names of pending pods for which no untainted node has room, in the order of the input.

    ``free`` holds what is left on each untainted node, ``largest`` what whole nodes of the group offer, empty if that
    is not known. With 2000 m free on each of five nodes of 4000 m a pod of 2001 m starves and one of 2000 m does not;
    one of 4100 m will never fit, so it does not count unless the quirk says so.
    """
    pending = [pod for pod in pods if pod.phase is PodPhase.PENDING]
    if not quirks.starve_counts_bound_pods:
        pending = [pod for pod in pending if pod.node_name is None]
    if not quirks.starve_counts_impossible_pods and largest:
        pending = [pod for pod in pending if any(pod.request.fits_in(whole) for whole in largest)]
    rooms = list(free.values())
    if quirks.starve_compares_resources_apart:
        rooms = [
            Amount(
                cpu_m=max((room.cpu_m for room in rooms), default=0),
                memory_bytes=max((room.memory_bytes for room in rooms), default=0),
            )
        ]
    # A pod that asks for nothing fits everywhere; an overcommitted node has no room, not a negative one.
    rooms = [Amount(cpu_m=max(0, room.cpu_m), memory_bytes=max(0, room.memory_bytes)) for room in (*rooms, Amount())]
    fits = {request: any(request.fits_in(room) for room in rooms) for request in {pod.request for pod in pending}}
    return tuple(pod.name for pod in pending if not fits[pod.request])
