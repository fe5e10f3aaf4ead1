"""A daemon's metrics page, for Prometheus or as OpenMetrics, and the lag of its event loop.

Input: collectors of ``prometheus_client``. Output: the page in pieces of ``SLICE_SAMPLES`` lines, so that a long page
does not block the loop. The text equals that of ``prometheus_client`` byte by byte (a test compares them), in half the
time. Exemplars are in OpenMetrics only; the older format has no syntax for them.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Counter, Gauge, Histogram, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from serving.core.traffic.latencies import FINE_TYPE
from serving.net.aio.periodic import until_beat_s
from serving.net.cluster.reflector import UNREADABLE
from serving.net.metrics.names import BUCKETS_S, COMMON_METRICS, MetricKind, MetricSpec, named

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
# One or two milliseconds of work.
_SLICE_SAMPLES = 500
_TOTAL = "_total"

_PERIOD_S = 1.0
_UNREADABLE = named(COMMON_METRICS, "serving_unreadable_objects_total")


class Pulled(Collector):
    """Metric families created when the page is read; ``pull`` returns them."""

    def __init__(self, pull: Callable[[], Iterator[Family]]) -> None:
        self._pull = pull

    def describe(self) -> list[Family]:
        """Return nothing: families are collected with each page."""
        return []

    def collect(self) -> Iterator[Family]:
        """The current families."""
        return self._pull()


class MetricsPage:
    """A metrics page, with the metrics that every daemon has: of the process and of Python.

    ``before`` is called before the page is rendered, for example to drop rows. ``fine`` returns the families of a
    second page, which has only fine-grained durations and is read every two seconds.
    """

    def __init__(
        self,
        metrics: tuple[MetricSpec, ...],
        *,
        before: Callable[[], None] = lambda: None,
        fine: Callable[[], Iterator[Family]] | None = None,
    ) -> None:
        # Suppresses the unused "_created" line of counters and histograms.
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=False)
        self._before = before
        self._metrics = metrics
        self._fine = fine
        self._lag: Histogram | None = None
        self.pull(_unreadable)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def counter(self, name: str) -> Counter:
        """The counter with this name in the daemon's table."""
        metric = named(self._metrics, name)
        return Counter(metric.name, metric.help_text, metric.labels, registry=self.registry)

    def gauge(self, name: str) -> Gauge:
        """The gauge with this name."""
        metric = named(self._metrics, name)
        return Gauge(metric.name, metric.help_text, metric.labels, registry=self.registry)

    def histogram(
        self, name: str, metrics: tuple[MetricSpec, ...] = (), *, buckets: Sequence[float] = BUCKETS_S
    ) -> Histogram:
        """Create the histogram with this name in ``metrics``, or in the daemon's table by default."""
        metric = named(metrics or self._metrics, name)
        return Histogram(metric.name, metric.help_text, metric.labels, registry=self.registry, buckets=buckets)

    @property
    def lag(self) -> Histogram:
        """The histogram of the event loop's lag."""
        if self._lag is None:
            self._lag = self.histogram("serving_loop_lag_seconds", COMMON_METRICS)
        return self._lag

    def pull(self, pull: Callable[[], Iterator[Family]]) -> None:
        """Add families that ``pull`` returns for each page."""
        self.registry.register(Pulled(pull))

    def families(self, accept: str = "") -> Iterator[Family]:
        """The current families for an Accept header, one after the other."""
        self._before()
        if self._fine is not None and FINE_TYPE in accept:
            yield from self._fine()
        else:
            yield from self.registry.collect()

    def slices(self, accept: str) -> Iterator[str]:
        """The page in pieces, in the format of the Accept header."""
        is_open = is_openmetrics(accept)
        for family in self.families(accept):
            yield _head(family, is_open=is_open)
            samples = list(family.samples)
            write = _openmetrics_line if is_open else _text_line
            for start in range(0, len(samples), _SLICE_SAMPLES):
                yield "".join([write(sample) for sample in samples[start : start + _SLICE_SAMPLES]])
        if is_open:
            yield "# EOF\n"

    def text(self, accept: str) -> str:
        """Render all metrics in the format of the Accept header."""
        return "".join(self.slices(accept))


def family_of(metric: MetricSpec) -> Family:
    """An empty family for values collected with each page."""
    if metric.kind is MetricKind.GAUGE:
        return GaugeMetricFamily(metric.name, metric.help_text)
    return Family(metric.name.removesuffix(_TOTAL), metric.help_text, metric.kind.value)


def is_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics; Prometheus sends such a header."""
    return any(media_range.split(";")[0].strip() == _OPENMETRICS for media_range in accept.split(","))


def wanted_type(accept: str) -> str:
    """The page's Content-Type for an Accept header."""
    return OPENMETRICS_TYPE if is_openmetrics(accept) else TEXT_TYPE


def _head(family: Family, *, is_open: bool) -> str:
    # The older format names a counter like its sample, OpenMetrics without the suffix.
    name = family.name + (_TOTAL if family.type == "counter" and not is_open else "")
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if is_open:
        text = text.replace('"', r"\"")
    unit = f"# UNIT {name} {family.unit}\n" if is_open and family.unit else ""
    return f"# HELP {name} {text}\n# TYPE {name} {family.type}\n{unit}"


def _text_line(sample: Sample) -> str:
    labels = sample.labels
    if not labels:
        return f"{sample.name} {floatToGoString(sample.value)}\n"
    return f"{sample.name}{{{_labels(labels)}}} {floatToGoString(sample.value)}\n"


def _openmetrics_line(sample: Sample) -> str:
    line = _text_line(sample)
    return line if sample.exemplar is None else f"{line[:-1]} # {_exemplar(sample.exemplar)}\n"


def _labels(labels: dict[str, str]) -> str:
    # Kubernetes names need no escape, so one check of the whole text is the common case.
    joined = ",".join([f'{name}="{labels[name]}"' for name in sorted(labels)])
    if "\\" not in joined and "\n" not in joined and joined.count('"') == 2 * len(labels):
        return joined
    return ",".join([f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _exemplar(exemplar: Exemplar) -> str:
    when = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f"{{{_labels(exemplar.labels)}}} {floatToGoString(exemplar.value)}{when}"


def _unreadable() -> Iterator[Family]:
    family = CounterMetricFamily(_UNREADABLE.name, _UNREADABLE.help_text, labels=_UNREADABLE.labels)
    for resource, count in sorted(UNREADABLE.items()):
        family.add_metric((resource,), count)
    yield family


async def watch_lag(page: MetricsPage) -> None:
    """Measure the event loop's lag with a timer of one second, until cancelled."""
    lag = page.lag
    while True:
        left_s = until_beat_s(_PERIOD_S)
        due_s = time.perf_counter() + left_s
        await asyncio.sleep(left_s)
        lag.observe(max(0.0, time.perf_counter() - due_s))
