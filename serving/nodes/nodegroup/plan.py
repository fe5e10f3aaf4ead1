"""The result of one pass: the effects, in order, and their reasons.

Effects are values. The actor (``io/actor.py``) executes them in order, skips those that no longer apply, and reports
failed ones to the next pass (``records.Failures``). In dry mode ``effects`` is empty, and ``withheld`` has the effects
that were not executed.
"""

import enum

import msgspec

from serving.core.model.nodata import NoData
from serving.nodes.nodegroup.records import Amount
from serving.nodes.nodegroup.states import Partition


class Utilisation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests as a percentage of capacity, which may exceed 100."""

    cpu_percent: float
    memory_percent: float

    @property
    def percent(self) -> float:
        """The larger of both percentages; thresholds apply to it."""
        return max(self.cpu_percent, self.memory_percent)


class FromZero(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests in a group without an untainted node: the utilisation exceeds any threshold by an unknown factor.

    Escalator sets both percentages to the largest float in this case.
    """


Usage = Utilisation | FromZero | NoData


def utilisation(request: Amount, capacity: Amount, *, untainted_count: int) -> Usage:
    """Requests over capacity, for each resource.

    Example: requests of 5000 m on 2000 m are 250 %, and 1000 MB on 8000 MB are 12.5 %: cpu decides. An empty group
    without requests is at 0 %. Requests without an untainted node give ``FromZero``. Untainted nodes without any cpu or
    memory give ``NoData``; Escalator's error is "cannot divide by zero in percent calculation".
    """
    nothing = Amount()
    if request == capacity == nothing and untainted_count == 0:
        return Utilisation(cpu_percent=0.0, memory_percent=0.0)
    if capacity.cpu_m == 0 or capacity.memory_bytes == 0:
        return FromZero() if untainted_count == 0 else NoData(missing="cpu or memory that untainted nodes offer")
    return Utilisation(
        cpu_percent=request.cpu_m / capacity.cpu_m * 100,
        memory_percent=request.memory_bytes / capacity.memory_bytes * 100,
    )


class Taint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Add the removal taint to a node. Its value is ``at_s`` (whole unix seconds), its effect on pods ``effect``."""

    node_name: str
    at_s: int
    effect: str


class Untaint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Remove the removal taint from a node."""

    node_name: str


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Evict the node's pods by the eviction API, which respects PodDisruptionBudgets. Repeated in each pass."""

    node_name: str


class DeleteNodes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Terminate these machines in the cloud, lower the group's target by their number, then delete their Nodes."""

    node_names: tuple[str, ...]


class IncreaseSize(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Raise the cloud's target by ``count``."""

    count: int


Effect = Taint | Untaint | Drain | DeleteNodes | IncreaseSize


class GroupRule(enum.StrEnum):
    """The rule that decided the change of a group's size, in order of evaluation.

    EMPTY, BELOW_MIN, NO_CAPACITY: the state of the nodes. LOCK: a cool-down after a scale-up. FROM_ZERO, TAINT_LOWER,
    TAINT_UPPER, SCALE_UP, STEADY: the utilisation compared with the thresholds. STARVE: a pending pod fits on no node.
    MAX_NODE_AGE, REPLACE_UNHEALTHY: a node is added so that another can go. ABOVE_MAX: too many nodes. HEALTH_GATE: too
    many unhealthy nodes to change anything.
    """

    EMPTY = "empty"
    BELOW_MIN = "below-min"
    LOCK = "lock"
    FROM_ZERO = "from-zero"
    TAINT_LOWER = "taint-lower"
    TAINT_UPPER = "taint-upper"
    SCALE_UP = "scale-up"
    STEADY = "steady"
    STARVE = "starve"
    MAX_NODE_AGE = "max-node-age"
    REPLACE_UNHEALTHY = "replace-unhealthy"
    ABOVE_MAX = "above-max"
    HEALTH_GATE = "health-gate"
    NO_CAPACITY = "no-capacity"


class WantedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the number of nodes that one rule wants."""

    rule: GroupRule
    delta: int


class GroupLimit(enum.StrEnum):
    """The bound that reduced a plan."""

    MIN_NODES = "min-nodes"
    MAX_NODES = "max-nodes"
    NODES_ON_THEIR_WAY = "nodes-on-their-way"
    LOCK = "lock"
    BREAKER = "breaker"
    CLOUD_MIN = "cloud-min"
    CLOUD_MAX = "cloud-max"


class RetentionReason(enum.StrEnum):
    """Why a node marked for removal is kept."""

    PROTECTED = "no-delete annotation"
    HEALTHY = "healthy, while the group is not"
    NO_TIMESTAMP = "taint without a timestamp"
    SOFT_GRACE = "soft grace period not over"
    HARD_GRACE = "pods on it, hard grace period not over"
    DRAINING = "pods on it are asked to leave"
    PODS = "pods on it"
    CLOUD_MIN = "cloud group at its minimum"


class PostponedRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A node marked for removal that is kept for now."""

    node_name: str
    reason: RetentionReason


class PassError(enum.StrEnum):
    """Why a pass ended without a decision about a group."""

    BELOW_MIN = "node count less than the minimum"
    NO_CAPACITY = "untainted nodes offer no cpu or no memory"
    CANNOT_GROW = "below the minimum, and the group cannot grow"


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a pass.

    ``requested_delta`` is the number of nodes that the rules requested, before ``limits`` reduced it. Under the lock it
    is the number of awaited nodes; below the minimum it is the number added. ``wanted`` has every rule with a proposal,
    ``decided_by`` the deciding one. ``error`` is the reason that the pass ended early, or None. ``usage`` is None if
    the pass ended before it was known. ``unregistered_count`` counts machines that should be nodes by now.
    ``pod_count`` counts existing pods, ``anticipated_count`` anticipated ones; ``request`` is the sum of the requests
    of both. ``crowded_out_count`` counts pending pods whose room is used by pods outside the group.
    """

    requested_delta: int
    decided_by: GroupRule
    wanted: tuple[WantedNodes, ...] = ()
    effects: tuple[Effect, ...] = ()
    withheld: tuple[Effect, ...] = ()
    limits: tuple[GroupLimit, ...] = ()
    kept_nodes: tuple[PostponedRemoval, ...] = ()
    error: PassError | None = None
    usage: Utilisation | FromZero | None = None
    unregistered_count: int = 0
    request: Amount = Amount()
    capacity: Amount = Amount()
    nodes: Partition = Partition()
    pod_count: int = 0
    anticipated_count: int = 0
    crowded_out_count: int = 0
    is_healthy: bool = True
