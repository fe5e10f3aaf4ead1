"""Removed settings, whose values are constants now.

A ConfigMap, variable or flag that still sets one changes nothing, and a warning says so. The value is the field of that
name in the daemon's record. Each mapping belongs to a daemon, and maps the dotted path of a field to its key in the
daemon's ConfigMap.
"""

from collections.abc import Mapping
from types import MappingProxyType


def _quirks(prefix: str, *names: str) -> dict[str, str]:
    """Removed quirk flags: the key of each by its dotted field."""
    return {f"{prefix}.{name}": f"{prefix}.{name.replace('_', '-')}" for name in names}


_HTTP = {
    "http.header_count_max": "http.header-count-max",
    "http.body_held_bytes_max": "http.body-held-bytes-max",
    "http.body_wait_max_s": "http.body-wait-max",
    "http.read_rate_min": "http.read-rate-min",
    "http.response_buffer_bytes_max": "http.response-buffer-bytes-max",
    "http.response_buffers_bytes_max": "http.response-buffers-bytes-max",
    "http.rate_grace_s": "http.rate-grace",
    "http.client_idle_max_s": "http.client-idle-max",
    "http.upstream_connect_max_s": "http.upstream-connect-max",
    "http.upstream_idle_max_s": "http.upstream-idle-max",
    "http.tunnel_age_max_s": "http.tunnel-age-max",
    "http.write_wait_max_s": "http.write-wait-max",
    "http.http2_streams_max": "http.http2-streams-max",
    "http.http2_count_period_s": "http.http2-count-period",
    "http.http2_resets_max": "http.http2-resets-max",
    "http.http2_pings_max": "http.http2-pings-max",
    "http.http2_settings_max": "http.http2-settings-max",
    "http.http2_idle_frames_max": "http.http2-idle-frames-max",
    "http.http2_continuations_max": "http.http2-continuations-max",
}
ACTIVATOR: Mapping[str, str] = MappingProxyType(
    {
        "open_share_max": "open-share-percentage",
        "unread_wait_max_s": "unread-wait-max",
        "first_free_concurrency_max": "first-free-concurrency-max",
        "pod_tries_max": "pod-tries-max",
        "eject_after_silence_s": "eject-after-silence",
        "revision_wait_max_s": "revision-wait-max",
        "report_period_s": "report-period",
        "poke_pause_min_s": "poke-pause-min",
        "flip_pause_first_s": "flip-pause-first",
        "flip_pause_max_s": "flip-pause-max",
        "announced_pod_max_s": "announced-pod-max",
        "handover_grace_s": "handover-grace",
        "recorded_requests_max": "recorded-requests-max",
        "tls.handshake_max_s": "tls.handshake-max",
        "otlp.metrics_period_s": "otlp.metrics-period",
        **_HTTP,
    }
)
AUTOSCALER: Mapping[str, str] = MappingProxyType(
    {
        "dormant_cost": "dormant-cost",
        "stats_connections_max": "stats-connections-max",
        "decisions_kept": "decisions-kept",
        "otlp.metrics_period_s": "otlp.metrics-period",
        "memory.available_min_ratio": "memory.available-min",
        "memory.stalled_max_ratio": "memory.stalled-max",
        "triggers.max_scale_down_amount": "triggers.max-scale-down-amount",
        "triggers.occupied_concurrency": "triggers.occupied-concurrency",
        "adaptive.keep_alive": "adaptive.keep-alive",
        "adaptive.keep_alive_min_s": "adaptive.keep-alive-min",
        "adaptive.keep_alive_start_max_s": "adaptive.keep-alive-start-max",
        "adaptive.keep_alive_max_s": "adaptive.keep-alive-max",
        "adaptive.keep_alive_bridge_s": "adaptive.keep-alive-bridge",
        "adaptive.pre_warming": "adaptive.pre-warming",
        "adaptive.pre_warming_per_minute": "adaptive.pre-warming-per-minute",
        "adaptive.learnt_target_period_s": "adaptive.learnt-target-period",
        "adaptive.learnt_target_max": "adaptive.learnt-target-max",
        **_quirks("classic.quirks", "idle_while_requests_run", "points_from_the_future"),
        **_quirks(
            "triggers.quirks",
            "points_without_times",
            "examines_one_point_more",
            "threshold_is_exclusive",
            "stored_length_follows_last_trigger",
            "limit_takes_any_delta",
            "divides_by_zero",
            "single_precision",
            "counts_unmeasured_containers",
            "old_trigger_becomes_room",
            "down_may_reach_zero",
            "any_pending_pod_refuses_up",
            "panic_ignores_cap",
            "panic_starts_no_cooldown",
        ),
        **_quirks(
            "quirks",
            "window_ends_in_zero",
            "weighted_window_reads_low",
            "resize_reads_low",
            "delay_keeps_its_length",
            "restart_may_lower",
            "zero_without_proof",
            "failure_keeps_its_deadline",
            "delay_ignores_initial_scale",
        ),
    }
)
CONTROLLER: Mapping[str, str] = MappingProxyType(
    {
        "eviction_free_ratio": "eviction-free",
        "workers": "workers",
        "workers_max": "workers-max",
        "count_period_s": "count-period",
        "resync_period_s": "resync-period",
        "retry_delay_max_s": "retry-delay-max",
        "otlp.metrics_period_s": "otlp.metrics-period",
    }
)
DASHBOARD: Mapping[str, str] = MappingProxyType(
    {
        "connections_max": "connections-max",
    }
)
NODEGROUP: Mapping[str, str] = MappingProxyType(
    {
        "cloud_timeout_s": "cloud-timeout",
    }
)
PLACEMENT: Mapping[str, str] = MappingProxyType(
    {
        "metrics_age_max_s": "metrics-age-max",
        "load_samples_max": "load-samples",
        "load.timeout_s": "load.timeout",
        "tls.reload_period_s": "tls.reload-period",
        **_quirks(
            "quirks",
            "assumed_requests_fill_nodes",
            "best_effort_pods_score_zero",
            "unmeasured_nodes_score_zero",
            "any_entry_is_a_mean",
            "metrics_never_expire",
            "limits_outrank_load",
            "small_deviations_get_lost",
        ),
    }
)
QUEUEPROXY: Mapping[str, str] = MappingProxyType(
    {
        "queue_depth_per_slot": "queue-depth-per-slot",
        "queue_wait_max_s": "queue-wait-max",
        "open_share_max": "open-share-percentage",
        "unread_wait_max_s": "unread-wait-max",
        "report_period_s": "report-period",
        "probe_pause_min_s": "probe-pause-min",
        "probe_pause_max_s": "probe-pause-max",
        "report_retry_min_s": "report-retry-min",
        "report_retry_max_s": "report-retry-max",
        "drain_tunnel_wait_s": "drain-tunnel-wait",
        "dormant_call_max_s": "dormant-call-max",
        "dormant_page_out_s": "dormant-page-out",
        **_HTTP,
        **_quirks("quirks", "level_may_go_negative"),
    }
)
