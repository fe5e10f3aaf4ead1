"""Reports a policy's results: sums, waits and medians of a workload, or a timeline and plot of one revision."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serving.tools.simulator.results import Moment, NodesResult, PromptFigures, RevisionResult, WaitHistogram, summed

_HOUR_S = 3600.0
# For the comparison by function: the minimum number of requests, and the share of worst functions.
_COUNTED_REQUESTS_MIN, _WORST_SHARE, _WORSE_RATIO = 20, 0.05, 1.1
COLD_WORTH_S = 60.0
"""Price of a cold request in pod-seconds, for uses with a single price."""

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLOT_COLUMNS = 72


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's results on a workload. Counts are summed over revisions and averaged over seeds.

    Cold requests waited for a pod to become ready, late ones waited more than 10 ms. Wasted pod-seconds had a ready pod
    without requests. Flaps are changes of direction of the scale. ``attained_share`` is the share of requests that met
    the latency goal. Percentiles of waits are over all requests.
    """

    requests: float
    cold_requests: float
    """Requests that waited for a pod to become ready."""

    pod_starts: float
    pod_seconds: float
    """From the creation of each pod to its end, draining included; a second of a dormant pod counts at its price."""

    wasted_pod_seconds: float
    """Pod-seconds with a ready pod and no request in flight."""

    wait_p50_s: float
    wait_p99_s: float
    wait_p999_s: float
    late_share: float
    """Share of requests that waited more than 10 ms."""

    flaps_per_hour: float
    """Changes of direction of the scale, over all revisions."""

    attained_share: float | None
    """Share of the requests that met the limit of the goal for latency; None without a goal."""

    refused: float
    per_revision: Mapping[str, float]
    """Medians over the revisions with requests, and the 75th percentile of their cold share."""

    failed_starts: float = 0
    dormant_seconds: float = 0
    """Seconds of dormant pods, each counted as one."""

    decisions: float = 0
    pod_series: list[float] = []
    """Mean pods of all revisions in equal parts of the simulated time."""

    nodes: NodesResult | None = None
    """The results of the nodes; None without limits of capacity."""

    prompts: PromptFigures | None = None
    """The figures of model servers, with the first seed; None without prompts."""


class FunctionChange(msgspec.Struct, frozen=True, kw_only=True):
    """One function's results as (baseline, policy) pairs of cold requests and pod-seconds."""

    name: str
    cold_requests: tuple[int, int]
    pod_seconds: tuple[float, float]

    @property
    def cost_change(self) -> float:
        """The cost above the first policy's, in pod-seconds; each cold request costs 60."""
        (cold, cold_now), (cost, cost_now) = self.cold_requests, self.pod_seconds
        return cost_now - cost + COLD_WORTH_S * (cold_now - cold)

    @property
    def is_worse(self) -> bool:
        """Whether the policy has over 10 % more cold requests and over 10 % more pod-seconds."""
        (cold, cold_now), (cost, cost_now) = self.cold_requests, self.pod_seconds
        return cold_now > _WORSE_RATIO * cold and cost_now > _WORSE_RATIO * cost


class WorstFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """The functions with the worst results compared with the first policy.

    ``functions`` counts the compared functions, which have at least 20 requests per seed. ``worse`` counts those that
    have over 10 % more cold requests and over 10 % more pod-seconds. ``worst`` lists the functions whose cost rises
    most.
    """

    functions: int
    worse: int
    """The functions with over 10 % more cold requests and over 10 % more pod-seconds."""

    worst: tuple[FunctionChange, ...]
    """The 5 % of functions with the largest increase in cost, worst first."""


def summed_over_seeds(results_by_seed: Sequence[Sequence[RevisionResult]]) -> list[RevisionResult]:
    """The requests, cold requests and pod-seconds of each function over all seeds."""
    return [
        RevisionResult(
            name=results[0].name,
            requests=sum(result.requests for result in results),
            cold_requests=sum(result.cold_requests for result in results),
            pod_seconds=sum(result.pod_seconds for result in results),
        )
        for results in zip(*results_by_seed, strict=True)
    ]


def worst_functions(
    first: Sequence[RevisionResult], others: Sequence[RevisionResult], *, seeds: int = 1
) -> WorstFunctions | None:
    """Compare two policies by function; None if no function has 20 requests per seed.

    Both sequences have the same functions in the same order.
    """
    changes = [
        FunctionChange(
            name=result.name,
            cold_requests=(result.cold_requests, other.cold_requests),
            pod_seconds=(round(result.pod_seconds, 1), round(other.pod_seconds, 1)),
        )
        for result, other in zip(first, others, strict=True)
        if result.requests >= _COUNTED_REQUESTS_MIN * seeds
    ]
    if not changes:
        return None
    changes.sort(key=lambda change: (-change.cost_change, change.name))
    return WorstFunctions(
        functions=len(changes),
        worse=sum(change.is_worse for change in changes),
        worst=tuple(changes[: math.ceil(_WORST_SHARE * len(changes))]),
    )


def report_of(results: Sequence[RevisionResult], length_s: float, *, nodes: NodesResult | None = None) -> PolicyReport:
    """The report of one run."""
    requests = sum(result.requests for result in results)
    waits = WaitHistogram()
    for result in results:
        waits.update(result.waits)
    hours = max(length_s, 1.0) / _HOUR_S
    return PolicyReport(
        requests=requests,
        cold_requests=sum(result.cold_requests for result in results),
        pod_starts=sum(result.pod_starts for result in results),
        pod_seconds=round(sum(result.pod_seconds for result in results), 3),
        wasted_pod_seconds=round(sum(result.wasted_pod_seconds for result in results), 3),
        wait_p50_s=waits.percentile(0.5, requests=requests),
        wait_p99_s=waits.percentile(0.99, requests=requests),
        wait_p999_s=waits.percentile(0.999, requests=requests),
        late_share=sum(result.late_requests for result in results) / requests if requests else 0.0,
        flaps_per_hour=sum(result.flaps for result in results) / hours,
        attained_share=attained_share(results),
        refused=sum(result.refused for result in results),
        per_revision=_medians([result for result in results if result.requests]),
        failed_starts=sum(result.failed_starts for result in results),
        dormant_seconds=round(sum(result.dormant_seconds for result in results), 3),
        decisions=sum(result.decisions for result in results),
        pod_series=summed([result.pod_series for result in results]),
        nodes=nodes,
        prompts=next((result.prompts for result in results if result.prompts is not None), None),
    )


def attained_share(results: Sequence[RevisionResult]) -> float | None:
    """The share of the requests that met the limit of a goal; None if no request was judged."""
    judged = [counts for result in results for counts in result.minutes.values()]
    count = sum(count for count, _ in judged)
    return 1.0 - sum(late for _, late in judged) / count if count else None


def mean_report(reports: Sequence[PolicyReport]) -> PolicyReport:
    """The mean of the reports of several seeds."""
    if len(reports) == 1:
        return reports[0]
    values = [msgspec.structs.asdict(report) for report in reports]
    mean = {
        key: statistics.fmean(fields[key] for fields in values)
        for key in values[0]
        if key not in ("per_revision", "pod_series", "nodes", "attained_share", "prompts")
    }
    attained = [report.attained_share for report in reports if report.attained_share is not None]
    nodes = [report.nodes for report in reports if report.nodes is not None]
    return PolicyReport(
        per_revision={
            key: statistics.fmean(report.per_revision[key] for report in reports) for key in reports[0].per_revision
        },
        pod_series=[total / len(reports) for total in summed([report.pod_series for report in reports])],
        nodes=_mean_nodes(nodes) if nodes else None,
        attained_share=statistics.fmean(attained) if attained else None,
        prompts=reports[0].prompts,
        **mean,
    )


def _mean_nodes(results: Sequence[NodesResult]) -> NodesResult:
    values = [msgspec.structs.asdict(result) for result in results]
    mean = {key: statistics.fmean(fields[key] for fields in values) for key in values[0] if key != "node_series"}
    return NodesResult(
        node_series=[total / len(results) for total in summed([result.node_series for result in results])], **mean
    )


def _medians(results: Sequence[RevisionResult]) -> Mapping[str, float]:
    if not results:
        return {}
    shares = [result.cold_requests / result.requests for result in results]
    values: dict[str, list[float]] = {
        "requests": [result.requests for result in results],
        "cold_requests": [result.cold_requests for result in results],
        "cold_share": shares,
        "pod_starts": [result.pod_starts for result in results],
        "pod_seconds": [result.pod_seconds for result in results],
        "wasted_pod_seconds": [result.wasted_pod_seconds for result in results],
        "wait_p99_s": [result.waits.percentile(0.99, requests=result.requests) for result in results],
        "late_share": [result.late_requests / result.requests for result in results],
        "flaps": [result.flaps for result in results],
    }
    medians = {name: float(statistics.median(of)) for name, of in values.items()}
    medians["cold_share_p75"] = statistics.quantiles(shares, n=4)[2] if len(shares) > 1 else shares[0]
    return medians


def timeline(moments: Sequence[Moment]) -> Iterator[str]:
    """One line, with the reason, per change of the scale or of the gate, which decides on scale to zero."""
    before: Moment | None = None
    for moment in moments:
        if before is None or moment.scale != before.scale or moment.gate.reason is not before.gate.reason:
            yield (
                f"{moment.at_s:7.1f} s  ready {moment.ready_count:<4} running {moment.running_count:<5} "
                f"waiting {moment.waiting_count:<5} {moment.reason}"
            )
        before = moment


def plot(moments: Sequence[Moment], until_s: float) -> Iterator[str]:
    """Load and pods over time, one column per interval."""
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


def summary(result: RevisionResult, latencies_s: Sequence[float], until_s: float) -> str:
    """A sentence about a run: the number of requests, their latencies, and the pod-seconds."""
    latencies_s = sorted(latencies_s)
    if not latencies_s:
        return f"no request in {until_s:g} s"
    p95_s = latencies_s[int(len(latencies_s) * 0.95)]
    return (
        f"{len(latencies_s)} requests answered, {result.refused} refused; latency median "
        f"{statistics.median(latencies_s):.2f} s, p95 {p95_s:.2f} s, longest {latencies_s[-1]:.2f} s; "
        f"{result.pod_seconds:.0f} pod seconds in {until_s:g} s"
    )


_COLUMNS = 60
_BAR = "█"


def policy_table(reports: Mapping[str, PolicyReport]) -> Iterator[str]:
    """A line for each policy."""
    width = max(8, *(len(name) for name in reports))
    has_goal = any(report.attained_share is not None for report in reports.values())
    yield (
        f"{'policy':<{width}} {'requests':>10} {'cold':>9} {'starts':>9} {'pod-hours':>10} {'wasted':>7} {'p99 wait':>9} "
        f"{'p99.9':>9} {'late':>7} {'flaps/h':>9} {'refused':>8}" + has_goal * f" {'attained':>9}"
    )
    for name, report in reports.items():
        wasted = report.wasted_pod_seconds / report.pod_seconds if report.pod_seconds else 0.0
        yield (
            f"{name:<{width}} {report.requests:>10.0f} {report.cold_requests:>9.0f} {report.pod_starts:>9.0f} "
            f"{report.pod_seconds / 3600:>10.2f} {wasted:>7.0%} {report.wait_p99_s:>7.2f} s {report.wait_p999_s:>7.2f} s "
            f"{report.late_share:>7.2%} {report.flaps_per_hour:>9.1f} {report.refused:>8.0f}"
            + has_goal
            * f" {'-' if report.attained_share is None else f'{report.attained_share:.1%}':>9}"
        )


def bars(values: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """One bar per quantity and policy. The longest bar of a quantity fills the line."""
    width = max(len(name) for name in values)
    for quantity in next(iter(values.values())):
        top = max(of[quantity] for of in values.values()) or 1
        yield quantity
        for name, of in values.items():
            yield f"  {name:<{width}} {_BAR * round(of[quantity] / top * _COLUMNS):<{_COLUMNS}} {of[quantity]:,.0f}"


def sparkline(series: Sequence[float]) -> str:
    """A series as one line of blocks. Each block shows the largest value of a part of the series."""
    if not series:
        return ""
    step = max(1, -(-len(series) // _COLUMNS))
    peaks = [max(series[start : start + step]) for start in range(0, len(series), step)]
    top = max(peaks) or 1.0
    return "".join(_BLOCKS[-int(-peak / top * (len(_BLOCKS) - 1) // 1)] for peak in peaks)
