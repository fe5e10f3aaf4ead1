"""What triggers see of a revision at one instant: its pods by what they do, and what its containers use.

A room is a pod, an occupied room a pod with at least one request in flight. Pods that are going away are not counted:
they are in none of the three counts. The daemon fills this in; nothing here knows where it comes from.
"""

import msgspec

from serving.model.resources import Resources


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod: what it may use, and what it does use. A None inside means not set, or not measured."""

    requested: Resources = Resources()
    used: Resources = Resources()


class ObservedPods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one revision. ``available_count`` is their sum, the size that triggers change."""

    creating_count: int = 0
    """Pods that do not serve yet."""

    idle_count: int = 0
    """Ready pods without a request: the only ones that may be removed."""

    occupied_count: int = 0
    """Ready pods with at least one request in flight."""

    pending_count: int = 0
    """Of those that are being created: pods that wait for a node."""

    failing_count: int = 0
    """Of those that are being created: pods that wait after an error."""

    pods: tuple[tuple[ContainerUse, ...], ...] = ()
    """Containers of each pod that has a measurement, in a stable order."""

    gauges: dict[str, float] = msgspec.field(default_factory=dict)
    """What the apps of ready pods report of themselves, added up by name: for trigger types that look at them."""

    @property
    def available_count(self) -> int:
        """Pods that are there or on their way: 2 created, 3 idle and 5 occupied are 10."""
        return self.creating_count + self.idle_count + self.occupied_count
