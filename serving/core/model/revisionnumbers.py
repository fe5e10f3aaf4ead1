"""Records for metrics: the numbers of one decision, the pods of a revision, and the costs of its policy."""

import msgspec


class PodCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a revision's pods by state, and of OOM kills and restarts of their containers.

    ``not_ready`` pods run without being ready. ``pending`` pods have no node, or containers that have not started. The
    app of a ``dormant`` pod sleeps.
    """

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
    """A revision's costs in ``covered_s`` seconds: under the adaptive or a user's policy, and under Knative's."""

    adaptive_pod_seconds: float
    adaptive_cold_requests: float
    """Requests that arrived while no pod was ready."""

    knative_pod_seconds: float
    knative_cold_requests: float

    covered_s: float
    """The period of these costs, in seconds; at most a day."""


class RevisionNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's numbers after a decision. Loads are in the unit of the load metric; None if unknown.

    ``desired_count`` is the number of wanted pods, ``requested_count`` the scale. ``rule`` names the rule that decided.
    ``target_load`` is the load that one pod should have.
    """

    namespace: str
    configuration: str
    revision: str

    desired_count: int | None
    """Wanted pods, within the bounds; None if the decision had no data."""

    requested_count: int
    """Pods requested by the current scale."""

    ready_count: int

    is_panic: bool
    """Whether the revision is in panic."""

    rule: str
    """The rule that decided, from a closed list."""

    metric: str = "concurrency"
    """The name of the load metric."""

    stable_load: float | None = None
    panic_load: float | None = None
    target_load: float | None = None

    excess_burst_capacity: int | None = None
    """Number of further concurrent requests within the capacity; negative if the capacity is too small."""

    learnt_target: float | None = None
    """The learnt target of requests in flight per pod, whether or not it is in force."""
