"""Settings of the queue-proxy: a pod's concurrency, timeouts, reports and shutdown.

Source of defaults: knative/serving 98e5ef90, pkg/queue and config-defaults. A pod gets its revision's own values in its
environment. The module does not import YAML, so that the sidecar stays small.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import (
    CONFIGURATION_LABEL,
    LOAD_ANNOTATION,
    LOADING_ANNOTATION,
    METRIC_ANNOTATION,
    METRICS_PATH_ANNOTATION,
    METRICS_PORT_ANNOTATION,
    SERVICE_LABEL,
    SLO_ANNOTATION,
)
from serving.core.model.loadmetric import TOKENS_GAUGE, gauges_of
from serving.core.model.ports import PORT_MAX
from serving.core.settings import removed
from serving.core.settings.http import HttpSettings
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.knob import COUNT, DURATION, FLAG, Clash, Knob, SettingsRecord, Unit, Value, fields_of
from serving.core.settings.load import Daemon

_OBSERVABILITY = "config-observability"

INNER_TLS_VARIABLE = "SERVING_QUEUEPROXY_INNER_TLS_MODE"
"""The environment variable with a queue-proxy's mode of inner TLS."""

# Settings that a revision overrides, by the field in its spec.
_FIELDS = {
    "containerConcurrency": "container_concurrency",
    "timeoutSeconds": "request_timeout_s",
    "responseStartTimeoutSeconds": "response_start_timeout_s",
    "idleTimeoutSeconds": "idle_timeout_s",
}


class MeterQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of Knative's request statistics, off by default. A flag that is on restores Knative's."""

    level_may_go_negative: bool = False
    """The end of a request without a recorded arrival lowers the load, which is too low from then on, and negative for
    an idle pod. Off: the end is only counted as unmatched.
    """


_DEFAULT_TEMPLATE = (
    '{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", '
    '"requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", '
    '"userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", '
    '"serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", '
    '"protocol": "{{.Request.Proto}}"}, "traceId": "{{.TraceID}}"}'
)


def _read_template(text: str) -> Value:
    if text and text != _DEFAULT_TEMPLATE:
        from serving.core.model.requestlines import check_template  # noqa: PLC0415 - most queue-proxies need no template

        check_template(text)
    return text


_LOG_TEMPLATE = Unit(
    name="Go template", plain="text", read=_read_template, read_plain=_read_template, write=str, explains=True
)


class RequestLogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Knative's request log: a line for each request. Changes apply to new pods."""

    enable_request_log: Annotated[
        bool, Knob(key="logging.enable-request-log", config_map=_OBSERVABILITY, unit=FLAG, live=True)
    ] = False
    """Whether queue-proxies log each ended request. Default: Knative, false."""

    request_log_template: Annotated[
        str, Knob(key="logging.request-log-template", config_map=_OBSERVABILITY, unit=_LOG_TEMPLATE, live=True)
    ] = _DEFAULT_TEMPLATE
    """Go template of a log line, with the fields of Knative's template; {{.Request.Header.Get "Via"}} is a header of
    the request. Empty means no log. Default: Knative, JSON in the form of Google's HttpRequest.
    """

    enable_probe_request_log: Annotated[
        bool, Knob(key="logging.enable-probe-request-log", config_map=_OBSERVABILITY, unit=FLAG, live=True)
    ] = False
    """Whether queue-proxies also log each ended probe. Default: Knative, false."""

    @property
    def is_on(self) -> bool:
        """Whether requests are logged."""
        return self.enable_request_log and bool(self.request_log_template)

    @property
    def has_template(self) -> bool:
        """Whether the template differs from the default."""
        return self.request_log_template != _DEFAULT_TEMPLATE

    def log_variables(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of a queue-proxy for the fields of a template, from its revision's labels."""
        if not (self.is_on and self.has_template):
            return {}
        return {
            "SERVING_POD_SERVICE": labels.get(SERVICE_LABEL, ""),
            "SERVING_POD_CONFIGURATION": labels.get(CONFIGURATION_LABEL, ""),
        }


ORIGINAL = MeterQuirks(level_may_go_negative=True)


class QueueProxySettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the queue-proxy. Times are in seconds."""

    container_concurrency: Annotated[
        int, Knob(key="container-concurrency", config_map="config-defaults", unit=COUNT, low=0, high=1000)
    ] = 0
    """Concurrent requests per pod, for revisions without containerConcurrency. 0 means no limit: no request waits in
    the queue-proxy. Range: 0 to 1000. Default: Knative, 0.
    """

    queue_depth_per_slot: int = 10
    """Most requests that wait in a pod, per slot; one more gets 503. 0: none waits.

    Source: Knative's fixed factor, 10.
    """

    queue_wait_max_s: float = 300.0
    """Longest wait of a request for a slot in a pod, in seconds from its arrival; then it gets 503.

    Source: Knative's revision timeout, 300s, which ends the wait there.
    """

    open_share_max: float = 0.75
    """Largest part of a pod's slots, at least one, for requests of one address, as in the activator. The address is the
    client's that an activator names, else the peer's. 0 means no bound. Source: the activator's, 75."""

    unread_wait_max_s: float = 1.0
    """Longest time for which a client reads nothing while others wait for a slot, in seconds, as in the activator. 0
    means none of its own. Source: the activator's, 1s."""

    report_period_s: float = 1.0
    """Time between two statistics of a pod, in seconds.

    The autoscaler sums the statistics of each second, so other periods give wrong load. Source: Knative's fixed period,
    1s.
    """

    request_timeout_s: Annotated[float, Knob(key="request-timeout", unit=DURATION, above=0, high=86400)] = 300.0
    """Longest time of a request in a pod, in seconds from its headers to the end of its response, including the wait in
    the pod. Then the request gets 504, or its response is truncated. The time also limits a tunnel (websocket). The
    value is the revision's timeoutSeconds. Range: above 0 to 24h. Default: Knative, 300s.
    """

    response_start_timeout_s: Annotated[float, Knob(key="response-start-timeout", unit=DURATION, low=0, high=86400)] = (
        0.0
    )
    """Longest time from a request's headers to the first byte of its response, in seconds; then the request gets 504.
    In a tunnel the time ends at the first byte that the app sends after its 101. 0 means no separate limit. The value
    is the revision's responseStartTimeoutSeconds. Range: 0 to 24h. Default: Knative's for a revision without one, 0s.
    """

    idle_timeout_s: Annotated[float, Knob(key="idle-timeout", unit=DURATION, low=0, high=86400)] = 0.0
    """Longest time without a byte of the response, in seconds from the request's headers or the last byte. Then the
    request gets 504, or its response is truncated. In a tunnel the time limits the pauses of the app. 0 means no limit.
    The value is the revision's idleTimeoutSeconds. Range: 0 to 24h. Default: Knative, 0s.
    """

    probe_pause_min_s: float = 0.002
    """First pause between two attempts to reach an app that is not ready yet, in seconds; each is a tenth longer than
    the one before, up to ``probe_pause_max_s``. Source: ours, 2ms; Knative waits 50ms each time."""

    probe_pause_max_s: float = 0.05
    """Longest pause between two attempts to reach an app that is not ready yet, in seconds. Source: Knative, 50ms."""

    report_retry_min_s: float = 0.1
    """Mean of the first pause before the queue-proxy connects to the autoscaler again, in seconds; it doubles up to
    ``report_retry_max_s``, and each is spread by a half to both sides. Source: ours, 100ms."""

    report_retry_max_s: float = 5.0
    """Longest mean pause before the queue-proxy connects to the autoscaler again, in seconds. Source: ours, 5s, below
    the autoscaler's panic window of 6s."""

    drain_lag_s: Annotated[float, Knob(key="drain-lag", unit=DURATION, low=0, high=600)] = 5.0
    """Time without a new request after which a stopping pod accepts no more requests, in seconds. Within this time
    senders must notice that the process stops. Range: 0 to 10m. Default: ours, 5s; Knative waits 30s.
    """

    drain_grace_s: Annotated[float, Knob(key="drain-grace", unit=DURATION, low=0, high=86400)] = 300.0
    """Longest time from the order to stop to the end of the process, in seconds. Requests that still run are then ended
    and counted. Range: 0 to 24h. Default: Knative, the revision's timeout, 300s.
    """

    drain_tunnel_wait_s: float = 30.0
    """Time that open tunnels (websockets) delay SIGTERM to a stopping app, in seconds; the app can then close them.

    At most half of ``drain_grace_s``. Source: Knative's quiet period, 30s.
    """

    dormant_call_max_s: float = 60.0
    """Longest time of a call of ``serving.dev/dormant-call``, in seconds, and of all attempts to wake an app together;
    then requests go to the app all the same. Source: ours, 60s: a large model is back in memory within seconds."""

    dormant_page_out_s: float = 60.0
    """Time from the freeze of an app until its memory moves to swap or zram, in seconds. Without swap it stays. Source:
    ours, 60s."""

    http: HttpSettings = HttpSettings(upstream_connect_max_s=20.0, response_buffers_bytes_max=16 * 1024**2)
    """Limits of the HTTP engine. The app is its only upstream, so it tries for longer than an activator: as Knative,
    20s. It has less memory for responses.
    """

    inner_tls: InnerTlsSettings = InnerTlsSettings()
    """TLS with activators and autoscalers."""

    logging: RequestLogSettings = RequestLogSettings()
    """The request log."""

    quirks: MeterQuirks = MeterQuirks()
    """Behaviours of Knative's request statistics that are off by default, one flag each."""

    @property
    def slots(self) -> int | None:
        """Requests that a pod handles in parallel; None means no limit."""
        return self.container_concurrency or None

    @property
    def queue_depth_max(self) -> int:
        """Size of the pod's queue: 10 requests per slot by default."""
        return self.queue_depth_per_slot * self.container_concurrency

    def check(self) -> Iterator[Clash]:
        """Yield contradictions between fields, such as a minimum above its maximum."""
        for low, high in (("probe_pause_min_s", "probe_pause_max_s"), ("report_retry_min_s", "report_retry_max_s")):
            low_s, high_s = getattr(self, low), getattr(self, high)
            if low_s > high_s:
                yield Clash(fields=(low, high), what=f"{low} is {low_s}, above {high}", expected=f"at most {high_s}")


QUEUEPROXY = Daemon(
    name="queueproxy", record=QueueProxySettings, config_map="config-queueproxy", removed=removed.QUEUEPROXY
)
"""Defined here, because a queue-proxy loads no other daemon's records."""


def variables_of(spec: Mapping[str, object]) -> dict[str, str]:
    """The settings in a revision's spec, as environment variables of its queue-proxies."""
    return {
        f"SERVING_QUEUEPROXY_{name.upper()}": str(spec[field])
        for field, name in _FIELDS.items()
        if spec.get(field) is not None
    }


def tcp_variables(ports: Mapping[int, int]) -> dict[str, str]:
    """The app's TCP ports by containerPort, as an environment variable of its queue-proxy; none without such ports."""
    return {"SERVING_POD_TCP_PORTS": msgspec.json.encode(ports).decode()} if ports else {}


def load_variables(annotations: Mapping[str, str], *, app_port: int) -> dict[str, str]:
    """A queue-proxy's environment variables for load: gauges and their page, tokens, a latency goal, loading time.

    ``app_port`` is the app's port in the manifest. Prometheus' annotations locate the page; an address that Prometheus
    could not scrape is left out.
    """
    gauges = gauges_of(annotations.get(LOAD_ANNOTATION) or annotations.get(METRIC_ANNOTATION) or "")
    slo = annotations.get(SLO_ANNOTATION)
    variables = {"SERVING_POD_SLO": slo} if slo else {}
    loading_max = annotations.get(LOADING_ANNOTATION)
    if loading_max is not None:
        with contextlib.suppress(InvalidValue):
            variables["SERVING_POD_LOADING_MAX_S"] = f"{DURATION.read(loading_max):g}"
    if TOKENS_GAUGE in gauges:
        variables["SERVING_POD_TOKENS"] = "true"
    gauges = tuple(gauge for gauge in gauges if gauge != TOKENS_GAUGE)
    if not gauges:
        return variables
    variables |= {"SERVING_POD_GAUGES": msgspec.json.encode(gauges).decode()}
    path, port = annotations.get(METRICS_PATH_ANNOTATION, ""), annotations.get(METRICS_PORT_ANNOTATION, "")
    if path.startswith("/") and path.isascii() and path.isprintable() and " " not in path:
        variables["SERVING_POD_METRICS_PATH"] = path
    if port.isdecimal() and 0 < int(port) <= PORT_MAX and int(port) != app_port:
        variables["SERVING_POD_METRICS_PORT"] = port
    return variables


def changed_variables(settings: QueueProxySettings) -> dict[str, str]:
    """The settings that differ from their defaults, as environment variables of a queue-proxy."""
    variables: dict[str, str] = {}
    for field in fields_of(QueueProxySettings):
        value: object = settings
        for step in field.path:
            value = getattr(value, step)
        if value != field.default:
            text = str(value)
            variables[f"SERVING_QUEUEPROXY_{field.variable}"] = text.lower() if isinstance(value, bool) else text
    return variables
