"""The metrics of the node group daemon: Escalator's names, so that its dashboards and alerts carry over, and a few more.

Where a name of Escalator's says the opposite of its value, a name beside it says what it is. Source of names: atlassian/escalator
043bb1b, docs/metrics.md and pkg/metrics/metrics.go.
"""

from serving.metrics.spec import MetricKind, MetricSpec

_GROUP_LABEL = "node_group"
_CLOUD_LABELS = ("cloud_provider", "id", _GROUP_LABEL)


def _group(name: str, help_text: str, kind: MetricKind = MetricKind.GAUGE) -> MetricSpec:
    return MetricSpec(name=f"escalator_node_group_{name}", kind=kind, help_text=help_text, labels=(_GROUP_LABEL,))


def _own(name: str, help_text: str, kind: MetricKind = MetricKind.GAUGE) -> MetricSpec:
    return MetricSpec(name=f"serving_nodegroup_{name}", kind=kind, help_text=help_text, labels=(_GROUP_LABEL,))


def _cloud(name: str, help_text: str) -> MetricSpec:
    full = f"escalator_cloud_provider_{name}"
    return MetricSpec(name=full, kind=MetricKind.GAUGE, help_text=help_text, labels=_CLOUD_LABELS)


NODEGROUP_METRICS = (
    MetricSpec(name="escalator_run_count", kind=MetricKind.GAUGE, help_text="Passes over all groups since the start."),
    _group("nodes", "Nodes of the group in any state."),
    _group("untainted_nodes", "Nodes that take pods and count as capacity."),
    _group("tainted_nodes", "Nodes that are marked for removal."),
    _group("force_tainted_nodes", "Nodes whose removal is forced."),
    _group("cordoned_nodes", "Nodes that an administrator has cordoned."),
    _group("unhealthy_nodes", "1 while the group is healthy, as in Escalator; see serving_nodegroup_healthy."),
    _group("pods", "Pods that count for the group."),
    _group("pods_evicted", "Pods that were evicted, or lost with their node.", MetricKind.COUNTER),
    _group("cpu_percent", "Cpu that pods request, in percent of what untainted nodes offer; 0 from zero nodes."),
    _group("mem_percent", "The same of memory."),
    _group("cpu_request", "Cpu that pods request, in millicores."),
    _group("mem_request", "Memory that pods request, in bytes."),
    _group("cpu_capacity", "Cpu that untainted nodes offer, in millicores."),
    _group("mem_capacity", "Memory that untainted nodes offer, in bytes."),
    *(
        _group(
            f"{amount}_{what}_{by}",
            f"{'Cpu' if amount == 'cpu' else 'Memory'} {said} the most {'cpu' if by == 'cpu' else 'memory'}, in"
            f" {'millicores' if amount == 'cpu' else 'bytes'}.",
        )
        for what, said in (
            ("request_largest_pending", "that the pending pod requests which requests"),
            ("capacity_largest_available", "that is left on the untainted node which has"),
        )
        for amount in ("cpu", "mem")
        for by in ("cpu", "mem")
    ),
    _group("taint_event", "Nodes that were tainted since the start."),
    _group("untaint_event", "Nodes that were untainted since the start."),
    _group("scale_lock", "1 while the scale lock holds."),
    _group("scale_lock_check_was_locked", "Passes that found the lock in force.", MetricKind.COUNTER),
    _group("scale_lock_duration", "Seconds for which the scale lock held.", MetricKind.HISTOGRAM),
    _group("node_registration_lag", "Seconds from asking the cloud until a node was created.", MetricKind.HISTOGRAM),
    _group("scale_delta", "Nodes by which the last pass wanted to change the group."),
    MetricSpec(
        name="escalator_node_delete_errors",
        kind=MetricKind.COUNTER,
        help_text="Deletions of a node that failed.",
        labels=(_GROUP_LABEL,),
    ),
    _cloud("min_size", "Lower bound of the cloud's group."),
    _cloud("max_size", "Upper bound of the cloud's group."),
    _cloud("target_size", "Machines that the cloud aims at."),
    _cloud("size", "Machines that are nodes."),
    _own("healthy", "1 unless too many of the newest nodes are not ready."),
    _own("breaker_open", "1 while the circuit breaker of scale-ups is open or half-open."),
    _own("nodes_coming", "Machines that the cloud aims at and that are no nodes yet."),
    _own(
        "unregistered_machines",
        "Of them, those that should be nodes by now: they did not register, or carry no label of the group.",
    ),
    _own("anticipated_pods", "Pods that do not exist yet and that the group counts all the same."),
    _own("effects_failed_total", "Taints, evictions, deletions and scale-ups that failed.", MetricKind.COUNTER),
    MetricSpec(
        name="serving_nodegroup_cloud_errors_total",
        kind=MetricKind.COUNTER,
        help_text="Calls of the cloud that failed before a pass, by reason: CloudRefused, CloudUnavailable.",
        labels=(_GROUP_LABEL, "reason"),
    ),
    MetricSpec(
        name="serving_nodegroup_pass_duration_seconds",
        kind=MetricKind.HISTOGRAM,
        help_text="Time of one pass over all groups, with its effects.",
    ),
    MetricSpec(
        name="serving_nodegroup_leader",
        kind=MetricKind.GAUGE,
        help_text="1 if this daemon works, 0 while another one has the lease.",
    ),
)
