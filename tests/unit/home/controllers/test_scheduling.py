"""Which nodes take a pod, whatever room they have."""

from typing import Any

import pytest

from serving.home.controllers.scheduling import excess_message, refusal, unschedulable_message

CORDONED = "node(s) were unschedulable"
ELSEWHERE = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint {a: b}"


def node(*taints: dict[str, str], **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": {"zone": "a", "size": "4"}}, "spec": {"taints": list(taints), **spec}}


def pod(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": wanted}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("found", "wanted", "why"),
    [
        (node(), pod(), ""),
        (node(unschedulable=True), pod(), CORDONED),
        (node(unschedulable=True), pod(tolerations=[{"operator": "Exists"}]), ""),
        (node(), pod(nodeSelector={"zone": "a"}), ""),
        (node(), pod(nodeSelector={"zone": "b"}), ELSEWHERE),
        (node(), pod(**required(expression("zone", "In", "a", "b"))), ""),
        (node(), pod(**required(expression("zone", "NotIn", "a"))), ELSEWHERE),
        (node(), pod(**required(expression("size", "Gt", "3"))), ""),
        (node(), pod(**required(expression("zone", "In", "b"), expression("size", "Exists"))), ""),
        (node(), pod(**required()), ELSEWHERE),
        (node(), pod(**required({})), ELSEWHERE),
        (
            node(),
            pod(**required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})),
            "",
        ),
        (node(), pod(affinity={"nodeAffinity": {}}), ""),
        (node(TAINT), pod(), TAINTED),
        (node({**TAINT, "effect": "PreferNoSchedule"}), pod(), ""),
        (node(TAINT), pod(tolerations=[{"key": "a", "value": "b"}]), ""),
        (node(TAINT), pod(tolerations=[{"key": "a", "value": "c"}]), TAINTED),
        (node(TAINT), pod(tolerations=[{"key": "c", "operator": "Exists"}]), TAINTED),
        (node(TAINT), pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]), ""),
        (node(TAINT), pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute"}]), TAINTED),
        (node(TAINT), pod(tolerations=[{"operator": "Equal"}]), TAINTED),
    ],
)
def test_a_node_takes_a_pod_or_says_why_not(found: dict[str, Any], wanted: dict[str, Any], why: str) -> None:
    assert refusal(found, wanted) == why


def test_the_message_counts_the_nodes_of_each_reason() -> None:
    reasons = ["Insufficient cpu", CORDONED, "Insufficient cpu"]
    assert unschedulable_message(reasons) == (
        "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable."
    )
    assert unschedulable_message([]) == "0/0 nodes are available: there is no node."


def test_requests_beyond_a_node_are_named() -> None:
    machine = {**node(), "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}}

    def asking(**amounts: str) -> dict[str, Any]:
        return pod(containers=[{"resources": {"requests": amounts}}])

    assert excess_message(machine, asking(cpu="2", memory="1Gi")) == ""
    assert excess_message(machine, asking(cpu="much")) == ""
    assert excess_message(machine, asking(cpu="3", memory="5Gi")).startswith(
        "the pod requests 3 cpu of 2 and 5Gi memory of 4Gi that n has"
    )
