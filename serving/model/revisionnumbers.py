"""Records for metrics: the numbers of one decision, the pods of a revision, and the costs of its policy."""

import msgspec


class PodCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of a revision that are not ready, by why."""

    not_ready: int = 0
    """They run, and are not ready yet or any more."""

    pending: int = 0
    """They have no node yet, or their containers were not started yet."""

    terminating: int = 0
    """They are being deleted."""


class PolicyCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the policy in force and of its alternative."""

    adaptive_pod_seconds: float
    adaptive_cold_requests: float
    """Requests that came while no pod was ready."""

    knative_pod_seconds: float
    knative_cold_requests: float

    covered_s: float
    """Time that they are of, in seconds: a day at most."""


class RevisionNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One revision after one decision. Loads are in the unit of the load metric; None where they are unknown."""

    namespace: str
    configuration: str
    revision: str

    desired_count: int | None
    """Pods wanted, within the bounds; None while there is no data to decide on."""

    requested_count: int
    """Pods that its scale asks for."""

    ready_count: int

    is_panic: bool
    """Whether the panic window decides."""

    rule: str
    """The rule that had the last word; one of a closed list."""

    metric: str = "concurrency"
    """Name of the load metric that scales it."""

    stable_load: float | None = None
    panic_load: float | None = None
    target_load: float | None = None

    excess_burst_capacity: int | None = None
    """Requests that may still arrive at once; below 0 there is too little room."""

    learnt_target: float | None = None
    """The learnt target of requests in flight per pod, in force or not."""
