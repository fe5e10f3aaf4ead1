"""Records of one pass over a node group: nodes, pods, the cloud's group, and failures.

The inputs of this package's decisions, as plain values. Times are unix seconds, because creation times and taints
contain times of other machines; ``now_s`` of every decision is of the same clock. Source of the fields:
atlassian/escalator 043bb1b.
"""

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

_NO_LABELS: Mapping[str, str] = {}


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Cpu in millicores and memory in bytes. An unset amount counts as 0, as in Escalator."""

    cpu_m: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(cpu_m=self.cpu_m + other.cpu_m, memory_bytes=self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(cpu_m=self.cpu_m - other.cpu_m, memory_bytes=self.memory_bytes - other.memory_bytes)

    def fits_in(self, other: "Amount") -> bool:
        """Whether neither cpu nor memory exceeds the other amount."""
        return self.cpu_m <= other.cpu_m and self.memory_bytes <= other.memory_bytes


class RemovalTaint(msgspec.Struct, frozen=True, kw_only=True):
    """The taint that marks a node for removal. ``at_s`` is its timestamp, None if it is missing or invalid."""

    at_s: float | None


class GroupNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node.

    ``removal_taint`` marks it for removal, None without the taint. ``is_force_tainted``: it is to be removed as soon as
    it is empty. ``is_cordoned``: an administrator has excluded it. ``is_protected``: its no-delete annotation is not
    empty. ``is_ready``: its Ready condition is True.
    """

    name: str
    created_at_s: float
    allocatable: Amount
    labels: Mapping[str, str] = _NO_LABELS
    is_cordoned: bool = False
    is_force_tainted: bool = False
    removal_taint: RemovalTaint | None = None
    is_protected: bool = False
    is_ready: bool = True


class PodPhase(enum.StrEnum):
    """The phase of a pod; UNKNOWN if the pod has no status."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """An expression of a node affinity term, such as customer In (shared, dev)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Affinity(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a pod's affinity that is used: required node terms (None without node affinity), and pod rules."""

    required_node_terms: tuple[tuple[Expression, ...], ...] | None = None
    has_pod_affinity: bool = False
    has_pod_anti_affinity: bool = False


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's constraints on nodes, and its owners. ``is_static``: the kubelet created it from a file."""

    node_selector: Mapping[str, str] = _NO_LABELS
    affinity: Affinity | None = None
    owner_kind: str | None = None
    is_static: bool = False


class GroupPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod. ``node_name`` is None until it is bound; ``is_scheduled``: its condition PodScheduled is True.

    ``is_anticipated``: the pod does not exist yet; only groups with ``anticipation`` count it. ``original_request`` is
    the request that Escalator computes, in which sidecars are init containers, if it differs; groups with that quirk
    use it.
    """

    name: str
    request: Amount
    phase: PodPhase = PodPhase.UNKNOWN
    node_name: str | None = None
    is_scheduled: bool = False
    placement: Placement = Placement()
    is_anticipated: bool = False
    original_request: Amount | None = None


class CloudGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud's view of the group: its target size, and its bounds."""

    target_size: int
    min_size: int
    max_size: int


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Failed effects of the last plan, reported to the next pass.

    ``increase_failed``: the cloud refused to grow. The scale lock is released, and the circuit breaker counts a
    failure. ``node_names``: nodes that could not be tainted, untainted, drained or deleted. The next pass selects them
    last, so that one failing node does not block the rest. Successful effects are not reported, because the next
    snapshot shows them.
    """

    increase_failed: bool = False
    node_names: frozenset[str] = frozenset()


class OthersUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts that pods outside the group use on a node. ``daemons`` is the part of DaemonSet and static pods."""

    daemons: Amount = Amount()
    foreign: Amount = Amount()

    @property
    def total(self) -> Amount:
        """The sum of both amounts."""
        return self.daemons + self.foreign

    def __add__(self, other: "OthersUsage") -> "OthersUsage":
        return OthersUsage(daemons=self.daemons + other.daemons, foreign=self.foreign + other.foreign)

    def __sub__(self, other: "OthersUsage") -> "OthersUsage":
        return OthersUsage(daemons=self.daemons - other.daemons, foreign=self.foreign - other.foreign)


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one group, with sums.

    ``pods`` are the group's unfinished pods; ``request`` is the sum of their requests. ``pod_counts`` has, for each
    node, the number of pods that make it not empty. ``anticipated_count`` of the pods do not exist yet.
    ``others_taken`` are the amounts that pods outside the group use on each node, including nodes of other groups.
    ``book.NodeGroupBook`` updates this record by single changes.
    """

    nodes: Sequence[GroupNode]
    pods: Collection[GroupPod]
    pod_counts: Mapping[str, int]
    request: Amount
    anticipated_count: int
    others_taken: Mapping[str, "OthersUsage"]
    cloud: CloudGroup
    failures: Failures = Failures()
