"""The facts of a NodeGroupBook equal the facts gathered from a snapshot."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.records import (
    Amount,
    CloudGroup,
    Failures,
    GroupNode,
    GroupPod,
    OthersUsage,
    Placement,
    PodPhase,
)
from serving.nodes.nodegroup.rules import free_amounts
from serving.nodes.nodegroup.states import NodeState, state_of
from tests.unit.nodes.nodegroup.builders import PLACED, SETTINGS, node, pod, quirky, settings
from tests.unit.nodes.nodegroup.outcome import Snapshot, gathered

CLOUD = CloudGroup(target_size=3, min_size=0, max_size=9)
PLACEMENTS = (PLACED, Placement(), Placement(owner_kind="DaemonSet"), Placement(is_static=True))
GROUPS = (
    SETTINGS,
    settings(name="default", label_value="other", anticipation=True),
    msgspec.structs.replace(quirky("foreign_pods_do_not_protect"), name="quirky"),
    msgspec.structs.replace(quirky("sidecars_count_as_init_containers"), name="original"),
)
LOST = msgspec.structs.replace(pod(1), node_name="n000", phase=PodPhase.UNKNOWN, is_scheduled=True)
OUTSIDE = msgspec.structs.replace(LOST, name="p0", phase=PodPhase.RUNNING, placement=Placement())

node_changes = st.builds(
    lambda number, label: node(number, labels={"customer": label}),
    st.integers(0, 3),
    st.sampled_from(("shared", "other")),
)
pod_changes = st.builds(
    lambda number, on, cpu_m, phase, placement: msgspec.structs.replace(
        pod(cpu_m),
        name=f"p{number}",
        node_name=on,
        phase=phase,
        placement=placement,
        is_scheduled=on is not None,
        is_anticipated=number == 3,
        original_request=Amount(cpu_m=cpu_m // 2) if number == 2 else None,
    ),
    st.integers(0, 3),
    st.sampled_from((None, "n000", "n001")),
    st.integers(0, 2),
    st.sampled_from(list(PodPhase)),
    st.sampled_from(PLACEMENTS),
)
changes = st.lists(st.one_of(node_changes, pod_changes, st.sampled_from(("n000", "n001", "p0", "p1"))))


def apply(book: NodeGroupBook, change: GroupNode | GroupPod | str) -> None:
    match change:
        case GroupNode():
            book.set_node(change)
        case GroupPod():
            book.set_pod(change)
        case _ if change.startswith("n"):
            book.drop_node(change)
        case _:
            book.drop_pod(change)


def compare(book: NodeGroupBook, group_changes: list[GroupNode | GroupPod | str], group: NodeGroupSettings) -> None:
    nodes: dict[str, GroupNode] = {}
    pods: dict[str, GroupPod] = {}
    for change in group_changes:
        match change:
            case GroupNode():
                nodes[change.name] = change
            case GroupPod():
                pods[change.name] = change
            case _:
                nodes.pop(change, None)
                pods.pop(change, None)
    whole = Snapshot(nodes=tuple(nodes.values()), pods=tuple(pods.values()), cloud=CLOUD)
    wanted, group_facts = gathered(whole, group), book.facts(group.name, CLOUD, Failures())
    assert {group_node.name: group_node for group_node in group_facts.nodes} == {
        group_node.name: group_node for group_node in wanted.nodes
    }
    assert {group_pod.name: group_pod for group_pod in group_facts.pods} == {
        group_pod.name: group_pod for group_pod in wanted.pods
    }
    assert group_facts.anticipated_count == wanted.anticipated_count
    untainted = [group_node for group_node in wanted.nodes if state_of(group_node) is NodeState.UNTAINTED]
    free = free_amounts(untainted, wanted.pods, wanted.others_taken).values()
    assert group_facts.others_taken == {
        name: usage for name, usage in wanted.others_taken.items() if usage != OthersUsage()
    }
    assert book.extremes(group.name).free_cpu.cpu_m == max((amount.cpu_m for amount in free), default=0)
    waiting = [
        group_pod for group_pod in wanted.pods if group_pod.phase is PodPhase.PENDING and not group_pod.node_name
    ]
    most = max((group_pod.request.cpu_m for group_pod in waiting if not group_pod.is_anticipated), default=0)
    assert book.extremes(group.name).pending_cpu.cpu_m == most
    assert (dict(group_facts.pod_counts), group_facts.request, group_facts.cloud) == (
        dict(wanted.pod_counts),
        wanted.request,
        CLOUD,
    )


@given(changes, st.integers(0, 20))
@example([node(0), LOST], 0)
@example([node(0), OUTSIDE, msgspec.structs.replace(OUTSIDE, node_name="n001"), "p0", "n000"], 0)
def test_book_facts_equal_facts_gathered_from_snapshot(
    group_changes: list[GroupNode | GroupPod | str], late: int
) -> None:
    book = NodeGroupBook()
    for index, change in enumerate(group_changes):
        if index == late:
            book.set_groups(GROUPS)
        apply(book, change)
    book.set_groups(GROUPS)
    for group in GROUPS:
        compare(book, group_changes, group)


def test_changed_group_label_reassigns_nodes() -> None:
    book = NodeGroupBook()
    book.set_node(node(0))
    book.set_groups([SETTINGS])
    assert [group_node.name for group_node in book.facts("shared", CLOUD, Failures()).nodes] == ["n000"]
    book.set_groups([SETTINGS])
    assert len(book.facts("shared", CLOUD, Failures()).nodes) == 1
    book.set_groups([settings(label_value="other")])
    assert len(book.facts("shared", CLOUD, Failures()).nodes) == 0


def test_sidecar_quirk_changes_requests_of_its_own_group_only() -> None:
    book = NodeGroupBook()
    book.set_groups(GROUPS)
    book.set_pod(msgspec.structs.replace(pod(1500), original_request=Amount(cpu_m=1000)))
    counted = {
        node_group_settings.name: book.facts(node_group_settings.name, CLOUD, Failures()).request.cpu_m
        for node_group_settings in (GROUPS[0], GROUPS[3])
    }
    assert counted == {"shared": 1500, "original": 1000}
    book.drop_pod(pod(1500).name)
    assert book.facts("original", CLOUD, Failures()).request == Amount()
