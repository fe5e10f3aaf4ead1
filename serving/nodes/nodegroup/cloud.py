"""The cloud port: machines for nodes, in groups with a target size.

The contract of every adapter (``nodes/nodegroup/io/clouds``), verified by ``tests/conformance/cloud``:

- ``describe`` is cheap enough for each pass and shows the present target of the cloud, also after a change by another
  client.
- ``increase`` asks for machines and does not wait for them; ``target + count`` above the maximum raises
  ``CloudRefused`` and changes nothing. Machines become nodes later, in smaller number, or never: the pass reads nodes
  only.
- ``delete`` terminates machines of the group and lowers its target by as many. A batch that would pass the group's
  minimum raises ``CloudRefused`` and deletes nothing. A machine that no longer exists counts as deleted; one of another
  group is not touched and is reported in ``failed``.
- Errors are ``CloudRefused`` and ``CloudUnavailable``, and no others. Nothing is retried inside.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from serving.nodes.nodegroup.records import CloudGroup

_NONE_FAILED: Mapping[str, str] = {}


class CloudMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a node: the node's name, ``spec.providerID`` ("" if it has none), and the whole Node for adapters."""

    node_name: str
    provider_id: str = ""
    node: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """Names of nodes whose machines are terminated or gone, and why each other one remains."""

    deleted: tuple[str, ...] = ()
    failed: Mapping[str, str] = _NONE_FAILED


class Cloud(Protocol):
    """Groups of machines by the cloud's name (``cloud_provider_group_name``)."""

    async def describe(self, group: str) -> CloudGroup:
        """The target and bounds of a group. Raises ``CloudRefused`` if the group is unknown."""
        ...

    async def increase(self, group: str, count: int) -> None:
        """Raise the target by ``count``, at least 1."""
        ...

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines, and reduce the target by their number."""
        ...
