"""Pods for which the group has room in sum and no node has."""

from serving.nodegroup.records import Amount, GroupNode, GroupPod, PodPhase
from serving.nodegroup.starve import free_amounts, starving_pods
from serving.settings.nodegroup_quirks import NodeGroupQuirks
from tests.unit.nodegroup.builders import GIB, NODE_AMOUNT, node, nodes, pod

GROUP = nodes(2)
HALF_FULL = tuple(pod(2000, on=one) for one in GROUP)


def starving(*pods: GroupPod, largest: tuple[Amount, ...] = (NODE_AMOUNT,), **quirks: bool) -> tuple[str, ...]:
    everything = (*HALF_FULL, *pods)
    free = free_amounts(GROUP, everything)
    return starving_pods(everything, free=free, largest=largest, quirks=NodeGroupQuirks(**quirks))


def waiting(
    cpu_m: int, *, on: GroupNode | None = None, memory_bytes: int = GIB, phase: PodPhase = PodPhase.PENDING
) -> GroupPod:
    return pod(cpu_m, name="waiting", on=on, memory_bytes=memory_bytes, phase=phase)


def test_free_is_what_scheduled_pods_leave() -> None:
    one = node(0)
    pods = (
        pod(1000, on=one),
        pod(500, on=one, phase=PodPhase.PENDING),
        pod(300, on=one, is_scheduled=False),
        pod(200, on=one, phase=PodPhase.UNKNOWN),
        pod(100),
    )
    assert free_amounts([one], pods) == {"n000": Amount(cpu_m=2500, memory_bytes=14 * GIB)}


def test_a_pod_that_fits_exactly_does_not_starve() -> None:
    assert starving(waiting(2000)) == ()
    assert starving(waiting(2001)) == ("waiting",)


def test_memory_starves_too() -> None:
    assert starving(waiting(1, memory_bytes=15 * GIB + 1)) == ("waiting",)


def test_a_pod_larger_than_any_node_does_not_count() -> None:
    assert starving(waiting(4100)) == ()
    assert starving(waiting(4100), starve_counts_impossible_pods=True) == ("waiting",)


def test_where_no_node_is_known_nothing_is_impossible() -> None:
    assert starving(waiting(4100), largest=()) == ("waiting",)


def test_a_pod_that_has_its_node_does_not_count() -> None:
    starting = waiting(2000, on=GROUP[0], phase=PodPhase.PENDING)
    other = pod(2000, on=GROUP[1])
    assert starving(starting, other) == ()
    assert starving(starting, other, starve_counts_bound_pods=True) == ("waiting",)


def test_cpu_on_one_node_and_memory_on_another_are_no_room() -> None:
    split = (pod(1000, on=GROUP[0], memory_bytes=14 * GIB), pod(2000, on=GROUP[1], memory_bytes=GIB))
    asking = waiting(500, memory_bytes=10 * GIB)
    assert starving(*split, asking) == ("waiting",)
    assert starving(*split, asking, starve_compares_resources_apart=True) == ()


def test_a_pod_that_asks_for_nothing_fits_on_an_overcommitted_node() -> None:
    overcommitted = tuple(pod(3000, on=one) for one in GROUP)
    assert starving(*overcommitted, waiting(0, memory_bytes=0)) == ()


def test_without_an_untainted_node_every_pending_pod_starves() -> None:
    quirks = NodeGroupQuirks(starve_compares_resources_apart=True)
    assert starving_pods([waiting(1)], free={}, largest=(), quirks=quirks) == ("waiting",)
    assert starving_pods([waiting(1)], free={}, largest=(), quirks=NodeGroupQuirks()) == ("waiting",)
