"""A cloud in this process, for tests, the simulator and trials, which counts machines and enforces bounds.

Machines are names. ``increase`` raises the target; the test adds the nodes. The bounds are those of an AWS Auto
Scaling group, as Escalator's provider checks them. ``faults`` are raised by the next calls, one each.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.core.model.errors import CloudError, CloudRefused
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.records import CloudGroup


class MemoryCloud:
    """Groups by name. ``increases`` and ``deletions`` record granted requests."""

    def __init__(self, groups: Mapping[str, CloudGroup]) -> None:
        self.groups = dict(groups)
        self.increases: list[tuple[str, int]] = []
        self.deletions: list[tuple[str, tuple[str, ...]]] = []
        self.faults: list[CloudError] = []
        self._gone: set[str] = set()
        self.unknown_machines: set[str] = set()
        """Names of nodes whose machines belong to no group."""

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group."""
        self._fail()
        return self._group(group)

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group."""
        self._fail()
        size = self._group(group)
        if count < 1 or size.target_size + count > size.max_size:
            raise CloudRefused(f"{group}: {size.target_size} + {count} is above the maximum {size.max_size}")
        self.groups[group] = msgspec.structs.replace(size, target_size=size.target_size + count)
        self.increases.append((group, count))

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target."""
        self._fail()
        size = self._group(group)
        known = [machine.node_name for machine in machines if machine.node_name not in self.unknown_machines]
        ours = [name for name in known if name not in self._gone]
        if ours and size.target_size - len(ours) < size.min_size:
            raise CloudRefused(f"{group}: {size.target_size} - {len(ours)} is below the minimum {size.min_size}")
        self.groups[group] = msgspec.structs.replace(size, target_size=size.target_size - len(ours))
        self._gone |= set(ours)
        self.deletions.append((group, tuple(ours)))
        failed = {
            machine.node_name: f"not in group {group}"
            for machine in machines
            if machine.node_name in self.unknown_machines
        }
        return Deletion(deleted=tuple(known), failed=failed)

    def _group(self, group: str) -> CloudGroup:
        if group not in self.groups:
            raise CloudRefused(f"there is no group {group}")
        return self.groups[group]

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)
