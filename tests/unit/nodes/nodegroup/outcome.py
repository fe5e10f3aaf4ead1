"""Decides on a snapshot of the cluster, and applies the effects to it.

Requested machines are not nodes yet: a simulation of the cloud adds them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.decide import decide as decide_on
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.plan import DeleteNodes, Drain, Effect, GroupPlan, IncreaseSize, Taint
from serving.nodes.nodegroup.records import (
    Amount,
    CloudGroup,
    Failures,
    GroupFacts,
    GroupNode,
    GroupPod,
    OthersUsage,
    PodPhase,
    RemovalTaint,
)
from serving.nodes.nodegroup.states import node_belongs
from serving.nodes.nodegroup.view import PodRole, as_counted, others_usage, pod_role


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of one pass.

    It may contain nodes and pods of the whole cluster: the pass selects those of its group, and uses the other pods
    to determine which nodes are empty. Pods of DaemonSets may be included.
    """

    nodes: tuple[GroupNode, ...]
    pods: tuple[GroupPod, ...]
    cloud: CloudGroup
    failures: Failures = Failures()


def gathered(snapshot: Snapshot, settings: NodeGroupSettings) -> GroupFacts:
    """The group's nodes and pods, selected from a snapshot of the cluster."""
    own: list[GroupPod] = []
    pod_counts: Counter[str] = Counter()
    others_taken: dict[str, OthersUsage] = defaultdict(OthersUsage)
    for pod in snapshot.pods:
        role = pod_role(pod, settings)
        if role is PodRole.OWN:
            own.append(as_counted(pod, settings))
        elif pod.node_name is not None and (usage := others_usage(pod, settings)) is not None:
            others_taken[pod.node_name] += usage
        if role is not None and pod.node_name is not None:
            pod_counts[pod.node_name] += 1
    return GroupFacts(
        nodes=[
            node
            for node in snapshot.nodes
            if node_belongs(node.labels, label_key=settings.label_key, label_value=settings.label_value)
        ],
        pods=tuple(own),
        pod_counts=pod_counts,
        request=sum((pod.request for pod in own), start=Amount()),
        anticipated_count=sum(pod.is_anticipated for pod in own),
        others_taken=others_taken,
        cloud=snapshot.cloud,
        failures=snapshot.failures,
    )


def decide(
    state: NodeGroupState, snapshot: Snapshot, settings: NodeGroupSettings, *, now_s: float
) -> tuple[NodeGroupState, GroupPlan]:
    return decide_on(state, gathered(snapshot, settings), settings, now_s=now_s)


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
