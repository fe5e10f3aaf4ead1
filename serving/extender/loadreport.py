"""The load of all nodes at one time, and the JSON in which load-watcher sends and Trimaran's plugins read it.

Input: a report, or a body of ``GET /watcher``; output: the other. Follows paypal/load-watcher 17df8f9, pkg/watcher: values are
in percent, ``AVG`` and ``STD`` over a window of 15, 10 or 5 minutes. Its own example lacks the level ``NodeMetricsMap``, which
its service sends and its client reads.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.model.errors import InvalidValue
from serving.placement.scores.metrics import NodeMetric, NodeUsage, Usage, read_usage
from serving.settings.placement import PlacementQuirks

WINDOWS_S = (900.0, 600.0, 300.0)
"""The windows of load-watcher, the widest first."""

_EXPECTED = "a load-watcher's answer: window.end and data.NodeMetricsMap with metrics of each node"


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
    """The report in a response of ``GET /watcher``. Raises ``InvalidValue``."""
    try:
        found = msgspec.json.decode(body, type=_WatcherBody)
    except msgspec.MsgspecError as error:
        raise InvalidValue(text=f"{body[:80]!r} ({error})", expected=_EXPECTED) from error
    at_s = found.window.end
    listed = {name: one.metrics for name, one in (found.data.nodes or {}).items() if one and one.metrics is not None}
    return LoadReport(
        source=found.source or "load-watcher",
        at_s=at_s,
        window_s=max(0.0, at_s - found.window.start),
        usages={name: read_usage(_metrics(metrics), at_s=at_s, quirks=quirks) for name, metrics in listed.items()},
    )


def _metrics(found: list[_WatcherMetric]) -> list[NodeMetric]:
    return [NodeMetric(type=one.type, operator=one.operator, value=one.value) for one in found if one.value is not None]


def watcher_body(report: LoadReport, *, host: str = "") -> bytes | None:
    """The response of ``GET /watcher`` for all nodes or one; None for a node without metrics."""
    usages = report.usages if not host else {host: report.usages[host]} if host in report.usages else {}
    if not usages:
        return None
    rollup, end = window_text(report.window_s), int(report.at_s)
    body: dict[str, Any] = {
        "timestamp": end,
        "window": {"duration": rollup, "start": end - int(report.window_s), "end": end},
        "source": report.source,
        "data": {"NodeMetricsMap": {name: _written(one, rollup) for name, one in sorted(usages.items())}},
    }
    return msgspec.json.encode(body)


def _written(usage: NodeUsage, rollup: str) -> dict[str, Any]:
    metrics = [
        {"name": f"{name}.{operator.lower()}", "type": name, "operator": operator, "rollup": rollup, "value": value}
        for name, found in (("CPU", usage.cpu), ("Memory", usage.memory))
        if isinstance(found, Usage)
        for operator, value in (("AVG", found.mean_percent), ("STD", found.deviation_percent))
        if math.isfinite(value)
    ]
    return {"metrics": metrics, "tags": {}, "metadata": {"dataCenter": ""}}


def window_text(window_s: float) -> str:
    """A window in load-watcher's form: the widest of 15m, 10m and 5m that it fills, else 5m."""
    return f"{int(next((one for one in WINDOWS_S if window_s >= one), WINDOWS_S[-1]) // 60)}m"
