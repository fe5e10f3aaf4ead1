"""The stats reporter: desired, requested and ready pods and panic mode of each revision.

The reporter has two sources, which both record every decision; a property test holds them equal. The first is
opencensus (``views``), which is no longer maintained. The second are gauge families of prometheus-client. The page
reads the first source. If opencensus cannot be imported, or a call of it raises, the reporter logs that once, and the
page reads the second source from then on. So a scrape never fails because of opencensus, and no value is lost. The
reporter is not thread-safe: use it from the loop's thread only.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from serving.core.model.revisionnumbers import RevisionNumbers
from serving.net.metrics.names import AUTOSCALER_METRICS, REVISION_LABELS, named

Labels = tuple[str, str, str]
"""Namespace, configuration and revision."""

Row = tuple[Labels, float]
"""The labels, and the value."""

NAMES = ("kn_revision_pods_desired", "kn_revision_pods_requested", "kn_revision_pods_count", "kn_revision_panic_mode")
"""The four gauges, in the order of a row's values."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Source(Protocol):
    """Stores the last values of the gauges in ``NAMES`` for each row, which is a revision's labels."""

    def record(self, labels: Labels, values: Sequence[int | None]) -> None:
        """Record one value for each of ``NAMES``; None keeps the previous value."""
        ...

    def drop(self, rows: Collection[Labels]) -> None:
        """Drop the values of these rows."""
        ...

    def pull(self) -> Iterator[tuple[str, list[Row]]]:
        """The rows of each gauge, by name; gauges without rows are omitted."""
        ...


class GaugeFamilies(Collector):
    """Stores the last values of the gauges in ``NAMES`` for each row, as a collector of prometheus-client."""

    def __init__(self) -> None:
        self._rows: dict[Labels, list[int | None]] = {}

    def record(self, labels: Labels, values: Sequence[int | None]) -> None:
        """Record one value for each gauge; None keeps the previous value."""
        before = self._rows.get(labels)
        if before is None:
            self._rows[labels] = list(values)
            return
        for index, value in enumerate(values):
            if value is not None:
                before[index] = value

    def drop(self, rows: Collection[Labels]) -> None:
        """Drop the values of these rows."""
        for labels in rows:
            self._rows.pop(labels, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family for each gauge with rows."""
        for index, name in enumerate(NAMES):
            family = GaugeMetricFamily(name, named(AUTOSCALER_METRICS, name).help_text, labels=REVISION_LABELS)
            for labels, values in self._rows.items():
                value = values[index]
                if value is not None:
                    family.add_metric(labels, value)
            if family.samples:
                yield family

    def pull(self) -> Iterator[tuple[str, list[Row]]]:
        """The rows of each gauge, by name; gauges without rows are omitted."""
        for family in self.collect():
            rows = []
            for sample in family.samples:
                namespace, configuration, revision = (sample.labels[name] for name in REVISION_LABELS)
                rows.append(((namespace, configuration, revision), float(sample.value)))
            yield family.name, rows


def opencensus_views() -> Source:
    """The opencensus views. Raises any error of importing opencensus."""
    from serving.net.metrics.views import OpencensusViews  # noqa: PLC0415 - the import may fail on a Python that it never saw

    return OpencensusViews(NAMES)


class StatsReporter:
    """The gauges of all revisions. ``report`` takes microseconds, independent of their number."""

    def __init__(self, open_views: Callable[[], Source] = opencensus_views) -> None:
        self._views: Source | None = None
        self._families = GaugeFamilies()
        # The row of each revision, by namespace and revision.
        self._rows: dict[tuple[str, str], Labels] = {}
        try:
            self._views = open_views()
        except Exception as error:  # noqa: BLE001 - whatever an unmaintained package raises
            self._do_without(error)

    def __len__(self) -> int:
        """The number of revisions with rows."""
        return len(self._rows)

    def report(self, numbers: RevisionNumbers) -> None:
        """Record a decision. Without data the desired count keeps its value."""
        key = (numbers.namespace, numbers.revision)
        labels = self._rows.get(key)
        if labels is None or labels[1] != numbers.configuration:
            if labels is not None:
                self._drop([labels])
            labels = self._rows[key] = (numbers.namespace, numbers.configuration, numbers.revision)
        values = (numbers.desired_count, numbers.requested_count, numbers.ready_count, int(numbers.is_panic))
        self._families.record(labels, values)
        self._with_views(lambda views: views.record(labels, values))

    def retain(self, keys: Collection[tuple[str, str]]) -> None:
        """Drop the rows of all revisions except ``keys`` (namespace, name)."""
        self._drop([self._rows.pop(key) for key in [key for key in self._rows if key not in keys]])

    def pull(self) -> Iterator[tuple[str, list[Row]]]:
        """The current rows of each gauge, by name."""
        pulled = self._with_views(lambda views: list(views.pull()))
        yield from self._families.pull() if pulled is None else pulled

    def _drop(self, rows: Collection[Labels]) -> None:
        self._families.drop(rows)
        self._with_views(lambda views: views.drop(rows))

    def _with_views(self, call: Callable[[Source], T]) -> T | None:
        """Call opencensus and return the result; None if opencensus is missing or has failed once."""
        if self._views is None:
            return None
        try:
            return call(self._views)
        except Exception as error:  # noqa: BLE001 - whatever an unmaintained package raises
            self._do_without(error)
            return None

    def _do_without(self, error: Exception) -> None:
        self._views = None
        _log.warning(
            "opencensus.failed", extra={"error": f"{type(error).__name__}: {error}", "source": "prometheus-client"}
        )
