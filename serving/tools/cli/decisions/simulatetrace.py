"""``serving simulate --trace``: a recorded workload under policies, as a table with plots, or as JSON."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from serving.tools.simulator.curve import (
    CurvePoint,
    DialPosition,
    EqualPodSeconds,
    SimulatedPolicy,
    at_equal_pod_seconds,
    points_around,
    with_way_to_oracle,
)
from serving.tools.simulator.report import (
    PolicyReport,
    WorstFunctions,
    bars,
    mean_report,
    policy_table,
    report_of,
    sparkline,
    worst_functions,
)
from serving.tools.simulator.results import NodesResult, RevisionResult
from serving.tools.simulator.workload_run import Workload, run_workload

# Number of the worst functions in the text; ``--json`` has all functions.
_SHOWN_MAX = 10


class Comparison(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result of a comparison, as printed with ``--json``; each field is by policy.

    ``at_equal_pod_seconds`` and ``curves`` are computed on request only. ``worst_functions`` are the functions with the
    worst results compared with the first policy.
    """

    policies: dict[str, PolicyReport]
    at_equal_pod_seconds: dict[str, EqualPodSeconds] | None = None
    curves: dict[str, list[CurvePoint]] = {}
    worst_functions: dict[str, WorstFunctions] = {}
    """The worst functions of each policy compared with the first policy, with the first seed."""


class PolicyRunner(msgspec.Struct, frozen=True, kw_only=True):
    """Runs a workload under policies once per seed in ``jobs`` processes, and shows the progress.

    ``on_results`` is called with the results of each run, one per function.
    """

    workload: Workload
    seeds: Sequence[int]
    jobs: int
    policies: Mapping[str, SimulatedPolicy]

    on_results: Callable[[str, DialPosition | None, Sequence[RevisionResult]], None] | None = None
    """Called with the results of each run: the policy, the position of the dial, one result per function."""

    def run(self, name: str, position: DialPosition | None = None) -> PolicyReport:
        """Run a policy once per seed; return the mean. ``position`` of its dial changes the policy's settings."""
        shown = name if position is None else f"{name}, {position.name}"
        length = len(self.workload.functions) * len(self.seeds)
        reports = []
        with click.progressbar(length=length, label=shown, file=sys.stderr) as bar:
            for seed in self.seeds:
                nodes: list[NodesResult] = []
                results = run_workload(
                    self.workload,
                    self.policies[name],
                    position=position,
                    seed=seed,
                    jobs=self.jobs,
                    on_progress=lambda: bar.update(1),
                    on_nodes=nodes.append,
                )
                if self.on_results is not None:
                    self.on_results(name, position, results)
                reports.append(report_of(results, self.workload.length_s, nodes=nodes[0] if nodes else None))
        return mean_report(reports)


def compare_policies(runner: PolicyRunner, names: Sequence[str], *, equal_pod_seconds: bool) -> Comparison:
    """Run each policy, and compare the others with the first one.

    ``equal_pod_seconds``: also run each other policy with settings that cost less or more (its dial), to compare it at
    the first policy's pod-seconds.
    """
    results: dict[str, Sequence[RevisionResult]] = {}

    def record_results(name: str, position: DialPosition | None, run_results: Sequence[RevisionResult]) -> None:
        del position
        results.setdefault(name, run_results)

    keeping = msgspec.structs.replace(runner, on_results=record_results)
    comparison = Comparison(policies={name: keeping.run(name) for name in names})
    for name in names[1:]:
        if (worst := worst_functions(results[names[0]], results[name])) is not None:
            comparison.worst_functions[name] = worst
    if not equal_pod_seconds:
        return comparison
    first = comparison.policies[names[0]]
    comparison.at_equal_pod_seconds = {}
    for name in names[1:]:
        points = points_around(
            first.pod_seconds,
            runner.policies[name].dial,
            lambda position, name=name: runner.run(name, position),  # type: ignore[misc]
        )
        comparison.curves[name] = points
        comparison.at_equal_pod_seconds[name] = at_equal_pod_seconds(first, points)
    comparison.at_equal_pod_seconds = with_way_to_oracle(comparison.at_equal_pod_seconds)
    return comparison


def print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """Print a comparison as one JSON object, or as a table and plots."""
    if as_json:
        click.echo(msgspec.json.encode(_without_series(comparison)).decode())
        return
    for line in policy_table(comparison.policies):
        click.echo(line)
    click.echo()
    for line in bars(
        {
            name: {"cold requests": report.cold_requests, "pod-seconds": report.pod_seconds}
            for name, report in comparison.policies.items()
        }
    ):
        click.echo(line)
    click.echo()
    width = max(len(name) for name in comparison.policies)
    for name, report in comparison.policies.items():
        click.echo(
            f"pods of {name:<{width}} {sparkline(report.pod_series)} max {max(report.pod_series, default=0):.1f}"
        )
    for name, report in comparison.policies.items():
        for line in _lines_of_some(f"{name:<{width}}", report):
            click.echo(line)
    bound = comparison.policies.get("clairvoyant")
    if bound is not None and bound.pod_seconds:
        ratios = {name: report.pod_seconds / bound.pod_seconds for name, report in comparison.policies.items()}
        shown = ", ".join(f"{name} {ratio:.2f} times" for name, ratio in ratios.items() if name != "clairvoyant")
        click.echo(f"pod-seconds of clairvoyant: {shown}")
    first = next(iter(comparison.policies))
    for name, change in (comparison.at_equal_pod_seconds or {}).items():
        click.echo(f"at the pod-seconds of {first}, {name}: {_changes(change)}")
    for line in _worst_lines(first, comparison.worst_functions):
        click.echo(line)


def _worst_lines(first: str, by_policy: Mapping[str, WorstFunctions]) -> Iterator[str]:
    for name, functions in by_policy.items():
        yield (
            f"{name}: {functions.worse} of {functions.functions} functions with 20 requests or more have over 10 % more cold requests and "
            f"pod-seconds than {first}; the worst {len(functions.worst)}:"
        )
        for change in functions.worst[:_SHOWN_MAX]:
            cold, cost = change.cold_requests, change.pod_seconds
            yield f"  {change.name}: cold requests {cold[0]} to {cold[1]}, pod-seconds {cost[0]:,.0f} to {cost[1]:,.0f}"


def _lines_of_some(name: str, report: PolicyReport) -> Iterator[str]:
    """The lines about nodes and about prompts; none if the workload had neither."""
    if report.nodes is not None:
        yield f"nodes of {name} {sparkline(report.nodes.node_series)} max {report.nodes.nodes_max:g}"
        yield _nodes_line(report.nodes)
    if report.prompts is not None:
        prompts = report.prompts
        yield (
            f"prompts of {name} {prompts.hit_share:.1%} of blocks in a cache, first token after {prompts.ttft_mean_s:.2f} s, "
            f"99th percentile {prompts.ttft_p99_s:.2f} s"
        )


def _nodes_line(nodes: NodesResult) -> str:
    return (
        f"  {nodes.node_seconds:,.0f} node-seconds, {nodes.node_starts:g} nodes requested; {nodes.pods_pending:g} pods were pending for"
        f" {nodes.pending_pod_seconds:,.0f} pod-seconds; {nodes.evictions:g} pods evicted"
    )


def _without_series(comparison: Comparison) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(comparison)
    for report in (
        *built["policies"].values(),
        *(point["report"] for of in built.get("curves", {}).values() for point in of),
    ):
        report.pop("pod_series", None)
        if report.get("nodes") is None:
            report.pop("nodes", None)
        else:
            report["nodes"].pop("node_series")
    return built


def _changes(change: EqualPodSeconds) -> str:
    words = {
        "cold requests": change.cold_change,
        "p99 wait": change.wait_p99_change,
        "late": change.late_change,
        "flaps": change.flaps_change,
    }
    shown = [f"{word} {'-' if value is None else f'{value:+.0%}'}" for word, value in words.items()]
    if change.way_to_oracle is not None:
        shown.append(f"{change.way_to_oracle:.0%} of the way to the oracle")
    if change.pod_seconds_change is not None and abs(change.pod_seconds_change) > 0.001:
        end = "least" if change.pod_seconds_change > 0 else "most"
        shown.append(f"pod-seconds {change.pod_seconds_change:+.1%}, the {end} that its dial reaches")
    return ", ".join(shown) + f" ({change.dial})"
