"""Virtual nodes: boot, networks, resources and the default node group."""

from serving.home.kubelet.virtualnodes import (
    VirtualNodes,
    default_group,
    due_names,
    network_of,
    node_status_of,
    virtual_node,
)
from serving.nodes.nodegroup.groups import group_of
from serving.nodes.nodegroup.localmachines import LocalMachines

NODES = VirtualNodes(count=2, count_max=4, cpu="1", memory="512Mi", boot_s=8.0, policy="spread", anticipates=False)


def test_machine_becomes_a_node_after_its_boot_time() -> None:
    machines = LocalMachines(asked_at_s={"a": 0.0, "b": 5.0}, min_size=0, max_size=4, next_number=3)
    assert due_names(machines, boot_s=8.0, now_s=8.0) == {"a": 0.0, "b": 5.0}


def test_backward_clock_does_not_delay_a_node() -> None:
    machines = LocalMachines(asked_at_s={"a": 3600.0}, min_size=1, max_size=2, next_number=2)
    assert due_names(machines, boot_s=8.0, now_s=5.0) == {"a": 0.0}


def test_each_virtual_node_has_its_own_network() -> None:
    assert (network_of("node-1"), network_of("node-2"), network_of("local")) == ("127.66", "127.67", "127.64")
    assert network_of("node-190") == "127.65"
    assert virtual_node("node-1")["spec"]["podCIDR"] == "127.66.0.0/16"


def test_virtual_node_has_resources_of_the_flags() -> None:
    assert node_status_of(NODES, at="now")["allocatable"] == {"cpu": "1", "memory": "512Mi", "pods": "110"}


def test_default_node_group_is_valid_and_matches_node_labels() -> None:
    (group,) = group_of(default_group(NODES)).groups
    assert (group.settings.takes_cloud_bounds, group.settings.scale_up_cool_down_period_s) == (True, 10.0)
    labels = virtual_node("node-1")["metadata"]["labels"]
    assert labels[group.settings.label_key] == group.settings.label_value
