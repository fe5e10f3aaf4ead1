"""Load metrics for scaling, and the annotation that selects several of them.

A load metric computes one source's part of the load from its report. The revision's load is the sum over all sources;
it is divided by the target of one pod. Each named metric is a record in ``LOAD_METRICS``. ``gauge:NAME`` is the metric
of any gauge that the app reports.
"""

import functools
import re
from collections.abc import Callable, Mapping

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.stat import GAUGES_MAX, Stat

GAUGE_PREFIX = "gauge:"
"""The prefix of metrics that read an app's gauge."""

TOKENS_GAUGE = "tokens_in_flight"
"""The gauge that reports the tokens in a pod."""

_NOTHING_SEEN = "no stat in the stable window"
# The most metrics in an annotation, and gauges in a pod's report.
_WISHES_MAX = GAUGES_MAX
_TARGET_MIN, _TARGET_MAX = 0.01, 1e12
# Prometheus' grammar of metric names, with the length limit of gauges in reports.
_GAUGE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:.-]{0,62}", re.ASCII)
_EXPECTED = 'metrics with targets, separated by commas, as in "gauge:vllm:num_requests_waiting=5, concurrency=20"; a metric is one of '
# Records of gauges are cached: revisions name few different gauges.
_GAUGES_KEPT = 1024


class LoadMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A load metric: how the load is read from a report, and the default target per pod.

    ``name`` is the value of the annotation ``autoscaling.knative.dev/metric``. ``of_stat`` reads the load from a
    report, without the part that an activator also reports; None if missing. ``utilisation`` is the target utilisation
    if no annotation sets it; None: the default for metrics of this kind. ``gauge`` is the app's gauge that the metric
    reads; "" if the metric counts requests.
    """

    name: str
    unit: str
    """The unit of the load in messages, in the plural: "in flight"."""

    of_stat: Callable[[Stat], float | None]
    target_default: float | None = None
    """The default load per pod. None: a setting of the autoscaler defines it."""

    utilisation: float | None = None
    gauge: str = ""
    """The name of the app's gauge; "" for a metric that counts requests."""

    @property
    def missing(self) -> str:
        """The message for a revision without data of this metric."""
        return f"no pod reports the gauge {self.gauge}" if self.gauge else _NOTHING_SEEN

    @property
    def needs_target(self) -> bool:
        """Whether the metric has no default target."""
        return bool(self.gauge) and self.target_default is None

    def amount(self, stat: Stat) -> float:
        """The load in a report; 0 if the report has none."""
        return self.of_stat(stat) or 0.0


class LoadWish(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that scales a revision, and its target per pod; None if the target is set elsewhere."""

    metric: str
    target: float | None = None


def _concurrency(stat: Stat) -> float:
    return stat.concurrency - stat.proxied_concurrency


def _requests(stat: Stat) -> float:
    return stat.request_count - stat.proxied_request_count


CONCURRENCY = LoadMetric(name="concurrency", unit="in flight", of_stat=_concurrency)
RPS = LoadMetric(name="rps", unit="requests a second", of_stat=_requests)


def _of_gauge(gauge: str) -> Callable[[Stat], float | None]:
    def of_stat(stat: Stat) -> float | None:
        # A missing gauge means no load if the app is idle, and unknown load if it has requests.
        return stat.gauges.get(gauge, None if stat.concurrency > 0 else 0.0)

    return of_stat


def _gauge_metric(name: str, unit: str, gauge: str, *, target_default: float | None = None) -> LoadMetric:
    return LoadMetric(name=name, unit=unit, of_stat=_of_gauge(gauge), target_default=target_default, gauge=gauge)


# Ten waiting items per pod: enough to distinguish a queue from a short delay. An app whose items are long sets its own
# target.
QUEUE_LENGTH = _gauge_metric("queue-length", "queued", "queue_length", target_default=10.0)


TOKENS = msgspec.structs.replace(_gauge_metric("tokens", "tokens in flight", TOKENS_GAUGE), utilisation=1.0)
"""Tokens of OpenAI requests in flight, counted by queue-proxies.

The target is used unchanged, like that of any gauge.
"""


LOAD_METRICS: Mapping[str, LoadMetric] = {
    metric.name: metric
    for metric in (
        CONCURRENCY,
        RPS,
        QUEUE_LENGTH,
        TOKENS,
    )
}


ANY_GAUGE = _gauge_metric("gauge", "of the gauge", "any")
"""Represents all metrics ``gauge:NAME`` where they cannot be listed."""


METRIC_FORM = f"({'|'.join(LOAD_METRICS)}|{GAUGE_PREFIX}{_GAUGE.pattern})"
"""The regular expression of a metric's name."""

LOAD_FORM = rf"\s*{METRIC_FORM}\s*(=[^,]*)?(,\s*{METRIC_FORM}\s*(=[^,]*)?)*"
"""The regular expression of metrics with targets."""


def is_load_metric(name: str) -> bool:
    """Whether a load metric has this name."""
    return name in LOAD_METRICS or (name.startswith(GAUGE_PREFIX) and bool(_GAUGE.fullmatch(_gauge_in(name))))


@functools.lru_cache(_GAUGES_KEPT)
def load_metric(name: str) -> LoadMetric:
    """The load metric with this name. Raises ``KeyError`` if there is none.

    The default utilisation of an app's own gauge is 1: its target is not a pod's capacity, so pods need no headroom.
    """
    if not is_load_metric(name):
        raise KeyError(name)
    if name in LOAD_METRICS:
        return LOAD_METRICS[name]
    gauge = _gauge_in(name)
    return msgspec.structs.replace(_gauge_metric(name, gauge, gauge), utilisation=1.0)


def expected_metrics() -> str:
    """The names of metrics, for messages."""
    return f"{', '.join(LOAD_METRICS)}, or {GAUGE_PREFIX}NAME of a number that the app reports"


@functools.lru_cache(_GAUGES_KEPT)
def read_load(text: str) -> tuple[LoadWish, ...]:
    """Parse the metrics in the annotation ``autoscaling.serving.dev/metric``, in order. Raises ``InvalidValue``."""
    wishes: list[LoadWish] = []
    for part in text.split(","):
        name, has_target, number = (piece.strip() for piece in part.partition("="))
        if not is_load_metric(name) or name in {wish.metric for wish in wishes} or len(wishes) == _WISHES_MAX:
            raise InvalidValue(text=text, expected=f"{_EXPECTED}{expected_metrics()}, each once, at most {_WISHES_MAX}")
        wishes.append(LoadWish(metric=name, target=_target(text, number) if has_target else None))
    return tuple(wishes)


def gauges_of(metrics: str) -> tuple[str, ...]:
    """The gauges named in an annotation, in order; none if the annotation is invalid.

    Excludes ``TOKENS_GAUGE``, which apps do not report.
    """
    try:
        gauges = (load_metric(wish.metric).gauge for wish in read_load(metrics))
    except InvalidValue:
        return ()
    return tuple(gauge for gauge in gauges if gauge)


def _gauge_in(name: str) -> str:
    return name.removeprefix(GAUGE_PREFIX)


def _target(text: str, number: str) -> float:
    try:
        target = float(number)
    except ValueError:
        target = 0.0
    if not _TARGET_MIN <= target <= _TARGET_MAX:
        raise InvalidValue(text=text, expected=f"targets from {_TARGET_MIN:g} to {_TARGET_MAX:g}, not {number!r}")
    return target
