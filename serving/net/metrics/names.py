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

Made by `make config` from `serving/net/metrics/names.py`; edit that. Each daemon has one page, `/metrics`, in Prometheus'
text or, where the Accept header asks, in OpenMetrics with exemplars. Dashboards, alert rules and a scrape configuration
are in `config/monitoring`. A page needs the [query token](dashboard-reference.md#the-query-token).

Rows of a revision have the labels {labels},
and are gone when the revision is. Histograms of time have the bounds
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
            text = f"Mean load ({metric.unit}) over the stable window, of revisions that scale on {metric.name}."
            yield _revision_gauge(f"{name}_stable", text)
            yield _revision_gauge(f"{name}_panic", "The same over the panic window.")
            yield _revision_gauge(f"{name}_target", f"Load ({metric.unit}) that a pod should have.")


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
        "Time from a request's whole head to the end of its answer. response_code_class is 2xx to 5xx, or none where "
        "nothing was answered. A traceparent that came in is its exemplar.",
        *REVISION_LABELS,
        "response_code_class",
    ),
    _histogram(
        "serving_request_queue_seconds",
        "Time that requests waited for a pod; those that found a free slot at once are not in it. With exemplars.",
        *REVISION_LABELS,
    ),
    _histogram(
        "serving_cold_start_duration_seconds",
        "Time from the first request that found no pod to a pod that took it, once for each wake. With exemplars.",
        *REVISION_LABELS,
    ),
    _counter(
        "serving_wakes_total",
        "What was done to get pods: flip made a revision Active; first, doubled and exceeded poked the autoscaler.",
        *REVISION_LABELS,
        "reason",
    ),
    _counter(
        "serving_requests_refused_total",
        "Requests that were answered with 503: queue-count, queue-bytes, waited, failed, unknown, retired, shut-down.",
        *REVISION_LABELS,
        "reason",
    ),
    _counter(
        "serving_prefix_requests_total",
        "Requests where prompts choose the pod: hit if it had read a prefix, else miss.",
        *REVISION_LABELS,
        "result",
    ),
    _counter(
        "serving_prefix_blocks_total",
        "Blocks of these prompts, of 256 bytes and growing: known to their pod, or new.",
        *REVISION_LABELS,
        "result",
    ),
    _revision_gauge("kn_revision_request_concurrency", "Requests inside this activator, waiting and in flight."),
    _revision_gauge("serving_requests_waiting", "Requests that wait for a pod now."),
    _counter("serving_requests_unmatched_total", "Requests for a host that no service has, and probes."),
    _counter("serving_http_refused_total", "Requests and connections that broke HTTP or its limits, by code.", "code"),
    _counter("serving_wrong_tokens_total", "Requests with a wrong token at private services."),
    _counter("serving_pods_unreachable_total", "Times that a pod was listed and could not be connected to."),
    _counter("serving_pods_lost_total", "Times that a pod took a request and died before it answered."),
    _counter("serving_pods_silent_total", "Times that a pod answered nothing and was ejected for a while."),
    _counter("serving_stat_frames_lost_total", "Frames for the autoscaler that found no connection and were dropped."),
    _counter("serving_tls_handshakes_failed_total", "Handshakes of TLS that failed; the log has their reasons."),
    _gauge(
        "serving_certificate_expiry_timestamp_seconds",
        "When a certificate that is served ends, in seconds since 1970.",
        "certificate",
    ),
    _gauge("kn_activator_stats_conn_reachable", "1 while the autoscaler takes this activator's stats."),
)

AUTOSCALER_METRICS = (
    _revision_gauge("kn_revision_pods_desired", "Pods that the decision asks for, within the bounds."),
    _revision_gauge("kn_revision_pods_requested", "Pods that the revision's scale asks for."),
    _revision_gauge("kn_revision_pods_count", "Pods that are ready."),
    _revision_gauge("kn_revision_pods_not_ready_count", "Pods that run and are not ready."),
    _revision_gauge("kn_revision_pods_pending_count", "Pods without a node, or whose containers were not started yet."),
    _revision_gauge("kn_revision_pods_terminating_count", "Pods that are being deleted."),
    _revision_gauge("serving_revision_pods_dormant", "Ready pods whose app sleeps until the next request."),
    _counter(
        "serving_revision_oom_kills_total",
        "Containers of the revision's pods that ran out of memory and were killed.",
        *REVISION_LABELS,
    ),
    _counter("serving_revision_restarts_total", "Restarts of containers in the revision's pods.", *REVISION_LABELS),
    _revision_gauge("kn_revision_panic_mode", "1 while the panic window decides."),
    _revision_gauge("kn_revision_concurrency_stable", "Mean requests in flight over the stable window."),
    _revision_gauge("kn_revision_concurrency_panic", "The same over the panic window."),
    _revision_gauge("kn_revision_concurrency_target", "Requests in flight that a pod should have."),
    _revision_gauge(
        "kn_revision_rps_stable", "Mean requests a second over the stable window, of revisions that scale on them."
    ),
    _revision_gauge("kn_revision_rps_panic", "The same over the panic window."),
    _revision_gauge("kn_revision_rps_target", "Requests a second that a pod should have."),
    *_gauges_of_app_metrics(),
    _revision_gauge(
        "kn_revision_capacity_excess",
        "Requests that may still arrive at once beyond the burst capacity asked for; below 0 there is too little room.",
    ),
    _gauge(
        "serving_policy_day_pod_seconds",
        "Pod-seconds over the last day: of the policy in force, and what the other would have taken (estimated).",
        *REVISION_LABELS,
        "policy",
    ),
    _gauge(
        "serving_policy_day_cold_requests",
        "Requests over the last day that came while no pod was ready: the same two.",
        *REVISION_LABELS,
        "policy",
    ),
    _counter("serving_decisions_total", "Decisions by the rule that had the last word on the count.", "rule"),
    _gauge("autoscaler_revisions", "Revisions that are scaled."),
    _gauge("autoscaler_shards", "Shards of the revisions that this autoscaler has; 0 where they are not shared out."),
    _gauge("autoscaler_policies", "ScalingPolicies that are followed."),
    _gauge("autoscaler_stats_connections_open", "Pods and activators that are connected."),
    _counter("autoscaler_decisions_total", "All decisions."),
    _counter("autoscaler_decision_failures_total", "Decisions that ended in an internal error."),
    _counter("autoscaler_write_failures_total", "Writes that failed and come again."),
    _counter("autoscaler_unknown_stats_total", "Stats of revisions that are not scaled here."),
    _counter("autoscaler_scale_writes_total", "Scales that were written."),
    _counter("autoscaler_reserve_writes_total", "Revisions that were put into reserve."),
    _counter("autoscaler_wake_writes_total", "Revisions that were made Active because a policy wanted pods."),
    _counter("autoscaler_reserve_conflicts_total", "Of those, writes that came too late."),
    _counter("autoscaler_victim_writes_total", "Pods that were marked as the next to go."),
    _counter("autoscaler_anticipated_writes_total", "Times that the pods wanted soon were published, or withdrawn."),
    _revision_gauge(
        "serving_learnt_target",
        "Requests in flight that a pod should have at once, as learnt, before the utilisation; also where it is not in force.",
    ),
    _counter("autoscaler_learnt_target_writes_total", "Saves of a revision's learnt target."),
    _counter("autoscaler_learnt_writes_total", "Times that what the adaptive policy learnt of a revision was saved."),
    _counter("autoscaler_path_writes_total", "Times that a revision's path of requests was written."),
    _counter(
        "autoscaler_scale_conflicts_total", "Writes of a scale that conflicted with another writer and were repeated."
    ),
    _counter("autoscaler_proofs_total", "Times that the activator was proved to be in the path."),
    _counter("autoscaler_proof_failures_total", "Times that it was not."),
    _counter("autoscaler_policy_status_writes_total", "Statuses of ScalingPolicies that were written."),
    _counter("autoscaler_pod_resizes_total", "Pods resized in place: dormant, awake again, or started."),
    _counter("autoscaler_pod_resizes_refused_total", "Resizes that the API refused, as for a quota."),
    _counter("autoscaler_policy_failures_total", "ScalingPolicies that could not be worked on."),
    _counter("autoscaler_stats_frames_total", "Frames of stats that arrived."),
    _counter("autoscaler_stats_malformed_frames_total", "Of those, refused: not decodable or out of bounds."),
    _counter("autoscaler_stats_late_frames_total", "Of those, refused: underway for too long."),
    _counter("autoscaler_stats_flooding_frames_total", "Of those, refused: more in a second than a sender may send."),
    _counter("autoscaler_stats_connections_total", "Connections that were let in."),
    _counter("autoscaler_stats_replaced_connections_total", "Of those, connections that replaced an older one."),
    _counter("autoscaler_stats_silent_connections_total", "Connections that were cut because nothing came."),
    _counter("autoscaler_stats_unauthorized_connections_total", "Connections without the right token."),
    _counter("autoscaler_stats_refused_connections_total", "Connections beyond the most that are kept."),
    _counter("autoscaler_stats_announced_pods_total", "Ready pods that were announced to the activators."),
    _counter("autoscaler_stats_refused_announcements_total", "Announcements with a wrong address, token or pod."),
    _counter("autoscaler_token_reviews_total", "Questions to the API server whose a pod's token is."),
    _counter("autoscaler_token_reviews_failed_total", "Of those, without an answer, or not asked because of too many."),
    _counter("autoscaler_token_claims_refused_total", "Pods whose token was not theirs, or not good."),
    _counter("autoscaler_stats_relayed_stats_total", "Stats that another autoscaler passed on to this one."),
    _counter("autoscaler_stats_passed_on_total", "Stats that were passed on to the autoscaler whose revision it is."),
    _counter("autoscaler_stats_ownerless_total", "Stats of revisions that no autoscaler has at the moment."),
    _counter("autoscaler_stats_relay_dropped_frames_total", "Frames for other autoscalers that found no connection."),
)

CONTROLLER_METRICS = (
    _counter(
        "serving_reconciles_total", "Looks at one resource by result: done, conflict, failed.", "resource", "result"
    ),
    _histogram("serving_reconcile_duration_seconds", "Time of one look with its writes.", "resource"),
    _gauge("serving_reconcile_queue_depth", "Resources that wait to be looked at."),
    _gauge("serving_controller_leader", "1 if this controller works, 0 while another one has the lease."),
    _counter("serving_controller_writes_total", "Objects that were created, patched or deleted."),
)

LOCAL_METRICS = (
    _gauge("serving_local_pods", "Pods that run on this machine."),
    _histogram("serving_api_request_duration_seconds", "Time of one call of the API, watches left out.", "verb"),
    _counter("serving_api_requests_total", "Calls of the API.", "verb", "response_code_class"),
    _counter("serving_api_unauthorized_total", "Calls without a valid token, by code: 401 or 429.", "code"),
)

# Escalator's names, so that its dashboards and alerts keep working, and a few more. Where a name contradicts its value,
# a second name states the value. Source: atlassian/escalator 043bb1b, docs/metrics.md and pkg/metrics/metrics.go.
NODEGROUP_METRICS = (
    _gauge("escalator_run_count", "Passes over all groups since the start."),
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
            f"{'Cpu' if amount == 'cpu' else 'Memory'} {clause} the most {'cpu' if by == 'cpu' else 'memory'}, in"
            f" {'millicores' if amount == 'cpu' else 'bytes'}.",
        )
        for what, clause in (
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
    _counter("escalator_node_delete_errors", "Deletions of a node that failed.", _GROUP_LABEL),
    _cloud("min_size", "Lower bound of the cloud's group."),
    _cloud("max_size", "Upper bound of the cloud's group."),
    _cloud("target_size", "Machines that the cloud aims at."),
    _cloud("size", "Machines that are nodes."),
    _own("healthy", "1 unless too many of the newest nodes are not ready."),
    _own("breaker_open", "1 while the circuit breaker of scale-ups is open or half-open."),
    _own("nodes_coming", "Machines in the cloud's target that are not nodes yet."),
    _own(
        "unregistered_machines",
        "Of them, those that should be nodes by now: they did not register, or carry no label of the group.",
    ),
    _own("anticipated_pods", "Pods that do not exist yet and that the group counts all the same."),
    _own("effects_failed_total", "Taints, evictions, deletions and scale-ups that failed.", MetricKind.COUNTER),
    _counter(
        "serving_nodegroup_cloud_errors_total",
        "Calls of the cloud that failed before a pass, by reason: CloudRefused, CloudUnavailable.",
        _GROUP_LABEL,
        "reason",
    ),
    _histogram("serving_nodegroup_pass_duration_seconds", "Time of one pass over all groups, with its effects."),
    _gauge("serving_nodegroup_leader", "1 if this daemon works, 0 while another one has the lease."),
)

QUEUEPROXY_METRICS = (
    _counter(
        "queueproxy_requests_total", "Requests that have ended, by class of the status, none without one.", "class"
    ),
    _gauge("queueproxy_requests_inside", "Requests inside this pod, waiting and in flight."),
    _gauge("queueproxy_requests_waiting", "Requests that wait in this pod for the app."),
    _gauge("queueproxy_client_connections", "Connections of clients that are open."),
    _gauge("queueproxy_app_connections", "Connections to the app that are open."),
    _counter("queueproxy_http_refused_total", "The same of this pod: refused before the app, by code.", "code"),
    _gauge("queueproxy_app_ready", "1 while the app is ready."),
    _counter("queueproxy_stats_sent_total", "Stats that reached the autoscaler's connection."),
    _counter("queueproxy_stats_unsent_total", "Stats that found none and were dropped."),
)

COMMON_METRICS = (
    _histogram("serving_loop_lag_seconds", "Delay of the event loop, measured once a second."),
    _counter(
        "serving_unreadable_objects_total",
        "Objects that could not be read and were skipped; the log names them.",
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
