"""What happened on virtual time, as a person reads it: a line for each change with its reason, a plot, a summary."""

import statistics
from collections.abc import Iterator, Sequence

from serving.scaling.kpa.decide import ScaleDecision
from serving.simulator.world import Moment, World

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLOT_COLUMNS = 72


def timeline(moments: Sequence[Moment]) -> Iterator[str]:
    """A line for each moment at which the scale or the way to zero changed."""
    before: Moment | None = None
    for moment in moments:
        if before is None or moment.scale != before.scale or moment.gate.reason is not before.gate.reason:
            was = before.scale if before else 0
            change = f"{was} -> {moment.scale}" if was != moment.scale else f"{moment.scale}"
            yield (
                f"{moment.at_s:7.1f} s  pods {change:<10} ready {moment.ready_count:<4} "
                f"running {moment.running_count:<5} waiting {moment.waiting_count:<5} {reason_of(moment)}"
            )
        before = moment


def reason_of(moment: Moment) -> str:
    """Why the pods are as many as they are, with the numbers that led there."""
    decision, gate = moment.decision, moment.gate
    if not isinstance(decision, ScaleDecision):
        return f"no data: {decision.missing}"
    if decision.desired_count == 0:
        return f"no load; {gate.reason}"
    text = (
        f"{decision.mode}: {decision.observed_panic:.1f} in flight (short window), "
        f"{decision.observed_stable:.1f} (long window), {decision.ready_count} ready"
    )
    return text + (f"; limited by {decision.limited_by}" if decision.limited_by else "")


def plot(moments: Sequence[Moment], until_s: float) -> Iterator[str]:
    """Load and pods over time, a column for each part of it."""
    columns = max(1, min(_PLOT_COLUMNS, len(moments)))
    for name, values in (
        ("requests", [moment.running_count + moment.waiting_count for moment in moments]),
        ("pods", [moment.scale for moment in moments]),
    ):
        peaks = [0] * columns
        for moment, value in zip(moments, values, strict=True):
            column = min(columns - 1, int(moment.at_s / until_s * columns))
            peaks[column] = max(peaks[column], value)
        top = max(1, *peaks)
        bars = "".join(_BLOCKS[-(-peak * (len(_BLOCKS) - 1) // top)] for peak in peaks)
        yield f"{name:>9} {bars} max {max(peaks)}"


def summary(world: World, until_s: float) -> str:
    """Requests, latencies, and what it cost."""
    pod_seconds = sum(
        moment.scale * (following.at_s - moment.at_s)
        for moment, following in zip(world.moments, world.moments[1:], strict=False)
    )
    latencies_s = sorted(world.latencies_s)
    if not latencies_s:
        return f"no request in {until_s:g} s"
    p95_s = latencies_s[int(len(latencies_s) * 0.95)]
    return (
        f"{len(latencies_s)} requests answered, {world.refused_count} refused; latency median "
        f"{statistics.median(latencies_s):.2f} s, p95 {p95_s:.2f} s, longest {latencies_s[-1]:.2f} s; "
        f"{pod_seconds:.0f} pod seconds in {until_s:g} s"
    )
