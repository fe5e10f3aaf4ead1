"""The cells of ``bench/quality_grid.py``, the rules that each must keep, and their table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

COST_MAX, LATE_MAX, WORSE_SHARE_MAX = 0.02, 0.10, 0.02


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One trace at one start time and limit. Changes are ratios against Knative: -0.3 is 30 % less."""

    trace: str
    start_s: float
    limit: int
    functions: int
    requests: int
    cold: float
    late: float
    pod_seconds: float
    cost: float
    worse_functions: int
    counted_functions: int

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """The rules that it breaks, of four."""
        broken = {
            "cold and pod-seconds": self.cold > 0 and self.pod_seconds > 0,
            "late": self.late > LATE_MAX,
            "cost": self.cost > COST_MAX,
            "functions": self.worse_functions > WORSE_SHARE_MAX * self.counted_functions,
        }
        return tuple(rule for rule, is_broken in broken.items() if is_broken)

    @property
    def is_worse(self) -> bool:
        """Whether it breaks one of the four rules."""
        return bool(self.broken_rules)


def read_cells(path: Path) -> list[Cell]:
    """The cells that were kept; none without the file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Cell]) if path.exists() else []


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """The cells as a Markdown table."""
    yield "| trace | start | requests a pod | cold | waited over 10 ms | pod-seconds | cost | functions worse | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in cells:
        changes = " | ".join(f"{change:+.0%}" for change in (one.cold, one.late, one.pod_seconds, one.cost))
        worse = f"{one.worse_functions} of {one.counted_functions}"
        verdict = f"**worse: {', '.join(one.broken_rules)}**" if one.is_worse else ""
        yield f"| {one.trace} | {one.start_s:g} s | {one.limit} | {changes} | {worse} | {verdict} |"


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """The lowest and highest change of each trace over its cells, as a Markdown table."""
    yield f"{sum(cell.is_worse for cell in cells)} of {len(cells)} cells are worse."
    yield ""
    yield "| trace | cold requests | waited over 10 ms | pod-seconds | cost | functions worse |"
    yield "|---|---|---|---|---|---|"
    for trace in dict.fromkeys(cell.trace for cell in cells):
        of_trace = [cell for cell in cells if cell.trace == trace]
        columns = zip(*((cell.cold, cell.late, cell.pod_seconds, cell.cost) for cell in of_trace), strict=True)
        changes = " | ".join(_range(changes) for changes in columns)
        worst = max(of_trace, key=lambda cell: cell.worse_functions)
        yield f"| {trace} | {changes} | {worst.worse_functions} of {worst.counted_functions} |"


def _range(changes: Sequence[float]) -> str:
    low, high = f"{min(changes):+.0%}", f"{max(changes):+.0%}"
    return low if low == high else f"{low} to {high}"
