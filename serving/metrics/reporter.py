"""The stats reporter: desired, requested and ready pods and panic mode of each revision, as opencensus measures with views.

Only this module imports opencensus, which is no longer maintained. It works around two of its problems. After each measurement
opencensus copies every row of the view for its exporters, even when there are none: with 500 revisions that would take
milliseconds, so the step is replaced by one that does nothing. And opencensus never drops rows; ``keep`` drops those of revisions
that are gone. The reporter is not thread-safe: use it from the loop's thread only.
"""

import datetime as dt
from collections.abc import Collection, Iterator

from opencensus.stats.aggregation import LastValueAggregation
from opencensus.stats.measure import MeasureInt
from opencensus.stats.measure_to_view_map import MeasureToViewMap
from opencensus.stats.measurement_map import MeasurementMap
from opencensus.stats.view import View
from opencensus.tags.tag_key import TagKey
from opencensus.tags.tag_map import TagMap
from opencensus.tags.tag_value import TagValue

from serving.metrics.names import AUTOSCALER_METRICS, named
from serving.model.revisionnumbers import RevisionNumbers

Row = tuple[tuple[str, str, str], float]
"""Namespace, configuration and revision; and the value."""

# The columns of a view, in this order.
_NAMESPACE, _CONFIGURATION, _REVISION = TagKey("namespace"), TagKey("configuration"), TagKey("revision")
_TAGS = [_NAMESPACE, _CONFIGURATION, _REVISION]
_ONE = "1"
# Tag values are printable ASCII of at most 255 characters; names of Kubernetes are.
_DESIRED, _REQUESTED, _ACTUAL, _PANIC = (
    MeasureInt(name, named(AUTOSCALER_METRICS, name).help_text, _ONE)
    for name in (
        "kn_revision_pods_desired",
        "kn_revision_pods_requested",
        "kn_revision_pods_count",
        "kn_revision_panic_mode",
    )
)


class _Views(MeasureToViewMap):  # type: ignore[misc] # opencensus has no types
    """Views whose export does nothing."""

    def export(self, view_datas: object) -> None:
        """Do nothing: data is fetched when the page is read."""

    def drop(self, gone: Collection[tuple[str, str, str]]) -> None:
        """Drop the rows of all views."""
        for views in self._measure_to_view_data_list_map.values():
            for view in views:
                for row in gone:
                    view.tag_value_aggregation_data_map.pop(row, None)


class StatsReporter:
    """Measures of all revisions. ``report`` costs microseconds however many there are."""

    def __init__(self) -> None:
        self._views = _Views()
        for measure in (_DESIRED, _REQUESTED, _ACTUAL, _PANIC):
            view = View(measure.name, measure.description, _TAGS, measure, LastValueAggregation())
            self._views.register_view(view, _now())
        # By namespace and revision: the row that it has, and the tags that lead there.
        self._tags: dict[tuple[str, str], tuple[tuple[str, str, str], TagMap]] = {}

    def __len__(self) -> int:
        """Revisions that have rows."""
        return len(self._tags)

    def report(self, numbers: RevisionNumbers) -> None:
        """Measure a decision. Without data the desired count keeps its value."""
        row = (numbers.namespace, numbers.configuration, numbers.revision)
        known = self._tags.get((numbers.namespace, numbers.revision))
        if known is None or known[0] != row:
            if known is not None:
                self._views.drop([known[0]])
            known = self._tags[numbers.namespace, numbers.revision] = (row, _tag_map(row))
        measured = MeasurementMap(self._views)
        if numbers.desired_count is not None:
            measured.measure_int_put(_DESIRED, numbers.desired_count)
        measured.measure_int_put(_REQUESTED, numbers.requested_count)
        measured.measure_int_put(_ACTUAL, numbers.ready_count)
        measured.measure_int_put(_PANIC, int(numbers.is_panic))
        measured.record(known[1])

    def keep(self, keys: Collection[tuple[str, str]]) -> None:
        """Drop the rows of all revisions but these, each a namespace and a name."""
        gone = [key for key in self._tags if key not in keys]
        self._views.drop([self._tags.pop(key)[0] for key in gone])

    def pull(self) -> Iterator[tuple[str, list[Row]]]:
        """Each measure by name with its rows, as they are now."""
        for metric in self._views.get_metrics(_now()):
            rows = [(_names(one.label_values), float(one.points[0].value.value)) for one in metric.time_series]
            yield metric.descriptor.name, rows


def _tag_map(key: tuple[str, str, str]) -> TagMap:
    tags = TagMap()
    for name, value in zip(_TAGS, key, strict=True):
        tags.insert(name, TagValue(value))
    return tags


def _names(values: list[object]) -> tuple[str, str, str]:
    namespace, configuration, revision = (str(getattr(one, "value", "")) for one in values)
    return namespace, configuration, revision


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)
