"""The load of nodes from SignalFx (Splunk Observability): what to ask, and what the answers say.

Input: the settings, a window, and answers of ``/v1/timeserieswindow`` and ``/v2/metrictimeseries``. Output: the parameters of
both calls, and mean and deviation of each node in percent over the points of the window, one a minute. Follows
paypal/load-watcher 17df8f9, which takes the last point for the mean and has no deviation.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.model.errors import InvalidValue
from serving.model.nodata import NoData
from serving.placement.scores.metrics import Usage, usage_of
from serving.settings.loadsource import LoadSourceSettings

POINTS_PATH = "/v1/timeserieswindow"
METADATA_PATH = "/v2/metrictimeseries"
_RESOLUTION_MS = 60_000
_SERIES_MAX = 10_000
_HOST = "host"
_POINTS_EXPECTED = "points of SignalFx: data with [time, value] pairs by series"
_METADATA_EXPECTED = "series of SignalFx: results with id and dimensions"
_MISSING = NoData(missing="measurement of the node in SignalFx")


class _SignalFxPoints(msgspec.Struct, frozen=True):
    data: dict[str, list[tuple[float, float | None]]]


class _SignalFxSeries(msgspec.Struct, frozen=True):
    id: str = ""
    dimensions: dict[str, str | None] = {}


class _SignalFxMetadata(msgspec.Struct, frozen=True):
    results: list[_SignalFxSeries]


def metrics_of(settings: LoadSourceSettings) -> dict[str, str]:
    """The metric of each resource."""
    return {"cpu": settings.cpu_metric or "cpu.utilization", "memory": settings.memory_metric or "memory.utilization"}


def points_parameters(settings: LoadSourceSettings, metric: str, *, end_s: float, window_s: float) -> dict[str, str]:
    """The query of ``POINTS_PATH`` for the points of a metric in a window."""
    return {
        "query": _query(settings, metric),
        "startMs": str(int((end_s - window_s) * 1000)),
        "endMs": str(int(end_s * 1000)),
        "resolution": str(_RESOLUTION_MS),
    }


def metadata_parameters(settings: LoadSourceSettings, metric: str) -> dict[str, str]:
    """The query of ``METADATA_PATH`` for the hosts of the series of a metric."""
    return {"query": _query(settings, metric), "limit": str(_SERIES_MAX)}


def read_series(points: bytes, metadata: bytes, settings: LoadSourceSettings) -> dict[str, Usage | NoData]:
    """The usage of each node, from both answers. Raises ``InvalidValue``."""
    try:
        values = msgspec.json.decode(points, type=_SignalFxPoints).data
    except msgspec.MsgspecError as error:
        raise InvalidValue(text=f"{points[:80]!r} ({error})", expected=_POINTS_EXPECTED) from error
    try:
        series = msgspec.json.decode(metadata, type=_SignalFxMetadata).results
    except msgspec.MsgspecError as error:
        raise InvalidValue(text=f"{metadata[:80]!r} ({error})", expected=_METADATA_EXPECTED) from error
    nodes = _node_by_series(series, settings)
    return {
        nodes[one]: usage_of((value for _, value in found), missing=_MISSING)
        for one, found in values.items()
        if one in nodes
    }


def _query(settings: LoadSourceSettings, metric: str) -> str:
    parts = [f"{settings.node_label or _HOST}:*{settings.host_suffix}", f'sf_metric:"{metric}"']
    if settings.cluster:
        parts.insert(1, f"cluster:{settings.cluster}")
    return " AND ".join(parts)


def _node_by_series(series: Sequence[_SignalFxSeries], settings: LoadSourceSettings) -> Mapping[str, str]:
    label = settings.node_label or _HOST
    hosts = {one.id: one.dimensions.get(label) or "" for one in series}
    return {one: host.removesuffix(settings.host_suffix) for one, host in hosts.items() if one and host}
