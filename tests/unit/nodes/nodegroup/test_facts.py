"""The facts of Nodes and Pods."""

from typing import Any

import pytest

from serving.core.model.quantity import Resources
from serving.nodes.nodegroup.facts import InitContainer, is_mirror_pod, node_of, pod_of, pod_request
from serving.nodes.nodegroup.records import Affinity, Amount, Expression, PodPhase, RemovalTaint
from tests.unit.nodes.nodegroup.objects import node_object, pod_object


def test_a_node_has_its_state_and_amounts() -> None:
    resource = node_object("a", tainted_at_s=7, annotations={"atlassian.com/no-delete": "because"})
    resource["metadata"]["creationTimestamp"] = "1970-01-02T00:00:00Z"
    node = node_of(resource)
    assert (node.name, node.created_at_s, node.labels) == ("a", 86400.0, {"customer": "shared"})
    assert node.allocatable == Amount(cpu_m=4000, memory_bytes=16 * 2**30)
    assert (node.removal_taint, node.is_protected, node.is_ready) == (RemovalTaint(at_s=7.0), True, True)
    assert (node.is_cordoned, node.is_force_tainted) == (False, False)


def test_a_bare_node_is_neither_ready_nor_protected() -> None:
    node = node_of({"metadata": {"name": "a", "annotations": {"atlassian.com/no-delete": ""}}})
    assert (node.is_ready, node.is_protected, node.removal_taint, node.allocatable) == (False, False, None, Amount())


def test_a_taint_without_a_time_is_a_taint() -> None:
    resource = node_object("a")
    resource["spec"]["taints"] = [
        {"key": "atlassian.com/escalator", "value": "soon"},
        {"key": "atlassian.com/escalator-force"},
    ]
    resource["spec"]["unschedulable"] = True
    node = node_of(resource)
    assert (node.removal_taint, node.is_force_tainted, node.is_cordoned) == (RemovalTaint(at_s=None), True, True)


def test_a_pod_has_its_request_and_its_place() -> None:
    pod = pod_of(pod_object("p", on="a"))
    assert (pod.name, pod.node_name, pod.phase, pod.is_scheduled) == ("default/p", "a", PodPhase.RUNNING, True)
    assert pod.request == Amount(cpu_m=1000, memory_bytes=2**30)
    assert (pod.placement.node_selector, pod.placement.affinity) == ({"customer": "shared"}, None)


def test_init_containers_sidecars_and_overhead_count() -> None:
    resource = pod_object("p")
    sidecar: dict[str, Any] = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    resource["spec"] |= {"initContainers": [sidecar], "overhead": {"cpu": "100m"}}
    assert pod_of(resource).request.cpu_m == 1600
    assert pod_of(resource).original_request == Amount(cpu_m=1100, memory_bytes=2**30)
    resource["spec"]["initContainers"] = [{"resources": {"requests": {"cpu": "500m"}}}]
    assert (pod_of(resource).request.cpu_m, pod_of(resource).original_request) == (1100, None)


def test_an_amount_that_cannot_be_read_is_none() -> None:
    assert pod_of(pod_object("p", cpu="much")).request == Amount(memory_bytes=2**30)


@pytest.mark.parametrize(
    ("kinds", "expected"), [([], None), (["ReplicaSet"], "ReplicaSet"), (["ReplicaSet", "DaemonSet"], "DaemonSet")]
)
def test_the_owner_is_a_daemon_set_if_any_is(kinds: list[str], expected: str | None) -> None:
    resource = pod_object("p")
    resource["metadata"]["ownerReferences"] = [{"kind": kind} for kind in kinds]
    assert pod_of(resource).placement.owner_kind == expected


def test_affinity_keeps_the_required_terms() -> None:
    resource = pod_object("p")
    term = {"matchExpressions": [{"key": "customer", "operator": "In", "values": ["shared"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    resource["spec"]["affinity"] = {"nodeAffinity": required, "podAntiAffinity": {}}
    expression = Expression(key="customer", operator="In", values=("shared",))
    assert pod_of(resource).placement.affinity == Affinity(
        required_node_terms=((expression,),), has_pod_anti_affinity=True
    )
    resource["spec"]["affinity"] = {}
    assert pod_of(resource).placement.affinity == Affinity()


def test_static_pods_are_mirrors() -> None:
    resource = pod_object("p")
    assert not is_mirror_pod(resource)
    resource["metadata"]["annotations"] = {"kubernetes.io/config.source": "file"}
    assert (is_mirror_pod(resource), pod_of(resource).placement.is_static) == (True, True)
    resource["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert (is_mirror_pod(resource), pod_of(resource).placement.is_static) == (True, False)


def cpu(cpu_m: int) -> Resources:
    return Resources(cpu_m=cpu_m)


def init(cpu_m: int, *, is_sidecar: bool = False) -> InitContainer:
    return InitContainer(request=cpu(cpu_m), is_sidecar=is_sidecar)


def test_containers_run_together_and_init_containers_one_by_one() -> None:
    assert pod_request([cpu(2000), cpu(1000)], [init(2000), init(2000)]).cpu_m == 3000


def test_a_large_init_container_decides() -> None:
    assert pod_request([cpu(500)], [init(900)]).cpu_m == 900


def test_what_is_not_set_counts_as_0_and_the_overhead_comes_on_top() -> None:
    amount = pod_request(
        [Resources(memory_bytes=100), Resources(cpu_m=200)], overhead=Resources(cpu_m=5, memory_bytes=5)
    )
    assert amount == Amount(cpu_m=205, memory_bytes=105)


def test_a_pod_without_containers_asks_for_nothing() -> None:
    assert pod_request([]) == Amount()


def test_a_sidecar_stays_beside_the_containers() -> None:
    init_containers = [init(500, is_sidecar=True), init(2000), init(2000)]
    assert pod_request([cpu(2000), cpu(1000)], init_containers).cpu_m == 3500


def test_an_init_container_runs_beside_earlier_sidecars_only() -> None:
    assert pod_request([cpu(100)], [init(500, is_sidecar=True), init(2000)]).cpu_m == 2500
    assert pod_request([cpu(100)], [init(2000), init(500, is_sidecar=True)]).cpu_m == 2000


def test_the_quirk_takes_a_sidecar_for_an_init_container() -> None:
    init_containers = [init(500, is_sidecar=True)]
    assert pod_request([cpu(3000)], init_containers, sidecars_count_as_init_containers=True).cpu_m == 3000
