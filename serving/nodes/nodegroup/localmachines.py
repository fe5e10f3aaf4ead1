"""The machines of the local cloud, stored in the ConfigMap ``local-nodes``.

Input: the ConfigMap's data, and the requested change; output: the new data. The number of machines is the target of the
one group, named ``local``. Machines have names with numbers that are never reused. ``asked_at_s`` is when a machine was
requested, in unix seconds. Its node appears after the boot time.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from serving.core.model.errors import CloudRefused, CloudUnavailable
from serving.nodes.nodegroup.records import CloudGroup

LOCAL_MACHINES: Final = "local-nodes"
"""The name of the ConfigMap."""

LOCAL_GROUP: Final = "local"
_KEY = "machines.json"


class LocalMachines(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a group on one machine: when each was requested (unix seconds), by node name.

    The bounds limit their number. ``next_number`` is used in the name of the next one.
    """

    asked_at_s: Mapping[str, float]
    min_size: int
    max_size: int
    next_number: int

    @property
    def group(self) -> CloudGroup:
        """The group in the form of the cloud port."""
        return CloudGroup(target_size=len(self.asked_at_s), min_size=self.min_size, max_size=self.max_size)

    def increased(self, count: int, *, now_s: float) -> "LocalMachines":
        """Add ``count`` machines. Raises ``CloudRefused`` above the maximum."""
        if count < 1 or len(self.asked_at_s) + count > self.max_size:
            raise CloudRefused(f"{len(self.asked_at_s)} + {count} machines are above the maximum {self.max_size}")
        numbers = range(self.next_number, self.next_number + count)
        machines = {f"node-{number}": now_s for number in numbers}
        return msgspec.structs.replace(
            self, asked_at_s={**self.asked_at_s, **machines}, next_number=self.next_number + count
        )

    def without(self, names: Collection[str]) -> "LocalMachines":
        """Remove the named machines; unknown names are ignored. Raises ``CloudRefused`` below the minimum."""
        machines = {name: at_s for name, at_s in self.asked_at_s.items() if name not in names}
        if len(machines) < min(self.min_size, len(self.asked_at_s)):
            raise CloudRefused(f"{len(machines)} machines are below the minimum {self.min_size}")
        return msgspec.structs.replace(self, asked_at_s=machines)

    def bounded(self, *, min_size: int, max_size: int, now_s: float) -> "LocalMachines":
        """Change the bounds, and grow to the minimum."""
        moved = msgspec.structs.replace(self, min_size=min_size, max_size=max_size)
        missing = min_size - len(self.asked_at_s)
        return moved.increased(missing, now_s=now_s) if missing > 0 else moved

    def data(self) -> dict[str, str]:
        """The ConfigMap's data."""
        return {_KEY: msgspec.json.encode(self).decode()}


def machines_of(data: Mapping[str, str]) -> LocalMachines:
    """Parse the machines in a ConfigMap's data. Raises ``CloudUnavailable`` if the data is invalid."""
    try:
        return msgspec.json.decode(data.get(_KEY, "").encode(), type=LocalMachines)
    except msgspec.MsgspecError as error:
        raise CloudUnavailable(f"the ConfigMap {LOCAL_MACHINES} has no machines that can be read: {error}") from error
