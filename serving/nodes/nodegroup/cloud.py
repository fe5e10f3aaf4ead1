"""The cloud port: machines for nodes, in groups with a target size.

The contract of every adapter (``nodes/nodegroup/io/clouds``), verified by ``tests/conformance/cloud``:

- ``describe`` is called in each pass. It returns the cloud's present target, also after a change by another client.
- ``increase`` requests machines and does not wait for them. If ``target + count`` is above the maximum, it raises
  ``CloudRefused`` and changes nothing. Some machines may never become nodes; the pass reads nodes only.
- ``delete`` terminates machines of the group and lowers its target by as many. A batch below the group's minimum raises
  ``CloudRefused`` and deletes nothing. A machine that no longer exists counts as deleted. A machine of another group is
  not deleted, and is reported in ``failed``.
- The only errors are ``CloudRefused`` and ``CloudUnavailable``. An adapter does not retry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from serving.nodes.nodegroup.records import CloudGroup

_NONE_FAILED: Mapping[str, str] = {}


class CloudMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a node: the node's name, ``spec.providerID`` (or ""), and the whole Node for adapters."""

    node_name: str
    provider_id: str = ""
    node: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes whose machines are terminated or gone, and why each other machine remains."""

    deleted: tuple[str, ...] = ()
    failed: Mapping[str, str] = _NONE_FAILED


class Cloud(Protocol):
    """The interface to a cloud's groups of machines. ``group`` is the cloud's name of a group.

    The setting ``cloud_provider_group_name`` of a node group has this name.
    """

    async def describe(self, group: str) -> CloudGroup:
        """The target and bounds of a group. Raises ``CloudRefused`` if the group is unknown."""
        ...

    async def increase(self, group: str, count: int) -> None:
        """Raise the target by ``count``, at least 1."""
        ...

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines, and reduce the target by their number."""
        ...
