"""The flags of ``serving up`` for virtual nodes, and the daemons' environment from them."""

from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.quantity import parse_bytes, parse_duration_s, parse_millicores
from serving.core.settings.placement import NODE_POLICIES
from serving.home.kubelet.virtualnodes import VIRTUAL_NODES_VARIABLE, VirtualNodes
from serving.tools.cli.client.api import adding

_NODES_MAX = 64

# Time from a pass to the request for a machine and, after the boot, to the first pod, in seconds.
_PASS_S = 2.0

NODE_FLAGS = ("nodes", "node_cpu", "node_memory", "nodes_max", "node_boot", "node_policy", "node_anticipation")


class AmountFlags:
    """Parses the flags of one command, and collects their problems. The name of --node-cpu is "node_cpu"."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._flags = flags
        self._problems: list[Problem] = []

    def above_zero(self, name: str, parse: Callable[[str], float], expected: str) -> float:
        """The value of a flag. If it is invalid or not above 0, add a problem and return 0."""
        try:
            value = parse(self._flags[name])
        except InvalidValue:
            value = 0.0
        if value <= 0:
            where = f"--{name.replace('_', '-')}"
            self.add(Problem(where=where, what=f"{self._flags[name]!r} is not right", expected=expected))
        return value

    def count_max(self, count: int) -> int:
        """The maximum number of nodes: --nodes-max, else --nodes, at least one."""
        count_max: int = self._flags["nodes_max"] or max(count, 1)
        if count_max < count:
            what = f"{count_max} is below --nodes {count}"
            self.add(Problem(where="--nodes-max", what=what, expected=f"at least {count}"))
        return count_max

    def add(self, problem: Problem) -> None:
        """Add a problem."""
        self._problems.append(problem)

    def check(self) -> None:
        """Raise ``SettingsError`` with every problem, if there are any."""
        if self._problems:
            raise SettingsError(self._problems)


with_node_flags = adding(
    click.option(
        "--nodes",
        type=click.IntRange(1, _NODES_MAX),
        help="Number of virtual nodes for pods. Without this option, this machine is one node.",
    ),
    click.option("--node-cpu", default="1", show_default=True, help="CPU of each virtual node, such as 2 or 500m."),
    click.option("--node-memory", default="512Mi", show_default=True, help="Memory of each virtual node."),
    click.option(
        "--nodes-max", type=click.IntRange(1, _NODES_MAX), help="Maximum number of virtual nodes.  [default: --nodes]"
    ),
    click.option("--node-boot", default="8s", show_default=True, help="Time that a new virtual node takes to boot."),
    click.option(
        "--node-policy",
        type=click.Choice(tuple(NODE_POLICIES)),
        default="spread",
        show_default=True,
        help="Placement policy for pods on virtual nodes.",
    ),
    click.option(
        "--node-anticipation",
        is_flag=True,
        help="Boot nodes for pods that revisions will need, before the pods are pending.",
    ),
)
"""Adds the flags to a command."""


def nodes_environment(flags: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the daemons; {} without virtual nodes. Raises ``SettingsError`` with every problem."""
    count = flags["nodes"]
    if count is None:
        return {}
    reader = AmountFlags(flags)
    reader.above_zero("node_cpu", parse_millicores, "an amount of cpu above 0, as 2 or 500m")
    reader.above_zero("node_memory", parse_bytes, "an amount of memory above 0, as 512Mi")
    boot_s = reader.above_zero("node_boot", parse_duration_s, "a duration above 0, as 8s")
    count_max = reader.count_max(count)
    reader.check()
    nodes = VirtualNodes(
        count=count,
        count_max=count_max,
        cpu=flags["node_cpu"],
        memory=flags["node_memory"],
        boot_s=boot_s,
        policy=flags["node_policy"],
        anticipates=flags["node_anticipation"],
    )
    environment = {VIRTUAL_NODES_VARIABLE: msgspec.json.encode(nodes).decode()}
    if nodes.anticipates:
        environment["SERVING_AUTOSCALER_NODE_BOOT_S"] = f"{boot_s + _PASS_S:g}"
    return environment
