"""Records for metrics: the numbers of one decision, the pods of a revision, and the costs of its policy."""

import msgspec


class PodCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a revision's pods by state, and of OOM kills and restarts of their containers."""

    not_ready: int = 0
    """Running pods that are not ready."""

    pending: int = 0
    """Pods without a node, or with containers that have not started."""

    terminating: int = 0
    """Pods being deleted."""

    dormant: int = 0
    """Ready pods whose app sleeps."""

    oom_kills: int = 0
    """Containers that ran out of memory."""

    restarts: int = 0
    """Restarts of containers."""


class PolicyCosts(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's costs in ``covered_s`` seconds (at most a day), under two policies.

    ``adaptive`` is the adaptive or a user's policy, ``knative`` Knative's. A cold request arrived while no pod was
    ready.
    """

    adaptive_pod_seconds: float
    adaptive_cold_requests: float
    knative_pod_seconds: float
    knative_cold_requests: float

    covered_s: float


class RevisionNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's numbers after a decision. Loads are in the unit of the load metric; None if unknown.

    ``desired_count`` is the number of wanted pods within the bounds, None if the decision had no data.
    ``requested_count`` is the scale. ``rule`` names the rule that decided, from a closed list. ``metric`` is the name
    of the load metric, and ``target_load`` the load that one pod should have. ``excess_burst_capacity`` is the number
    of further concurrent requests within the capacity; negative if the capacity is too small. ``learnt_target`` is the
    learnt target of requests in flight per pod, whether or not it is in force.
    """

    namespace: str
    configuration: str
    revision: str

    desired_count: int | None
    requested_count: int
    ready_count: int

    is_panic: bool
    rule: str
    metric: str = "concurrency"
    stable_load: float | None = None
    panic_load: float | None = None
    target_load: float | None = None

    excess_burst_capacity: int | None = None
    learnt_target: float | None = None
