"""The results in ``docs/scaling-quality.md`` and their charts, from what ``bench/quality.py`` keeps."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.parts.quality_cells import Cell, table
from serving.tools.cli.decisions.simulatetrace import Comparison
from serving.tools.simulator.curve import CurvePoint
from serving.tools.simulator.report import PolicyReport

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_COLOURS = {"knative": "#888888", "adaptive": "#0b6cff"}


class QualityResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies did on a workload of the test."""

    name: str
    title: str
    is_heavy: bool
    functions: int
    requests: float
    comparison: Comparison
    knative_curve: list[CurvePoint]

    # Results of before are without these two.
    cold_interval: tuple[float, float] | None = None
    """The central 95 % of the change in cold requests over resamples of the functions; None for one function."""

    seeds: int | None = None


def result_lines(results: Sequence[QualityResult], images: Path) -> list[str]:
    """The results in markdown; writes a chart for each workload."""
    parts = [*_summary(results)]
    for result in results:
        (images / f"scaling-{result.name}.svg").write_text(_chart(result))
        parts += ["", *_workload(result)]
    return parts


def cell_lines(cells: Sequence[Cell]) -> list[str]:
    """The cells of ``bench/quality_grid.py`` in markdown."""
    return [f"{sum(one.is_worse for one in cells)} of {len(cells)} cells are worse.", "", *table(cells)]


def _summary(results: Sequence[QualityResult]) -> Iterator[str]:
    yield "## Results against Knative's defaults"
    yield ""
    yield "The first four changes are at Knative's pod-seconds, the last two as shipped."
    yield ""
    yield (
        "| workload | functions | requests | cold requests | 95 % of resamples | p99 wait | waited over 10 ms | flaps "
        "| as shipped: cold requests | pod-seconds |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for result in results:
        equal = (result.comparison.at_equal_pod_seconds or {})["adaptive"]
        knative, shipped = (result.comparison.policies[name] for name in ("knative", "adaptive"))
        changes = (
            equal.cold_change,
            equal.wait_p99_change,
            equal.late_change,
            equal.flaps_change,
            shipped.cold_requests / knative.cold_requests - 1,
            shipped.pod_seconds / knative.pod_seconds - 1,
        )
        low_high = result.cold_interval
        interval = "-" if low_high is None else f"{low_high[0]:+.0%} to {low_high[1]:+.0%}"
        shown = " | ".join((_change(changes[0]), interval, *map(_change, changes[1:])))
        yield f"| {result.title} | {result.functions} | {result.requests:.0f} | {shown} |"


def _workload(result: QualityResult) -> Iterator[str]:
    yield f"## {result.title}"
    yield ""
    yield "| policy | pod-hours | cold requests | pod starts | p99 wait | waited over 10 ms | flaps an hour |"
    yield "|---|---|---|---|---|---|---|"
    for name, report in result.comparison.policies.items():
        yield _row(name, report)
    for point in result.comparison.curves.get("adaptive", []):
        yield _row(f"adaptive, {point.name}", point.report)
    for point in result.knative_curve:
        yield _row(f"knative, {point.name}", point.report)
    yield ""
    yield f"![{result.title}: the curve of each policy](img/scaling-{result.name}.svg)"


def _row(name: str, report: PolicyReport) -> str:
    return (
        f"| {name} | {report.pod_seconds / 3600:.2f} | {report.cold_requests:.0f} | {report.pod_starts:.0f} | "
        f"{report.wait_p99_s:.2f} s | {report.late_share:.2%} | {report.flaps_per_hour:.1f} |"
    )


def _change(change: float | None) -> str:
    return "-" if change is None else f"{change:+.0%}"


def _chart(result: QualityResult) -> str:
    """Cold requests, or under a heavy load the share of requests that waited, over pod-hours; a line for each policy."""

    def value(report: PolicyReport) -> float:
        return report.late_share * 100 if result.is_heavy else report.cold_requests

    curves = {"knative": result.knative_curve, "adaptive": result.comparison.curves.get("adaptive", [])}
    lines = {
        name: sorted((point.report.pod_seconds / 3600, value(point.report)) for point in curve)
        for name, curve in curves.items()
    }
    points = [point for line in lines.values() for point in line]
    x_max, y_max = max(x for x, _ in points) * 1.05, (max(y for _, y in points) or 1.0) * 1.05
    x_min = min(x for x, _ in points) * 0.95

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = _MARGIN + (point[0] - x_min) / (x_max - x_min) * (_WIDTH - 2 * _MARGIN)
        return x, _HEIGHT - _MARGIN - point[1] / y_max * (_HEIGHT - 2 * _MARGIN)

    return "\n".join((*_axes(result, x_min, x_max, y_max), *_lines(lines, at), "</svg>")) + "\n"


def _axes(result: QualityResult, x_min: float, x_max: float, y_max: float) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    yield f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}" fill="none" stroke="#333"/>'
    what = "waited over 10 ms, %" if result.is_heavy else "cold requests"
    yield f'<text x="{_MARGIN}" y="{_MARGIN - 12}">{what} (top: {y_max:.3g})</text>'
    yield f'<text x="{right}" y="{bottom + 32}" text-anchor="end">pod-hours, {x_min:.3g} to {x_max:.3g}</text>'


def _lines(
    lines: dict[str, list[tuple[float, float]]], at: Callable[[tuple[float, float]], tuple[float, float]]
) -> Iterator[str]:
    for index, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[name]
        places = [at(point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        yield f'<text x="{_WIDTH - _MARGIN}" y="{_MARGIN + 16 * index}" text-anchor="end" fill="{colour}">{name}</text>'
