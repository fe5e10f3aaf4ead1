"""Records for metrics: the numbers of one decision, the pods of a revision, and the costs of its policy."""

import msgspec


class PodCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of a revision by state."""

    not_ready: int = 0
    """Running pods that are not ready, yet or any more."""

    pending: int = 0
    """Pods without a node, or whose containers have not started."""

    terminating: int = 0
    """Pods being deleted."""

    dormant: int = 0
    """Ready pods whose app sleeps."""

    oom_kills: int = 0
    """Containers that ran out of memory."""


class PolicyCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the policy in force and of its alternative."""

    adaptive_pod_seconds: float
    adaptive_cold_requests: float
    """Requests that arrived while no pod was ready."""

    knative_pod_seconds: float
    knative_cold_requests: float

    covered_s: float
    """Time covered by these numbers, in seconds: a day at most."""


class RevisionNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One revision after one decision. Loads are in the unit of the load metric; None if unknown."""

    namespace: str
    configuration: str
    revision: str

    desired_count: int | None
    """Pods wanted, within the bounds; None without the data to decide."""

    requested_count: int
    """Pods requested by the present scale."""

    ready_count: int

    is_panic: bool
    """Whether the panic window decides."""

    rule: str
    """The rule that decided; one of a closed list."""

    metric: str = "concurrency"
    """Name of the load metric that scales it."""

    stable_load: float | None = None
    panic_load: float | None = None
    target_load: float | None = None

    excess_burst_capacity: int | None = None
    """Requests that may still arrive at once; below 0 the capacity is too small."""

    learnt_target: float | None = None
    """The learnt target of requests in flight per pod, in force or not."""
