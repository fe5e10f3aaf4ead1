"""Virtual nodes of one machine: their number, their size, and their objects in the API.

Input: the flags of ``serving up``, the machines of the local cloud; output: Nodes, and the NodeGroup that grows and
shrinks them.
"""

import msgspec

from serving.core.model.knative import POOL_LABEL
from serving.core.model.objects import Object
from serving.nodes.nodegroup.localmachines import LOCAL_GROUP, LocalMachines

VIRTUAL_NODES_VARIABLE = "SERVING_LOCAL_NODES"
"""Environment variable with the ``VirtualNodes`` as JSON; missing where this machine is one node."""

# A kubelet's default.
_PODS_MAX = 110
# 127.65.0.0/16 is the first virtual node's; 127.64 is used without virtual nodes.
_NETWORK_FIRST = 65
_NETWORKS = 190


class VirtualNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of ``serving up`` for virtual nodes.

    ``count`` is the minimum number of nodes, and ``count_max`` the maximum. ``cpu`` and ``memory`` are quantities per
    node. ``boot_s`` is the time until a new node is Ready. ``policy`` is the placement policy. ``anticipates``: nodes
    boot for pods that do not exist yet.
    """

    count: int
    count_max: int
    cpu: str
    memory: str
    boot_s: float
    policy: str
    anticipates: bool


def due_names(machines: LocalMachines, *, boot_s: float, now_s: float) -> dict[str, float]:
    """The seconds until each machine is Ready, by name; 0 once it is Ready.

    Example: with a boot time of 8 s, a machine requested 3 s ago is Ready in 5 s. A machine with a request time in the
    future is Ready, because the clock was set back.
    """
    return {
        name: max(0.0, at_s + boot_s - now_s) if at_s <= now_s else 0.0 for name, at_s in machines.asked_at_s.items()
    }


def network_of(node_name: str) -> str:
    """The first two numbers of the addresses of a node's pods: "127.66" for node-2."""
    number = node_name.rpartition("-")[2]
    return f"127.{_NETWORK_FIRST + int(number) % _NETWORKS}" if number.isdecimal() else "127.64"


def virtual_node(name: str) -> Object:
    """The Node object of a virtual node, without its status."""
    labels = {"kubernetes.io/hostname": name, POOL_LABEL: LOCAL_GROUP}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"local:///{name}", "podCIDR": f"{network_of(name)}.0.0/16", "taints": []},
    }


def node_status_of(nodes: VirtualNodes, *, at: str) -> Object:
    """The status of a virtual node, ready since ``at``."""
    amounts = {"cpu": nodes.cpu, "memory": nodes.memory, "pods": str(_PODS_MAX)}
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": at}
    return {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}


def default_group(nodes: VirtualNodes) -> Object:
    """The NodeGroup of the virtual nodes. It names no bounds, so that the flags of the next start determine them.

    Its periods are short, because a virtual node boots in seconds.
    """
    spec = {
        "labelKey": POOL_LABEL,
        "labelValue": LOCAL_GROUP,
        "cloudProviderGroupName": LOCAL_GROUP,
        "taintLowerCapacityThresholdPercent": 25,
        "taintUpperCapacityThresholdPercent": 45,
        "scaleUpThresholdPercent": 80,
        "slowNodeRemovalRate": 1,
        "fastNodeRemovalRate": 2,
        "softDeleteGracePeriod": "2s",
        "hardDeleteGracePeriod": "6s",
        "drainGracePeriod": "60s",
        "scaleUpCoolDownPeriod": f"{nodes.boot_s + 2:g}s",
        "scaleOnStarve": True,
        "anticipation": nodes.anticipates,
    }
    return {"metadata": {"name": "default"}, "spec": spec}
