"""One pass of a node group over 5,000 nodes and 50,000 pods: all new, and after 1 % changed.

The peer is the pass that gathers the group from all nodes and pods each time, as Escalator does.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from bench.parts.timing import Comparison, Row, kept_bytes
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.decide import decide, decide_on
from serving.nodes.nodegroup.facts import node_of, pod_of
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.records import CloudGroup, Failures, GroupNode, GroupPod, Snapshot

NODES, PODS = 5000, 50_000
CHANGED = 100
ALL_MAX_US, CHANGED_MAX_US = 250_000, 30_000
NOW_S = 1_700_000_000.0
CLOUD = CloudGroup(target_size=NODES, min_size=0, max_size=2 * NODES)
GROUP = NodeGroupSettings(
    name="shared",
    label_key="customer",
    label_value="shared",
    cloud_provider_group_name="asg",
    taint_lower_capacity_threshold_percent=10,
    taint_upper_capacity_threshold_percent=40,
    scale_up_threshold_percent=70,
    slow_node_removal_rate=2,
    fast_node_removal_rate=5,
    soft_delete_grace_period_s=60.0,
    hard_delete_grace_period_s=600.0,
    scale_up_cool_down_period_s=120.0,
    min_nodes=1,
    max_nodes=2 * NODES,
)


def node_object(number: int) -> dict[str, Any]:
    """A node of 16 cores."""
    return {
        "metadata": {
            "name": f"n{number}",
            "labels": {"customer": "shared"},
            "creationTimestamp": "2023-11-01T00:00:00Z",
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_object(number: int, cpu: str = "800m") -> dict[str, Any]:
    """A pod that runs: ten of them half fill a node."""
    requests = {"cpu": cpu, "memory": "1Gi"}
    return {
        "metadata": {"namespace": "default", "name": f"p{number}"},
        "spec": {
            "nodeName": f"n{number % NODES}",
            "nodeSelector": {"customer": "shared"},
            "containers": [{"resources": {"requests": requests}}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def filled(nodes: Iterable[GroupNode], pods: Iterable[GroupPod]) -> NodeGroupBook:
    """A book with one group."""
    book = NodeGroupBook()
    book.take_groups([GROUP])
    for node in nodes:
        book.take_node(node)
    for pod in pods:
        book.take_pod(pod)
    return book


def rows() -> Iterator[Comparison | Row]:
    """Passes over all nodes and pods: all of them new, 1 % changed, none changed."""
    node_objects, pod_objects = [node_object(one) for one in range(NODES)], [pod_object(one) for one in range(PODS)]
    nodes, pods = tuple(map(node_of, node_objects)), tuple(map(pod_of, pod_objects))
    state, turns = NodeGroupState(), itertools.count(1)

    book = filled(nodes, pods)

    def decided(known: NodeGroupBook) -> None:
        decide_on(state, known.facts("shared", CLOUD, Failures()), GROUP, now_s=NOW_S)

    def gathered() -> None:
        decide(state, Snapshot(nodes=nodes, pods=pods, cloud=CLOUD), GROUP, now_s=NOW_S)

    def little_changed() -> None:
        turn = next(turns)
        for number in range(PODS // CHANGED):
            book.take_pod(pod_of(pod_object(number * CHANGED, cpu=f"{700 + turn}m")))
        for number in range(NODES // CHANGED):
            book.take_node(node_of(node_object(number * CHANGED)))
        decided(book)

    name = f"nodegroup: {NODES} nodes, {PODS} pods"
    yield Comparison(
        name=f"{name}, all new", ours=lambda: decided(filled(nodes, pods)), peer=gathered, us_max=ALL_MAX_US
    )
    yield Comparison(name=f"{name}, 1 % changed", ours=little_changed, peer=gathered, us_max=CHANGED_MAX_US)
    yield Comparison(name=f"{name}, nothing changed", ours=lambda: decided(book), peer=gathered)
    yield kept_bytes(f"{name}, memory", lambda: filled(map(node_of, node_objects), map(pod_of, pod_objects)), 1)
