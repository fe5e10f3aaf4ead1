"""The snapshot after effects, for simulators and dry runs.

Input: a snapshot and effects; output: the snapshot with taints set and taken, nodes and the pods on them gone, and the
cloud's target moved. Machines that the cloud was asked for are not nodes yet: who simulates the cloud adds them.
"""

from collections.abc import Iterable

import msgspec

from serving.nodes.nodegroup.plan import DeleteNodes, Drain, Effect, IncreaseSize, Taint
from serving.nodes.nodegroup.records import PodPhase, RemovalTaint, Snapshot


def carried_out(snapshot: Snapshot, effects: Iterable[Effect]) -> Snapshot:
    """The snapshot after all effects. Drained pods are pending again."""
    for effect in effects:
        snapshot = _after(snapshot, effect)
    return snapshot


def _after(snapshot: Snapshot, effect: Effect) -> Snapshot:
    if isinstance(effect, IncreaseSize):
        return _with_target(snapshot, effect.count)
    if isinstance(effect, DeleteNodes):
        gone = set(effect.node_names)
        smaller = msgspec.structs.replace(
            snapshot,
            nodes=tuple(node for node in snapshot.nodes if node.name not in gone),
            pods=tuple(pod for pod in snapshot.pods if pod.node_name not in gone),
        )
        return _with_target(smaller, -len(gone))
    if isinstance(effect, Drain):
        pods = tuple(
            msgspec.structs.replace(pod, node_name=None, is_scheduled=False, phase=PodPhase.PENDING)
            if pod.node_name == effect.node_name
            else pod
            for pod in snapshot.pods
        )
        return msgspec.structs.replace(snapshot, pods=pods)
    taint = RemovalTaint(at_s=effect.at_s) if isinstance(effect, Taint) else None
    nodes = tuple(
        msgspec.structs.replace(node, removal_taint=taint) if node.name == effect.node_name else node
        for node in snapshot.nodes
    )
    return msgspec.structs.replace(snapshot, nodes=nodes)


def _with_target(snapshot: Snapshot, change: int) -> Snapshot:
    cloud = msgspec.structs.replace(snapshot.cloud, target_size=snapshot.cloud.target_size + change)
    return msgspec.structs.replace(snapshot, cloud=cloud)
