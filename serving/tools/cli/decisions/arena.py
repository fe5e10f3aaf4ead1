"""``serving arena``: policies over workloads and seeds, compared on one page."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.tools.cli.decisions.simulateinputs import known_policies
from serving.tools.cli.decisions.simulatetrace import PolicyRunner
from serving.tools.simulator.arena import ArenaSection, row_of
from serving.tools.simulator.arenapage import html_page, markdown
from serving.tools.simulator.arenaplan import (
    ArenaPlan,
    ArenaWorkload,
    check_pins,
    pins_of,
    plan_text,
    read_plan,
    workloads_of,
)
from serving.tools.simulator.curve import (
    POLICIES,
    DialPosition,
    EqualPodSeconds,
    SimulatedPolicy,
    at_equal_pod_seconds,
    points_around,
)
from serving.tools.simulator.report import PolicyReport, mean_report, report_of, summed_over_seeds, worst_functions
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.shapes import Shape
from serving.tools.simulator.workload_run import Workload

_BOUNDS = ("oracle", "clairvoyant")


@click.command()
@click.argument("plan_file", metavar="[PLAN.yaml]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--trace",
    "trace_files",
    multiple=True,
    metavar="FILE",
    help="Recorded workload, in a format of `serving simulate --trace`; repeatable.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice([shape.value for shape in Shape]),
    help="Synthetic workload; repeatable.",
)
@click.option(
    "--policies",
    metavar="NAMES",
    help=f"Comma-separated policies: {', '.join(POLICIES)}, an installed policy, or FILE.py:Class.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Number of random seeds per run.  [default: 5]")
@click.option(
    "--equal-pod-seconds",
    metavar="POLICY",
    help="Also compare this policy with each other policy at equal pod-seconds.",
)
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder that contains the traces with relative paths.  [default: the working directory]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    default=Path("arena"),
    show_default=True,
    help="Output folder for the page (page.md, page.html) and the plan that repeats the run (plan.yaml).",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Number of processes.  [default: all cores]"
)
def arena(*, plan_file: Path | None, traces: Path, out: Path, jobs: int, **options: object) -> None:
    """Compare policies over workloads and seeds, and write the results as one page.

    PLAN.yaml contains the policies, workloads and seeds. Without PLAN.yaml the options select them; by default, three
    policies run on synthetic workloads. A plan with pins runs only with the pinned versions and files.
    """
    try:
        plan = _plan_of(plan_file, msgspec.convert(options, _Options))
        policies = known_policies(",".join(plan.policies))
        run_arena(plan, policies, traces=traces, out=out, jobs=jobs)
    except (InvalidValue, SettingsError, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)
    click.echo(f"{out / 'page.html'} and {out / 'page.md'}; serving arena {out / 'plan.yaml'} repeats the run")


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a plan can replace."""

    trace_files: tuple[str, ...]
    shapes: tuple[Shape, ...]
    policies: str | None
    seeds: int | None
    equal_pod_seconds: str | None


def _plan_of(plan_file: Path | None, options: _Options) -> ArenaPlan:
    """The plan from the file, or from the options. Raises ``SettingsError``."""
    if plan_file is not None:
        if any(msgspec.structs.asdict(options).values()):
            raise SettingsError.of(str(plan_file), "there are options that a plan names", "a plan, or options")
        return read_plan(plan_file)
    workloads = [
        *(ArenaWorkload(name=Path(path).name.split(".")[0], trace=path) for path in options.trace_files),
        *(ArenaWorkload(name=shape.value, shape=shape) for shape in options.shapes),
    ]
    plan = ArenaPlan() if not workloads else ArenaPlan(workloads=tuple(workloads))
    if options.policies:
        plan = msgspec.structs.replace(plan, policies=tuple(map(str.strip, options.policies.split(","))))
    return msgspec.structs.replace(
        plan, seeds=options.seeds or plan.seeds, equal_pod_seconds=options.equal_pod_seconds or ""
    )


def run_arena(
    plan: ArenaPlan, policies: Mapping[str, SimulatedPolicy], *, traces: Path, out: Path, jobs: int
) -> list[ArenaSection]:
    """Run a plan with its policies, and write the page. Raises ``SettingsError`` or ``OSError``."""
    names = [*policies, *(bound for bound in _BOUNDS if bound not in policies)]
    pins = pins_of(plan, traces)
    check_pins(plan, pins)
    if plan.equal_pod_seconds and plan.equal_pod_seconds not in policies:
        raise SettingsError.of(
            "equal_pod_seconds", f"{plan.equal_pod_seconds!r} does not run", f"one of {', '.join(policies)}"
        )
    out.mkdir(parents=True, exist_ok=True)
    known = {**POLICIES, **policies}
    sections = [
        _Cell(workload, {name: known[name] for name in names}, plan=plan, jobs=jobs).section(
            arena_workload.name, start_s, limit
        )
        for arena_workload in plan.workloads
        for start_s, limit, workload in workloads_of(arena_workload, traces)
    ]
    pinned = msgspec.structs.replace(plan, pins=pins)
    for name, text in (
        ("plan.yaml", plan_text(pinned)),
        ("page.md", markdown(pinned, sections)),
        ("page.html", html_page(pinned, sections)),
    ):
        (out / name).write_text(text, encoding="utf-8")
    return sections


class _Cell:
    """One workload with one start time and one limit, run under all policies."""

    def __init__(
        self, workload: Workload, policies: Mapping[str, SimulatedPolicy], *, plan: ArenaPlan, jobs: int
    ) -> None:
        self._workload = workload
        self._plan = plan
        self._results: dict[str, list[Sequence[RevisionResult]]] = {}
        self._runner = PolicyRunner(
            workload=workload, seeds=range(1, plan.seeds + 1), jobs=jobs, policies=policies, on_results=self._record
        )

    def section(self, name: str, start_s: float, limit: int) -> ArenaSection:
        """Run all policies; return their results."""
        plan, workload = self._plan, self._workload
        names = list(self._runner.policies)
        for policy in names:
            self._runner.run(policy)
        reports = {
            policy: [report_of(results, workload.length_s) for results in by_seed]
            for policy, by_seed in self._results.items()
        }
        first = names[0]
        base = summed_over_seeds(self._results[first])
        rows = [
            row_of(
                policy,
                reports,
                first=first,
                functions=None
                if policy == first
                else worst_functions(base, summed_over_seeds(self._results[policy]), seeds=plan.seeds),
            )
            for policy in names
        ]
        return ArenaSection(
            workload=name,
            start_s=start_s,
            limit=limit,
            functions=len(workload.functions),
            requests=mean_report(reports[first]).requests,
            hours=workload.length_s / 3600.0,
            rows=rows,
            equal=self._equal(reports) if plan.equal_pod_seconds else {},
        )

    def _record(self, name: str, position: DialPosition | None, results: Sequence[RevisionResult]) -> None:
        if position is None:
            self._results.setdefault(name, []).append(results)

    def _equal(self, reports: Mapping[str, Sequence[PolicyReport]]) -> dict[str, EqualPodSeconds]:
        """Compare one policy, that of the plan's ``equal_pod_seconds``, with each other policy at equal pod-seconds.

        Its settings are changed so that it uses as many pod-seconds as the other policy. The results are by the name of
        the other policy.
        """
        name, by_position = self._plan.equal_pod_seconds, dict[str, PolicyReport]()

        def run(position: DialPosition) -> PolicyReport:
            if position.name not in by_position:
                by_position[position.name] = self._runner.run(name, position)
            return by_position[position.name]

        dial = self._runner.policies[name].dial
        equal = {}
        for other, by_seed in reports.items():
            if other != name and self._runner.policies[other].foresight is None:
                report = mean_report(by_seed)
                equal[other] = at_equal_pod_seconds(report, points_around(report.pod_seconds, dial, run))
        return equal
