"""Charts of a comparison: an SVG image with cold requests over pod-hours and pods over time, and text tables and bars.

On the left each policy is a point, and its dial a line; down and left is better. The image needs no script and no font of
its own, and takes the colours of the page's light or dark scheme.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import msgspec

from serving.tools.simulator.curve import CurvePoint
from serving.tools.simulator.report import PolicyReport

_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
_HEIGHT, _PANEL_WIDTH, _MARGIN = 360, 440, 60
_SECONDS_PER_HOUR = 3600.0
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.axis{stroke:#999}.grid{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#777}.grid{stroke:#444}}"
)

_COLUMNS = 60
_BAR = "█"
_BLOCKS = " ▁▂▃▄▅▆▇█"


class _ChartPanel(msgspec.Struct, frozen=True, kw_only=True):
    """One coordinate system: its position, and the largest value of both axes."""

    left: float
    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        """The horizontal position of a value."""
        return self.left + value / self.x_max * (_PANEL_WIDTH - _MARGIN)

    def y(self, value: float) -> float:
        """The vertical position of a value."""
        return _HEIGHT - _MARGIN - value / self.y_max * (_HEIGHT - 2 * _MARGIN)

    def axes(self, title: str, x_title: str, *, x_unit: float = 1.0) -> Iterator[str]:
        """Axes with four ticks each."""
        bottom, right = self.y(0.0), self.x(self.x_max)
        yield f'<text x="{self.left}" y="{_MARGIN - 24}" font-weight="600">{escape(title)}</text>'
        for step in range(5):
            share = step / 4
            y, x = self.y(self.y_max * share), self.x(self.x_max * share)
            yield f'<line class="grid" x1="{self.left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(self.y_max * share)}</text>'
            yield f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{_short(self.x_max * share / x_unit)}</text>'
        yield f'<line class="axis" x1="{self.left}" x2="{right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>'
        yield f'<text x="{(self.left + right) / 2:.1f}" y="{bottom + 34:.1f}" text-anchor="middle">{escape(x_title)}</text>'


def comparison_svg(
    policies: Mapping[str, PolicyReport], curves: Mapping[str, Sequence[CurvePoint]], *, length_s: float
) -> str:
    """The image. ``curves`` may lack policies whose dial was not swept."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _PANEL_WIDTH + _MARGIN} {_HEIGHT}" role="img">',
        f"<title>Cold requests over pod-hours, and pods over time: {escape(', '.join(policies))}</title>",
        f"<style>{_STYLE}</style>",
        *_costs(policies, curves),
        *_pods(policies, length_s),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _costs(policies: Mapping[str, PolicyReport], curves: Mapping[str, Sequence[CurvePoint]]) -> Iterator[str]:
    shown = [*policies.values(), *(point.report for points in curves.values() for point in points)]
    panel = _ChartPanel(
        left=_MARGIN,
        x_max=max(report.pod_seconds for report in shown) / _SECONDS_PER_HOUR * 1.05 or 1.0,
        y_max=max(report.cold_requests for report in shown) * 1.05 or 1.0,
    )
    yield from panel.axes("Cold requests", "pod-hours")
    for index, (name, report) in enumerate(policies.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        if name in curves:
            ordered = sorted(curves[name], key=lambda point: point.report.pod_seconds)
            yield _line(
                panel,
                [(point.report.pod_seconds / _SECONDS_PER_HOUR, point.report.cold_requests) for point in ordered],
                colour,
            )
        x, y = panel.x(report.pod_seconds / _SECONDS_PER_HOUR), panel.y(report.cold_requests)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
        yield f'<rect x="{_MARGIN + 16 + index * 110}" y="{_HEIGHT - 14}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{_MARGIN + 30 + index * 110}" y="{_HEIGHT - 5}">{escape(name)}</text>'


def _pods(policies: Mapping[str, PolicyReport], length_s: float) -> Iterator[str]:
    top = max((value for policy in policies.values() for value in policy.pod_series), default=0.0)
    panel = _ChartPanel(left=_PANEL_WIDTH + _MARGIN, x_max=length_s or 1.0, y_max=top * 1.05 or 1.0)
    unit, unit_s = ("hours", _SECONDS_PER_HOUR) if length_s > 2 * _SECONDS_PER_HOUR else ("seconds", 1.0)
    yield from panel.axes("Pods", unit, x_unit=unit_s)
    for index, report in enumerate(policies.values()):
        series = report.pod_series
        points = [((place + 0.5) / len(series) * length_s, value) for place, value in enumerate(series)]
        yield _line(panel, points, _COLOURS[index % len(_COLOURS)])


def _line(panel: _ChartPanel, points: Sequence[tuple[float, float]], colour: str) -> str:
    places = " ".join(f"{panel.x(x):.1f},{panel.y(y):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _short(value: float) -> str:
    """A number in short: 12,345 is 12k."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}"


def policy_table(reports: Mapping[str, PolicyReport]) -> Iterator[str]:
    """A table with one line per policy."""
    width = max(8, *(len(name) for name in reports))
    yield (
        f"{'policy':<{width}} {'requests':>10} {'cold':>9} {'starts':>9} {'pod-hours':>10} {'wasted':>7} {'p99 wait':>9} "
        f"{'p99.9':>9} {'late':>7} {'flaps/h':>9} {'refused':>8}"
    )
    for name, report in reports.items():
        wasted = report.wasted_pod_seconds / report.pod_seconds if report.pod_seconds else 0.0
        yield (
            f"{name:<{width}} {report.requests:>10.0f} {report.cold_requests:>9.0f} {report.pod_starts:>9.0f} "
            f"{report.pod_seconds / 3600:>10.2f} {wasted:>7.0%} {report.wait_p99_s:>7.2f} s {report.wait_p999_s:>7.2f} s "
            f"{report.late_share:>7.2%} {report.flaps_per_hour:>9.1f} {report.refused:>8.0f}"
        )


def bars(values: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """For each quantity a bar of each policy; the longest bar fills the line."""
    width = max(len(name) for name in values)
    for quantity in next(iter(values.values())):
        top = max(of[quantity] for of in values.values()) or 1
        yield quantity
        for name, of in values.items():
            yield f"  {name:<{width}} {_BAR * round(of[quantity] / top * _COLUMNS):<{_COLUMNS}} {of[quantity]:,.0f}"


def sparkline(series: Sequence[float]) -> str:
    """A series as one line: the largest value of each part fills the height."""
    if not series:
        return ""
    step = max(1, -(-len(series) // _COLUMNS))
    peaks = [max(series[start : start + step]) for start in range(0, len(series), step)]
    top = max(peaks) or 1.0
    return "".join(_BLOCKS[-int(-peak / top * (len(_BLOCKS) - 1) // 1)] for peak in peaks)
