"""Tables, bars and sparklines of a comparison, as text."""

from collections.abc import Iterator, Mapping, Sequence

from serving.tools.simulator.report import PolicyReport

_COLUMNS = 60
_BAR = "█"
_BLOCKS = " ▁▂▃▄▅▆▇█"


def policy_table(reports: Mapping[str, PolicyReport]) -> Iterator[str]:
    """A line for each policy."""
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
