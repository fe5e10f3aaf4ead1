"""The options of ``serving simulate`` for nodes: count, size, and the node group that grows and shrinks them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.quantity import parse_bytes, parse_duration_s, parse_millicores
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.core.settings.placement import NODE_POLICIES
from serving.net.aio.inputfile import read_input_text
from serving.nodes.nodegroup.groups import groups_of_text
from serving.nodes.nodegroup.records import Amount
from serving.tools.cli.client.api import adding
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.nodes.nodeflags import AmountFlags
from serving.tools.simulator.nodes import NodePlan

# They have no effect without --nodes.
_OF_NODES = (
    "nodes_max",
    "node_cpu",
    "node_memory",
    "node_boot",
    "node_scan",
    "node_policy",
    "node_group",
    "node_anticipation",
)
# Removal of nodes in the default group, in seconds.
_SOFT_S, _HARD_S = 60.0, 600.0

node_options = adding(
    click.option(
        "--nodes",
        type=click.IntRange(0),
        help="Initial and minimum number of nodes. Without this option, pods need no nodes.",
    ),
    click.option("--nodes-max", type=click.IntRange(1), help="Maximum number of nodes.  [default: --nodes]"),
    click.option("--node-cpu", default="4", show_default=True, help="CPU of each node."),
    click.option("--node-memory", default="16Gi", show_default=True, help="Memory of each node."),
    click.option(
        "--node-boot",
        default="60s",
        show_default=True,
        help="Time from the request for a node until the node accepts pods.",
    ),
    click.option(
        "--node-scan", default="10s", show_default=True, help="Interval between two passes of the node group."
    ),
    click.option(
        "--node-policy",
        type=click.Choice(tuple(NODE_POLICIES)),
        default="spread",
        show_default=True,
        help="Placement policy for pods.",
    ),
    click.option(
        "--node-group",
        type=click.Path(path_type=Path),
        help="File with one node group in Escalator's format. --nodes and --nodes-max set the bounds that the file lacks.",
    ),
    click.option(
        "--node-anticipation",
        is_flag=True,
        help="Boot nodes for pods that revisions will need, before the pods are pending.",
    ),
    click.option(
        "--pod-cpu", default="500m", show_default=True, help="CPU request of each pod, for nodes and triggers."
    ),
    click.option(
        "--pod-memory",
        default="256Mi",
        show_default=True,
        help="Memory request of each pod, for nodes, budgets and triggers.",
    ),
)
"""Adds the options to a command."""


def _refuse_without_nodes() -> None:
    """Raise ``SettingsError`` if the command has an option that describes nodes."""
    context = click.get_current_context()
    names = [name for name in _OF_NODES if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if names:
        flag = f"--{names[0].replace('_', '-')}"
        raise SettingsError([Problem(where=flag, what="there are no nodes", expected="--nodes COUNT beside it")])


def node_plan_of(options: Mapping[str, Any]) -> NodePlan | None:
    """The nodes from the options; None without such options. Raises ``SettingsError`` with every problem."""
    count = options["nodes"]
    if count is None:
        _refuse_without_nodes()
        return None
    reader = AmountFlags(options)
    node = Amount(
        cpu_m=int(reader.above_zero("node_cpu", parse_millicores, "an amount of cpu above 0, as 4 or 500m")),
        memory_bytes=int(reader.above_zero("node_memory", parse_bytes, "an amount of memory above 0, as 16Gi")),
    )
    pod = Amount(
        cpu_m=int(reader.above_zero("pod_cpu", parse_millicores, "an amount of cpu above 0, as 1 or 500m")),
        memory_bytes=int(reader.above_zero("pod_memory", parse_bytes, "an amount of memory above 0, as 256Mi")),
    )
    boot_s = reader.above_zero("node_boot", parse_duration_s, "a duration above 0, as 60s")
    scan_s = reader.above_zero("node_scan", parse_duration_s, "a duration above 0, as 10s")
    count_max = reader.count_max(count)
    if node.cpu_m and node.memory_bytes and not pod.fits_in(node):
        expected = "at most what --node-cpu and --node-memory give"
        reader.add(Problem(where="--pod-cpu", what="a pod is larger than a node", expected=expected))
    reader.check()
    group = _group_of(options["node_group"]) or _default_group(boot_s + scan_s)
    if options["node_anticipation"]:
        group = msgspec.structs.replace(group, anticipation=True)
    return NodePlan(
        count=count,
        count_max=count_max,
        node=node,
        pod=pod,
        boot_s=boot_s,
        scan_interval_s=scan_s,
        policy=options["node_policy"],
        group=group,
    )


def _group_of(path: Path | None) -> NodeGroupSettings | None:
    if path is None:
        return None
    reading = groups_of_text(read_input_text(path), where=str(path))
    for ignored in reading.ignored:
        print_aside(f"warning: {ignored}")
    problems = list(reading.problems)
    if not problems and len(reading.groups) != 1:
        problems.append(Problem(where=str(path), what=f"{len(reading.groups)} node groups", expected="one node group"))
    if problems:
        raise SettingsError(problems)
    return reading.groups[0].settings


def _default_group(cool_down_s: float) -> NodeGroupSettings:
    """The settings of the simulated node group. ``cool_down_s`` is the cool-down after a scale-up, in seconds."""
    return NodeGroupSettings(
        name="default",
        label_key="pool",
        label_value="simulated",
        cloud_provider_group_name="simulated",
        taint_lower_capacity_threshold_percent=25,
        taint_upper_capacity_threshold_percent=45,
        scale_up_threshold_percent=80,
        slow_node_removal_rate=1,
        fast_node_removal_rate=2,
        soft_delete_grace_period_s=_SOFT_S,
        hard_delete_grace_period_s=_HARD_S,
        scale_up_cool_down_period_s=cool_down_s,
        scale_on_starve=True,
    )
