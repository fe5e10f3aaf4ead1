"""Evictions and PodDisruptionBudgets."""

import pytest

from serving.core.model.errors import Conflict, NotFound, TooManyRequests
from serving.core.model.objects import Object
from serving.home.store.budgets import eviction_refusal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD, POD_DISRUPTION_BUDGET


def new_pod(name: str, *, ready: bool = True, app: str = "a", phase: str = "Running") -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"phase": phase, "conditions": conditions}
    metadata = {"namespace": "default", "name": name, "labels": {"app": app}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


def budget(**spec: object) -> Object:
    selector = {"matchLabels": {"app": "a"}}
    return {"metadata": {"namespace": "default", "name": "b"}, "spec": {"selector": selector, **spec}}


THREE = [new_pod(name) for name in "xyz"]


@pytest.mark.parametrize(
    ("spec", "pods", "is_granted"),
    [
        ({"minAvailable": 2}, THREE, True),
        ({"minAvailable": 3}, THREE, False),
        ({"maxUnavailable": 1}, THREE, True),
        ({"maxUnavailable": 0}, THREE, False),
        ({"maxUnavailable": "50%"}, THREE, True),
        ({"minAvailable": "100%"}, THREE, False),
        ({"minAvailable": "34%"}, THREE, True),
        ({}, [new_pod("x")], False),
        ({"minAvailable": 2}, [new_pod("x"), new_pod("y"), new_pod("z", ready=False)], False),
        ({"minAvailable": 1}, [new_pod("x"), new_pod("y", phase="Succeeded")], False),
        ({"minAvailable": 3, "selector": {"matchLabels": {"app": "b"}}}, THREE, True),
        ({"minAvailable": 3, "selector": None}, THREE, True),
        ({"minAvailable": 3, "selector": {}}, THREE, False),
        (
            {"minAvailable": 3, "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
            THREE,
            False,
        ),
    ],
)
def test_disruption_budget_counts_remaining_healthy_pods(spec: Object, pods: list[Object], is_granted: bool) -> None:
    assert (eviction_refusal(pods[0], [budget(**spec)], pods) == "") is is_granted


def test_unready_pod_can_be_evicted_while_budget_is_met() -> None:
    pods = [new_pod("x", ready=False), new_pod("y"), new_pod("z")]
    assert eviction_refusal(pods[0], [budget(minAvailable=2)], pods) == ""
    assert eviction_refusal(pods[1], [budget(minAvailable=2)], pods) != ""


def test_pending_or_ended_pod_can_be_evicted() -> None:
    for phase in ("Pending", "Succeeded", "Failed"):
        pod = new_pod("x", phase=phase)
        assert eviction_refusal(pod, [budget(minAvailable=3)], [pod]) == ""


async def test_eviction_is_rejected_until_the_budget_allows_it() -> None:
    cluster = MemoryCluster()
    for resource in THREE:
        await cluster.create(POD, resource)
        await cluster.patch(
            POD, "default", resource["metadata"]["name"], patch={"status": resource["status"]}, subresource="status"
        )
    await cluster.create(POD_DISRUPTION_BUDGET, budget(minAvailable=3))
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await cluster.evict("default", "x")
    await cluster.patch(POD_DISRUPTION_BUDGET, "default", "b", patch={"spec": {"minAvailable": 2}})
    with pytest.raises(Conflict):
        await cluster.evict("default", "x", uid="another")
    await cluster.evict("default", "x")
    assert (await cluster.get(POD, "default", "x"))["metadata"]["deletionTimestamp"]
    with pytest.raises(NotFound):
        await cluster.evict("default", "none")
    await cluster.close()
