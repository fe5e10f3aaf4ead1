"""Every metric of every daemon: its name, kind, labels and meaning. docs/metrics.md is generated from this table.

Knative's metrics keep its present names (``kn_...`` and OpenTelemetry's ``http_server_...``, as Prometheus spells
them); others begin with ``serving_``. Labels are bounded: rows of deleted revisions are dropped, classes and reasons
are closed lists, and no client input becomes a label. The module imports only msgspec, because the sidecar uses it.
"""

import enum
from collections.abc import Iterator

import msgspec

from serving.core.model.loadmetric import ANY_GAUGE, CONCURRENCY, LOAD_METRICS, RPS
from serving.core.model.ports import ACTIVATOR_METRICS_PORT, CONTROL_METRICS_PORT, STATS_PORT

REVISION_LABELS = ("k8s_namespace_name", "kn_configuration_name", "kn_revision_name")

_GROUP_LABEL = "node_group"
_CLOUD_LABELS = ("cloud_provider", "id", _GROUP_LABEL)

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of time histograms: OpenTelemetry's for HTTP, finer below 5 ms, and up to a minute for cold starts."""

_HEAD = """\
# Metrics

Each daemon serves its metrics at `/metrics`, as Prometheus text, or as OpenMetrics with exemplars if the Accept header
requests it. `config/monitoring` has dashboards, alert rules and a scrape configuration. A scrape needs the
[query token](dashboard-reference.md#the-query-token).

The metrics of a revision have the labels {labels},
and disappear with the revision.

Histograms of time have the bounds
{bounds} s. Each page also has `process_*` and `python_info`.
"""


class MetricKind(enum.StrEnum):
    """The kind of a metric: a counter, a gauge or a histogram."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A metric family of a page. ``help_text`` is its meaning in one sentence."""

    name: str
    kind: MetricKind
    help_text: str
    labels: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one daemon, and the address of its page."""

    daemon: str
    where: str
    metrics: tuple[MetricSpec, ...]


def _counter(name: str, help_text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.COUNTER, help_text=help_text, labels=labels)


def _gauge(name: str, help_text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.GAUGE, help_text=help_text, labels=labels)


def _revision_gauge(name: str, help_text: str) -> MetricSpec:
    return _gauge(name, help_text, *REVISION_LABELS)


def load_prefix(metric: str) -> str:
    """The prefix of the gauges of a load metric: ``kn_revision_queue_length``."""
    return f"kn_revision_{metric.replace('-', '_')}"


def _gauges_of_app_metrics() -> Iterator[MetricSpec]:
    """The three gauges of each load metric that exists only in this project."""
    for metric in (*LOAD_METRICS.values(), ANY_GAUGE):
        if metric not in (CONCURRENCY, RPS):
            name = load_prefix(metric.name)
            text = f"Mean load ({metric.unit}) over the stable window, for revisions with the metric {metric.name}."
            yield _revision_gauge(f"{name}_stable", text)
            yield _revision_gauge(f"{name}_panic", f"Mean load ({metric.unit}) over the panic window.")
            yield _revision_gauge(f"{name}_target", f"Target load ({metric.unit}) per pod.")


def _histogram(name: str, help_text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.HISTOGRAM, help_text=help_text, labels=labels)


def _group(name: str, help_text: str, kind: MetricKind = MetricKind.GAUGE) -> MetricSpec:
    return MetricSpec(name=f"escalator_node_group_{name}", kind=kind, help_text=help_text, labels=(_GROUP_LABEL,))


def _own(name: str, help_text: str, kind: MetricKind = MetricKind.GAUGE) -> MetricSpec:
    return MetricSpec(name=f"serving_nodegroup_{name}", kind=kind, help_text=help_text, labels=(_GROUP_LABEL,))


def _cloud(name: str, help_text: str) -> MetricSpec:
    return _gauge(f"escalator_cloud_provider_{name}", help_text, *_CLOUD_LABELS)


ACTIVATOR_METRICS = (
    _histogram(
        "http_server_request_duration_seconds",
        "Time from the arrival of a request's headers to the end of its response. response_code_class is"
        " 2xx to 5xx, or none without a response. A request's traceparent is its exemplar.",
        *REVISION_LABELS,
        "response_code_class",
    ),
    _histogram(
        "serving_request_queue_seconds",
        "Time for which requests waited for a pod. Requests that got a slot immediately do not count. Has exemplars.",
        *REVISION_LABELS,
    ),
    _histogram(
        "serving_cold_start_duration_seconds",
        "Time from the first request that found no pod until a pod got this request. Each wake of a revision counts once."
        " Has exemplars.",
        *REVISION_LABELS,
    ),
    _counter(
        "serving_wakes_total",
        "Requests for pods by the activator, by reason: flip (the activator sets the revision to Active); first (a first"
        " request waits); doubled (twice as many requests wait); exceeded (requests exceed the desired pods' capacity).",
        *REVISION_LABELS,
        "reason",
    ),
    _counter(
        "serving_requests_refused_total",
        "Requests that got 503, by reason: queue-count, queue-bytes, waited, failed, unknown, retired, shut-down.",
        *REVISION_LABELS,
        "reason",
    ),
    _counter(
        "serving_prefix_requests_total",
        "Requests whose prompt selects a pod: hit if the pod had read a prefix of the prompt, else miss.",
        *REVISION_LABELS,
        "result",
    ),
    _counter(
        "serving_prefix_blocks_total",
        "Blocks (of at least 256 bytes) of the prompts that select a pod: hit if the pod had read the block, else miss.",
        *REVISION_LABELS,
        "result",
    ),
    _revision_gauge("kn_revision_request_concurrency", "Requests in this activator, waiting and in flight."),
    _revision_gauge("serving_requests_waiting", "Requests that wait for a pod now."),
    _counter("serving_requests_unmatched_total", "Requests for unknown hosts, and probes."),
    _counter(
        "serving_http_refused_total", "Requests and connections rejected because they violated HTTP or a limit.", "code"
    ),
    _counter("serving_wrong_tokens_total", "Requests with a wrong token at private services."),
    _counter("serving_pods_unreachable_total", "Failed connections to pods."),
    _counter("serving_pods_lost_total", "Pods that ended before they responded to a request."),
    _counter("serving_pods_silent_total", "Ejections of pods that did not respond."),
    _counter(
        "serving_stat_frames_lost_total", "Frames of stats dropped because there was no connection to the autoscaler."
    ),
    _counter("serving_tls_handshakes_failed_total", "TLS handshakes that failed; the log has the reasons."),
    _gauge(
        "serving_certificate_expiry_timestamp_seconds",
        "Expiry of a certificate, in seconds since 1970.",
        "certificate",
    ),
    _gauge("kn_activator_stats_conn_reachable", "1 while this activator is connected to the autoscaler."),
)

AUTOSCALER_METRICS = (
    _revision_gauge(
        "kn_revision_pods_desired", "Number of pods that the last decision wants, within the revision's bounds."
    ),
    _revision_gauge("kn_revision_pods_requested", "Number of pods that the revision's scale requests."),
    _revision_gauge("kn_revision_pods_count", "Ready pods."),
    _revision_gauge("kn_revision_pods_not_ready_count", "Pods that run but are not ready."),
    _revision_gauge("kn_revision_pods_pending_count", "Pods without a node, or without started containers."),
    _revision_gauge("kn_revision_pods_terminating_count", "Terminating pods."),
    _revision_gauge("serving_revision_pods_dormant", "Ready pods that are dormant."),
    _counter("serving_revision_oom_kills_total", "Containers that ran out of memory.", *REVISION_LABELS),
    _counter("serving_revision_restarts_total", "Restarts of containers in the revision's pods.", *REVISION_LABELS),
    _revision_gauge("kn_revision_panic_mode", "1 while the panic window determines the number of pods."),
    _revision_gauge("kn_revision_concurrency_stable", "Mean requests in flight over the stable window."),
    _revision_gauge("kn_revision_concurrency_panic", "Mean requests in flight over the panic window."),
    _revision_gauge("kn_revision_concurrency_target", "Target of requests in flight per pod."),
    _revision_gauge("kn_revision_rps_stable", "Mean requests a second over the stable window."),
    _revision_gauge("kn_revision_rps_panic", "Mean requests a second over the panic window."),
    _revision_gauge("kn_revision_rps_target", "Target of requests a second per pod."),
    *_gauges_of_app_metrics(),
    _revision_gauge(
        "kn_revision_capacity_excess",
        "Excess burst capacity in requests. Below 0 the ready pods lack capacity for the target burst capacity.",
    ),
    _gauge(
        "serving_policy_day_pod_seconds",
        "Pod-seconds over the last day, measured for the policy in force, estimated for the policy not in force.",
        *REVISION_LABELS,
        "policy",
    ),
    _gauge(
        "serving_policy_day_cold_requests",
        "Requests over the last day that arrived while no pod was ready, measured for the policy in force, "
        "estimated for the policy not in force.",
        *REVISION_LABELS,
        "policy",
    ),
    _counter("serving_decisions_total", "Decisions by the rule that determined the number of pods.", "rule"),
    _gauge("autoscaler_revisions", "Revisions that this autoscaler scales."),
    _gauge(
        "autoscaler_shards", "Buckets of revisions whose lease this autoscaler has; 0 if there is a single autoscaler."
    ),
    _gauge("autoscaler_policies", "ScalingPolicies that are evaluated."),
    _gauge("autoscaler_stats_connections_open", "Connected pods and activators."),
    _counter("autoscaler_decisions_total", "Number of decisions."),
    _counter("autoscaler_decision_failures_total", "Decisions that failed with an internal error."),
    _counter("autoscaler_write_failures_total", "Writes to the API that failed and are retried."),
    _counter("autoscaler_unknown_stats_total", "Stats of revisions that this autoscaler does not scale."),
    _counter("autoscaler_scale_writes_total", "Writes of a scale."),
    _counter("autoscaler_reserve_writes_total", "Writes that set a revision to Reserve (zero)."),
    _counter("autoscaler_wake_writes_total", "Writes that set a revision to Active because a policy wanted pods."),
    _counter("autoscaler_reserve_conflicts_total", "Writes of Reserve that conflicted with a change of the revision."),
    _counter("autoscaler_victim_writes_total", "Writes that mark the pod to be removed first."),
    _counter(
        "autoscaler_anticipated_writes_total", "Writes and removals of the annotation with a revision's expected pods."
    ),
    _revision_gauge(
        "serving_learnt_target",
        "Learnt target of requests in flight per pod, before the target utilization; also if it has no effect.",
    ),
    _counter("autoscaler_learnt_target_writes_total", "Writes of a revision's learnt target."),
    _counter("autoscaler_learnt_writes_total", "Writes of the adaptive policy's data about a revision."),
    _counter("autoscaler_path_writes_total", "Writes of a revision's traffic path."),
    _counter("autoscaler_scale_conflicts_total", "Writes of a scale that were repeated after a conflict."),
    _counter("autoscaler_proofs_total", "Successful probes of the activator before a scale to zero."),
    _counter("autoscaler_proof_failures_total", "Failed probes of the activator before a scale to zero."),
    _counter("autoscaler_policy_status_writes_total", "Writes of a ScalingPolicy's status."),
    _counter("autoscaler_pod_resizes_total", "Pods resized in place because they became dormant, woke or started."),
    _counter("autoscaler_pod_resizes_refused_total", "Resizes that the API rejected, for example because of a quota."),
    _counter("autoscaler_policy_failures_total", "Evaluations of a ScalingPolicy that failed."),
    _counter("autoscaler_stats_frames_total", "Received frames of stats."),
    _counter(
        "autoscaler_stats_malformed_frames_total",
        "Frames of stats that could not be decoded or were out of range.",
    ),
    _counter("autoscaler_stats_late_frames_total", "Frames of stats rejected because they arrived too late."),
    _counter("autoscaler_stats_flooding_frames_total", "Frames of stats rejected because a sender exceeded its rate."),
    _counter("autoscaler_stats_connections_total", "Accepted connections of pods and activators."),
    _counter("autoscaler_stats_replaced_connections_total", "Accepted connections that replaced an older connection."),
    _counter("autoscaler_stats_silent_connections_total", "Connections closed because no bytes arrived."),
    _counter("autoscaler_stats_unauthorized_connections_total", "Connections rejected because of a wrong token."),
    _counter("autoscaler_stats_refused_connections_total", "Connections rejected because too many were open."),
    _counter("autoscaler_stats_announced_pods_total", "Ready pods that the autoscaler announced to the activators."),
    _counter(
        "autoscaler_stats_refused_announcements_total",
        "Announcements of ready pods rejected because of a wrong address, token or pod.",
    ),
    _counter("autoscaler_token_reviews_total", "Reviews of pods' tokens by the API server."),
    _counter("autoscaler_token_reviews_failed_total", "Token reviews without a response, or above the rate limit."),
    _counter("autoscaler_token_claims_refused_total", "Pods that sent an invalid token or the token of another pod."),
    _counter("autoscaler_stats_relayed_stats_total", "Stats that another autoscaler forwarded to this autoscaler."),
    _counter("autoscaler_stats_passed_on_total", "Stats forwarded to the autoscaler that scales the revision."),
    _counter("autoscaler_stats_ownerless_total", "Stats of revisions that no autoscaler scales at that time."),
    _counter(
        "autoscaler_stats_relay_dropped_frames_total",
        "Frames dropped because there was no connection to the autoscaler that scales the revision.",
    ),
)

CONTROLLER_METRICS = (
    _counter(
        "serving_reconciles_total",
        "Reconciliations of an object by result: done, conflict, failed.",
        "resource",
        "result",
    ),
    _histogram(
        "serving_reconcile_duration_seconds", "Time of one reconciliation of an object, with its writes.", "resource"
    ),
    _gauge("serving_reconcile_queue_depth", "Objects that wait for reconciliation."),
    _gauge("serving_controller_leader", "1 if this controller has the lease, 0 while another controller has it."),
    _counter("serving_controller_writes_total", "Objects that the controller created, patched or deleted."),
)

LOCAL_METRICS = (
    _gauge("serving_local_pods", "Pods that run on this machine."),
    _histogram("serving_api_request_duration_seconds", "Time of one API request, without watches.", "verb"),
    _counter("serving_api_requests_total", "API requests.", "verb", "response_code_class"),
    _counter("serving_api_unauthorized_total", "API requests without a valid token, by code: 401 or 429.", "code"),
)

# Escalator's names, so that its dashboards and alerts keep working, and a few more. Where a name contradicts its value,
# a second name states the value. Source: atlassian/escalator 043bb1b, docs/metrics.md and pkg/metrics/metrics.go.
NODEGROUP_METRICS = (
    _gauge("escalator_run_count", "Passes over all groups since the start."),
    _group("nodes", "Nodes of the group in any state."),
    _group("untainted_nodes", "Nodes that accept pods and count as capacity."),
    _group("tainted_nodes", "Nodes that are marked for removal."),
    _group("force_tainted_nodes", "Nodes with Escalator's taint for forced removal."),
    _group("cordoned_nodes", "Nodes that an administrator has cordoned."),
    _group("unhealthy_nodes", "1 while the group is healthy, despite the name, as in Escalator."),
    _group("pods", "Pods that count for the group's utilisation."),
    _group("pods_evicted", "Pods evicted, or deleted with their node.", MetricKind.COUNTER),
    _group("cpu_percent", "Cpu requests of pods, in percent of the capacity of untainted nodes; 0 without nodes."),
    _group("mem_percent", "Memory requests of pods, in percent of the capacity of untainted nodes; 0 without nodes."),
    _group("cpu_request", "Cpu requests of pods, in millicores."),
    _group("mem_request", "Memory requests of pods, in bytes."),
    _group("cpu_capacity", "Cpu capacity of untainted nodes, in millicores."),
    _group("mem_capacity", "Memory capacity of untainted nodes, in bytes."),
    *(
        _group(
            f"{amount}_{what}_{by}",
            f"{'Cpu' if amount == 'cpu' else 'Memory'} {clause} {'cpu' if by == 'cpu' else 'memory'}, in"
            f" {'millicores' if amount == 'cpu' else 'bytes'}.",
        )
        for what, clause in (
            ("request_largest_pending", "request of the pending pod that requests the most"),
            ("capacity_largest_available", "that is free on the untainted node with the most free"),
        )
        for amount in ("cpu", "mem")
        for by in ("cpu", "mem")
    ),
    _group("taint_event", "Nodes tainted since the start."),
    _group("untaint_event", "Nodes untainted since the start."),
    _group("scale_lock", "1 while the scale lock is in force."),
    _group("scale_lock_check_was_locked", "Passes that found the scale lock in force.", MetricKind.COUNTER),
    _group("scale_lock_duration", "Seconds for which the scale lock was in force.", MetricKind.HISTOGRAM),
    _group("node_registration_lag", "Seconds from a request for a node until its creation.", MetricKind.HISTOGRAM),
    _group("scale_delta", "Nodes that the last pass wanted to add; below 0, to remove."),
    _counter("escalator_node_delete_errors", "Deletions of a node that failed.", _GROUP_LABEL),
    _cloud("min_size", "Lower bound of the cloud's group."),
    _cloud("max_size", "Upper bound of the cloud's group."),
    _cloud("target_size", "Target number of machines of the cloud's group."),
    _cloud("size", "Machines of the cloud's group that are nodes."),
    _own("healthy", "1 if enough of the newest nodes are ready."),
    _own("breaker_open", "1 while the circuit breaker of scale-ups is open or half-open."),
    _own("nodes_coming", "Machines in the cloud's target that are not nodes yet."),
    _own("unregistered_machines", "Machines that did not become nodes in time, or lack the group's label."),
    _own("anticipated_pods", "Expected pods that the group counts although they do not exist yet."),
    _own("effects_failed_total", "Taints, evictions, deletions and scale-ups that failed.", MetricKind.COUNTER),
    _counter(
        "serving_nodegroup_cloud_errors_total",
        "Failed queries of the cloud at the start of a pass, by reason: CloudRefused, CloudUnavailable.",
        _GROUP_LABEL,
        "reason",
    ),
    _histogram("serving_nodegroup_pass_duration_seconds", "Time of one pass over all groups, with its writes."),
    _gauge("serving_nodegroup_leader", "1 if this daemon has the lease, 0 while another daemon has it."),
)

QUEUEPROXY_METRICS = (
    _counter(
        "queueproxy_requests_total",
        "Ended requests by class of the response's status; the class is none if there was no response.",
        "class",
    ),
    _gauge("queueproxy_requests_inside", "Requests in this pod, waiting and in flight."),
    _gauge("queueproxy_requests_waiting", "Requests that wait in this pod for the app."),
    _gauge("queueproxy_client_connections", "Open connections of clients."),
    _gauge("queueproxy_app_connections", "Open connections to the app."),
    _counter("queueproxy_http_refused_total", "Requests and connections rejected before the app got them.", "code"),
    _gauge("queueproxy_app_ready", "1 while the app is ready."),
    _counter("queueproxy_stats_sent_total", "Stats sent to the autoscaler."),
    _counter("queueproxy_stats_unsent_total", "Stats for the autoscaler dropped because there was no connection."),
)

COMMON_METRICS = (
    _histogram("serving_loop_lag_seconds", "Delay of the event loop, measured once a second."),
    _counter(
        "serving_unreadable_objects_total",
        "Objects skipped because they cannot be parsed; the log names them.",
        "resource",
    ),
)

TABLES = (
    Table(
        daemon="activator",
        where=f"`metrics-address` of its settings, {ACTIVATOR_METRICS_PORT}",
        metrics=ACTIVATOR_METRICS,
    ),
    Table(daemon="autoscaler", where=f"the port of stats, {STATS_PORT}", metrics=AUTOSCALER_METRICS),
    Table(
        daemon="controller",
        where=f"`metrics-address` of its settings, {CONTROL_METRICS_PORT}",
        metrics=CONTROLLER_METRICS,
    ),
    Table(daemon="control (one machine)", where="the same page as the controller", metrics=LOCAL_METRICS),
    Table(daemon="nodegroup", where="`metrics-address` of its settings, 6085", metrics=NODEGROUP_METRICS),
    Table(daemon="queue-proxy", where="each pod, port 8022", metrics=QUEUEPROXY_METRICS),
    Table(daemon="all but the queue-proxy", where="the page of each", metrics=COMMON_METRICS),
)
"""All tables, in the order of the documentation page."""


def named(metrics: tuple[MetricSpec, ...], name: str) -> MetricSpec:
    """The metric with this name in a table; it must exist."""
    return next(metric for metric in metrics if metric.name == name)


def render_page() -> str:
    """Render the documentation page of all metrics."""
    head = _HEAD.format(
        labels=", ".join(f"`{name}`" for name in REVISION_LABELS),
        bounds=", ".join(f"{bound:g}" for bound in BUCKETS_S),
    )
    return "\n".join([head, *(_table(table) for table in TABLES)])


def _table(table: Table) -> str:
    rows = [_row(metric) for metric in table.metrics]
    head = ["|metric|kind|labels|meaning|", "|---|---|---|---|"]
    return "\n".join([f"## {table.daemon}: {table.where}", "", *head, *rows, ""])


def _row(metric: MetricSpec) -> str:
    is_of_revision = metric.labels[: len(REVISION_LABELS)] == REVISION_LABELS
    rest = metric.labels[len(REVISION_LABELS) :] if is_of_revision else metric.labels
    labels = ", ".join([*(["revision's"] if is_of_revision else []), *(f"`{label}`" for label in rest)])
    return f"|`{metric.name}`|{metric.kind}|{labels}|{metric.help_text}|"
