"""What a node group remembers from one pass to the next.

Small, plain and safe to lose: a shell may store it as JSON, or start afresh with the defaults. What is lost then is the
capacity of a node for growth from zero, the rest of a cool-down, and what the circuit breaker has seen.
"""

from collections.abc import Mapping

import msgspec

from serving.nodegroup.breaker import BreakerState
from serving.nodegroup.lock import ScaleLock
from serving.nodegroup.records import Amount

_NOTHING_DONE: Mapping[str, float | None] = {}


class NodeGroupState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the fold.

    ``node_capacity`` is what a node of the group offers, 0 for what is not known; it is used to grow from zero.
    ``dry_taints`` are the changes that a dry run made in thought: the time of a taint, None for an untaint, by the
    name of the node. ``last_scale_up_at_s`` is when growth was last decided, for the lag until nodes register; None
    if never. ``coming_since_s`` is since when the cloud has machines that are no nodes, without a node that came since;
    None while it has none.
    """

    node_capacity: Amount = Amount()
    lock: ScaleLock | None = None
    breaker: BreakerState = BreakerState()
    dry_taints: Mapping[str, float | None] = _NOTHING_DONE
    last_scale_up_at_s: float | None = None
    coming_since_s: float | None = None
    coming_count: int = 0
