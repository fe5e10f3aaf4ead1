"""The load of all nodes at one time, in load-watcher's JSON, or read from Prometheus.

Input: a report, or a body of ``GET /watcher``; output: the other. Follows paypal/load-watcher 17df8f9, pkg/watcher:
values are in percent, ``AVG`` and ``STD`` over a window of 15, 10 or 5 minutes. The JSON has the level
``NodeMetricsMap``, which load-watcher's service sends and its client reads, but which its documented example lacks.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.nodata import NoData
from serving.core.settings.placement import LoadSourceSettings, PlacementQuirks
from serving.nodes.placement.scores.metrics import NodeMetric, NodeUsage, Usage, read_usage

WINDOWS_S = (900.0, 600.0, 300.0)
"""The windows of load-watcher in seconds, widest first."""

_EXPECTED = "a load-watcher's answer: window.end and data.NodeMetricsMap with metrics of each node"

_CPU_METRIC = "instance:node_cpu:ratio"
_MEMORY_METRIC = "instance:node_memory_utilisation:ratio"
_LABEL = "instance"
_RESPONSE_EXPECTED = "an answer of Prometheus with a vector: status success, data.resultType vector"
_MISSING = NoData(missing="measurement of the node in Prometheus")


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Load of nodes, measured by ``source`` in the ``window_s`` seconds before ``at_s`` (since the epoch)."""

    source: str
    at_s: float
    window_s: float
    usages: Mapping[str, NodeUsage]


class _WatcherMetric(msgspec.Struct, frozen=True):
    type: str = ""
    operator: str = ""
    value: float | None = None


class _WatcherNode(msgspec.Struct, frozen=True):
    metrics: list[_WatcherMetric] | None = None


class _WatcherData(msgspec.Struct, frozen=True):
    nodes: dict[str, _WatcherNode | None] | None = msgspec.field(default=None, name="NodeMetricsMap")


class _WatcherWindow(msgspec.Struct, frozen=True):
    start: float = 0.0
    end: float = 0.0


class _WatcherBody(msgspec.Struct, frozen=True):
    window: _WatcherWindow
    data: _WatcherData
    source: str = ""


def read_watcher_body(body: bytes, *, quirks: PlacementQuirks) -> LoadReport:
    """Parse a response of ``GET /watcher``. Raises ``InvalidValue``."""
    try:
        report = msgspec.json.decode(body, type=_WatcherBody)
    except UNREADABLE as error:
        raise InvalidValue(text=f"{body[:80]!r} ({error})", expected=_EXPECTED) from error
    at_s = report.window.end
    listed = {
        name: node.metrics for name, node in (report.data.nodes or {}).items() if node and node.metrics is not None
    }
    return LoadReport(
        source=report.source or "load-watcher",
        at_s=at_s,
        window_s=max(0.0, at_s - report.window.start),
        usages={name: read_usage(_metrics(metrics), at_s=at_s, quirks=quirks) for name, metrics in listed.items()},
    )


def _metrics(metrics: list[_WatcherMetric]) -> list[NodeMetric]:
    return [
        NodeMetric(type=metric.type, operator=metric.operator, value=metric.value)
        for metric in metrics
        if metric.value is not None
    ]


def watcher_body(report: LoadReport, *, host: str = "") -> bytes | None:
    """The response of ``GET /watcher`` for all nodes, or for the node ``host``; None if the node has no metrics."""
    usages = report.usages if not host else {host: report.usages[host]} if host in report.usages else {}
    if not usages:
        return None
    rollup, end = window_text(report.window_s), int(report.at_s)
    body: dict[str, Any] = {
        "timestamp": end,
        "window": {"duration": rollup, "start": end - int(report.window_s), "end": end},
        "source": report.source,
        "data": {"NodeMetricsMap": {name: _written(usage, rollup) for name, usage in sorted(usages.items())}},
    }
    return msgspec.json.encode(body)


def _written(usage: NodeUsage, rollup: str) -> dict[str, Any]:
    metrics = [
        {"name": f"{name}.{operator.lower()}", "type": name, "operator": operator, "rollup": rollup, "value": value}
        for name, usage_part in (("CPU", usage.cpu), ("Memory", usage.memory))
        if isinstance(usage_part, Usage)
        for operator, value in (("AVG", usage_part.mean_percent), ("STD", usage_part.deviation_percent))
        if math.isfinite(value)
    ]
    return {"metrics": metrics, "tags": {}, "metadata": {"dataCenter": ""}}


def window_text(window_s: float) -> str:
    """A window in load-watcher's format: the widest of 15m, 10m and 5m that fits, else 5m."""
    return f"{int(next((length_s for length_s in WINDOWS_S if window_s >= length_s), WINDOWS_S[-1]) // 60)}m"


class _Sample(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _QueryData(msgspec.Struct, frozen=True, rename="camel"):
    result: list[msgspec.Raw] = []


class _QueryResponse(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _QueryData = _QueryData()
    error_type: str = ""
    error: str = ""


def queries(settings: LoadSourceSettings, window_s: float) -> dict[str, str]:
    """PromQL queries by quantity: the mean and the deviation of cpu and memory over a window."""
    window = window_text(window_s)
    metrics = {"cpu": settings.cpu_metric or _CPU_METRIC, "memory": settings.memory_metric or _MEMORY_METRIC}
    # A plain name takes a range; other expressions need a subquery.
    ranges = {key: f"{text}[{window}]" if _is_name(text) else f"({text})[{window}:]" for key, text in metrics.items()}
    return {
        f"{key} {part}": f"{function}({text})"
        for key, text in ranges.items()
        for part, function in (("mean", "avg_over_time"), ("deviation", "stddev_over_time"))
    }


def read_vector(body: bytes, settings: LoadSourceSettings) -> dict[str, float]:
    """Parse values in percent by node name. Raises ``InvalidValue``.

    If a node has several series, the highest value counts.
    """
    label = settings.node_label or _LABEL
    try:
        response = msgspec.json.decode(body, type=_QueryResponse)
        if response.status != "success":
            raise InvalidValue(text=f"{response.error_type}: {response.error}"[:200], expected=_RESPONSE_EXPECTED)
        samples = [msgspec.json.decode(sample, type=_Sample) for sample in response.data.result]
    except UNREADABLE as error:
        raise InvalidValue(text=f"{body[:80]!r} ({error})", expected=_RESPONSE_EXPECTED) from error
    percents: dict[str, float] = {}
    for sample in samples:
        name, percent = _name_of(sample.metric.get(label, "")), _percent(sample.value[1])
        if name and percent is not None:
            percents[name] = max(percent, percents.get(name, -math.inf))
    return percents


def node_usages(vectors: Mapping[str, Mapping[str, float]], *, at_s: float) -> dict[str, NodeUsage]:
    """The usage of each node. ``vectors`` has values by node, for each key of ``queries``.

    A node without a mean has no measurement.
    """

    def usage(resource: str, node: str) -> Usage | NoData:
        mean = vectors.get(f"{resource} mean", {}).get(node)
        if mean is None:
            return _MISSING
        deviation = vectors.get(f"{resource} deviation", {}).get(node, 0.0)
        return Usage(mean_percent=mean, deviation_percent=deviation)

    nodes = {node for values in vectors.values() for node in values}
    return {node: NodeUsage(at_s=at_s, cpu=usage("cpu", node), memory=usage("memory", node)) for node in sorted(nodes)}


def _is_name(text: str) -> bool:
    return all(character.isalnum() or character in ":_" for character in text)


def _name_of(value: str) -> str:
    name, colon, port = value.rpartition(":")
    return name if colon and port.isdigit() else value


def _percent(text: Any) -> float | None:  # noqa: ANN401 - JSON
    try:
        value = float(text) * 100
    except ValueError:
        return None
    return value if math.isfinite(value) else None
