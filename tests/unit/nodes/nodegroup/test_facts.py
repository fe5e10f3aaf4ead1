"""Facts read from Nodes and Pods."""

from typing import Any

import pytest

from serving.core.model.quantity import Resources
from serving.nodes.nodegroup.facts import InitContainer, is_mirror_pod, node_of, pod_of, pod_request
from serving.nodes.nodegroup.records import Affinity, Amount, Expression, PodPhase, RemovalTaint
from tests.unit.nodes.nodegroup.objects import node_object, pod_object


def test_node_facts_have_state_and_allocatable() -> None:
    resource = node_object("a", tainted_at_s=7, annotations={"atlassian.com/no-delete": "because"})
    resource["metadata"]["creationTimestamp"] = "1970-01-02T00:00:00Z"
    node = node_of(resource)
    assert (node.name, node.created_at_s, node.labels) == ("a", 86400.0, {"customer": "shared"})
    assert node.allocatable == Amount(cpu_m=4000, memory_bytes=16 * 2**30)
    assert (node.removal_taint, node.is_protected, node.is_ready) == (RemovalTaint(at_s=7.0), True, True)
    assert (node.is_cordoned, node.is_force_tainted) == (False, False)


def test_bare_node_is_neither_ready_nor_protected() -> None:
    node = node_of({"metadata": {"name": "a", "annotations": {"atlassian.com/no-delete": ""}}})
    assert (node.is_ready, node.is_protected, node.removal_taint, node.allocatable) == (False, False, None, Amount())


def test_taint_without_timestamp_is_read_as_removal_taint() -> None:
    resource = node_object("a")
    resource["spec"]["taints"] = [
        {"key": "atlassian.com/escalator", "value": "soon"},
        {"key": "atlassian.com/escalator-force"},
    ]
    resource["spec"]["unschedulable"] = True
    node = node_of(resource)
    assert (node.removal_taint, node.is_force_tainted, node.is_cordoned) == (RemovalTaint(at_s=None), True, True)


def test_pod_facts_have_request_and_placement() -> None:
    pod = pod_of(pod_object("p", on="a"))
    assert (pod.name, pod.node_name, pod.phase, pod.is_scheduled) == ("default/p", "a", PodPhase.RUNNING, True)
    assert pod.request == Amount(cpu_m=1000, memory_bytes=2**30)
    assert (pod.placement.node_selector, pod.placement.affinity) == ({"customer": "shared"}, None)


def test_pod_request_includes_sidecars_and_overhead() -> None:
    resource = pod_object("p")
    sidecar: dict[str, Any] = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    resource["spec"] |= {"initContainers": [sidecar], "overhead": {"cpu": "100m"}}
    assert pod_of(resource).request.cpu_m == 1600
    assert pod_of(resource).original_request == Amount(cpu_m=1100, memory_bytes=2**30)
    resource["spec"]["initContainers"] = [{"resources": {"requests": {"cpu": "500m"}}}]
    assert (pod_of(resource).request.cpu_m, pod_of(resource).original_request) == (1100, None)


def test_unreadable_quantity_counts_as_zero() -> None:
    assert pod_of(pod_object("p", cpu="much")).request == Amount(memory_bytes=2**30)


@pytest.mark.parametrize(
    ("kinds", "expected"), [([], None), (["ReplicaSet"], "ReplicaSet"), (["ReplicaSet", "DaemonSet"], "DaemonSet")]
)
def test_owner_kind_is_daemon_set_if_any_owner_is(kinds: list[str], expected: str | None) -> None:
    resource = pod_object("p")
    resource["metadata"]["ownerReferences"] = [{"kind": kind} for kind in kinds]
    assert pod_of(resource).placement.owner_kind == expected


def test_affinity_has_required_node_terms_only() -> None:
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


def test_static_and_mirror_pods_are_mirror_pods() -> None:
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


def test_pod_request_sums_containers_and_takes_largest_init_container() -> None:
    assert pod_request([cpu(2000), cpu(1000)], [init(2000), init(2000)]).cpu_m == 3000


def test_init_container_larger_than_containers_determines_request() -> None:
    assert pod_request([cpu(500)], [init(900)]).cpu_m == 900


def test_unset_requests_count_as_0_and_overhead_is_added() -> None:
    amount = pod_request(
        [Resources(memory_bytes=100), Resources(cpu_m=200)], overhead=Resources(cpu_m=5, memory_bytes=5)
    )
    assert amount == Amount(cpu_m=205, memory_bytes=105)


def test_pod_without_containers_requests_nothing() -> None:
    assert pod_request([]) == Amount()


def test_sidecar_request_is_added_to_containers() -> None:
    init_containers = [init(500, is_sidecar=True), init(2000), init(2000)]
    assert pod_request([cpu(2000), cpu(1000)], init_containers).cpu_m == 3500


def test_init_container_request_adds_earlier_sidecars_only() -> None:
    assert pod_request([cpu(100)], [init(500, is_sidecar=True), init(2000)]).cpu_m == 2500
    assert pod_request([cpu(100)], [init(2000), init(500, is_sidecar=True)]).cpu_m == 2000
