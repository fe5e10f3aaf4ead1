"""Four numbers of each revision as opencensus measures with views.

Only this module imports opencensus, which is no longer maintained. ``reporter`` imports this module, and works without
it if the import fails. Measurements are passed directly to the views, and not to ``MeasurementMap.record``, for two
reasons: that calls ``datetime.utcnow``, which Python deprecates, and it copies every row of the view for exporters,
which takes milliseconds with 500 revisions. This module drops rows of deleted revisions, which opencensus never does.
"""

import datetime as dt
import warnings
from collections.abc import Collection, Iterator, Sequence

from serving.net.metrics.names import AUTOSCALER_METRICS, named

with warnings.catch_warnings():
    # Warnings during opencensus' import are not the user's fault.
    warnings.simplefilter("ignore")
    from opencensus.stats.aggregation import LastValueAggregation
    from opencensus.stats.measure import MeasureInt
    from opencensus.stats.metric_utils import view_data_to_metric
    from opencensus.stats.view import View
    from opencensus.stats.view_data import ViewData
    from opencensus.tags.tag_key import TagKey
    from opencensus.tags.tag_map import TagMap
    from opencensus.tags.tag_value import TagValue

Labels = tuple[str, str, str]
"""Namespace, configuration and revision."""

_ONE = "1"
# The columns of a view, in this order.
_TAGS = [TagKey(name) for name in ("namespace", "configuration", "revision")]


class OpencensusViews:
    """A last-value view for each measure, in the order of ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        now = dt.datetime.now(tz=dt.UTC)
        self._views: list[ViewData] = []
        for name in names:
            measure = MeasureInt(name, named(AUTOSCALER_METRICS, name).help_text, _ONE)
            view = View(measure.name, measure.description, _TAGS, measure, LastValueAggregation())
            self._views.append(ViewData(view=view, start_time=now, end_time=now))
        self._tag_maps: dict[Labels, TagMap] = {}

    def record(self, labels: Labels, values: Sequence[int | None]) -> None:
        """Record one value for each measure; None keeps the previous value."""
        tags = self._tag_maps.get(labels)
        if tags is None:
            tags = self._tag_maps[labels] = _tag_map(labels)
        now = dt.datetime.now(tz=dt.UTC)
        for view, value in zip(self._views, values, strict=True):
            if value is not None:
                view.record(context=tags, value=value, timestamp=now)

    def drop(self, rows: Collection[Labels]) -> None:
        """Drop rows from all views."""
        for labels in rows:
            self._tag_maps.pop(labels, None)
            for view in self._views:
                view.tag_value_aggregation_data_map.pop(labels, None)

    def pull(self) -> Iterator[tuple[str, list[tuple[Labels, float]]]]:
        """The rows of each measure, by name; measures without rows are omitted."""
        now = dt.datetime.now(tz=dt.UTC)
        for view in self._views:
            metric = view_data_to_metric(view, now)
            if metric is not None:
                rows = [
                    (_labels(series.label_values), float(series.points[0].value.value)) for series in metric.time_series
                ]
                yield metric.descriptor.name, rows


def _tag_map(labels: Labels) -> TagMap:
    tags = TagMap()
    for name, value in zip(_TAGS, labels, strict=True):
        # Tag values are printable ASCII of at most 255 characters, like Kubernetes names.
        tags.insert(name, TagValue(value))
    return tags


def _labels(values: list[object]) -> Labels:
    namespace, configuration, revision = (str(getattr(label, "value", "")) for label in values)
    return namespace, configuration, revision
