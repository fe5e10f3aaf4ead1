"""Command line flags of virtual nodes."""

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.core.model.quantity import parse_millicores
from serving.core.settings.placement import NODE_POLICIES
from serving.home.kubelet.virtualnodes import VIRTUAL_NODES_VARIABLE, VirtualNodes
from serving.tools.cli.nodes.nodeflags import NODE_FLAGS, AmountFlags, nodes_environment

FLAGS = dict(zip(NODE_FLAGS, (2, "1500m", "1Gi", 6, "8s", "pack", False), strict=True))


def test_without_nodes_flag_the_environment_is_unchanged() -> None:
    assert nodes_environment({**FLAGS, "nodes": None}) == {}


def test_node_flags_are_encoded_in_the_daemon_environment() -> None:
    written = nodes_environment(FLAGS)[VIRTUAL_NODES_VARIABLE]
    expected = VirtualNodes(
        count=2, count_max=6, cpu="1500m", memory="1Gi", boot_s=8.0, policy="pack", anticipates=False
    )
    assert msgspec.json.decode(written, type=VirtualNodes) == expected
    assert expected.policy in NODE_POLICIES


def test_nodes_max_defaults_to_the_number_of_nodes() -> None:
    written = nodes_environment({**FLAGS, "nodes_max": None})[VIRTUAL_NODES_VARIABLE]
    assert msgspec.json.decode(written, type=VirtualNodes).count_max == 2


def test_all_invalid_node_flags_are_reported() -> None:
    wrong = {**FLAGS, "node_cpu": "much", "node_memory": "0", "node_boot": "soon", "nodes_max": 1}
    with pytest.raises(SettingsError) as error:
        nodes_environment(wrong)
    assert [problem.where for problem in error.value.problems] == [
        "--node-cpu",
        "--node-memory",
        "--node-boot",
        "--nodes-max",
    ]


def test_anticipation_flag_passes_the_node_boot_time_to_the_autoscaler() -> None:
    assert "SERVING_AUTOSCALER_NODE_BOOT_S" not in nodes_environment(FLAGS)
    environment = nodes_environment({**FLAGS, "node_anticipation": True})
    # The boot time plus one pass of the node group.
    assert environment["SERVING_AUTOSCALER_NODE_BOOT_S"] == "10"
    assert msgspec.json.decode(environment[VIRTUAL_NODES_VARIABLE], type=VirtualNodes).anticipates


def test_valid_amount_flags_are_parsed() -> None:
    reader = AmountFlags({"node_cpu": "1500m", "nodes_max": None})
    assert reader.above_zero("node_cpu", parse_millicores, "an amount") == 1500
    assert (reader.count_max(3), reader.count_max(0)) == (3, 1)
    reader.check()


def test_invalid_amounts_are_reported_with_their_flags() -> None:
    reader = AmountFlags({"node_cpu": "much", "pod_cpu": "0", "nodes_max": 1})
    assert (reader.above_zero("node_cpu", parse_millicores, "an amount"), reader.count_max(2)) == (0, 1)
    assert reader.above_zero("pod_cpu", parse_millicores, "an amount") == 0
    with pytest.raises(SettingsError) as error:
        reader.check()
    assert [(problem.where, problem.what) for problem in error.value.problems] == [
        ("--node-cpu", "'much' is not right"),
        ("--nodes-max", "1 is below --nodes 2"),
        ("--pod-cpu", "'0' is not right"),
    ]
