"""``serving simulate``: a service on the virtual clock with each change of scale; or recorded workloads."""

import sys
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.slo import read_slo
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.tools.cli.client.resources import is_json, json_output_options
from serving.tools.cli.decisions.simulateinputs import (
    changed_settings,
    deciding_policy,
    known_policies,
    runner_of,
    settings_pairs,
    workload_options,
)
from serving.tools.cli.decisions.simulatetrace import PolicyRunner, compare_policies, print_comparison
from serving.tools.simulator.curve import POLICIES, SimulatedPolicy
from serving.tools.simulator.report import plot, summary, timeline
from serving.tools.simulator.results import RunLog
from serving.tools.simulator.workload_run import run_workload

_DEFAULT_LOAD = "0:0 5:1 20:40 25:400 70:20 100:0"


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option(
    "--load",
    default=_DEFAULT_LOAD,
    show_default=True,
    help="Request rate from a second on, as SECOND:REQUESTS_PER_SECOND; repeatable, in ascending order.",
)
@workload_options
@click.option(
    "--policy",
    default="default",
    show_default=True,
    help=f"Scaling policy: {', '.join(POLICIES)}, an installed policy, or FILE.py:Class.",
)
@click.option("--compare", metavar="NAMES", help="Comma-separated policies to compare on the trace.")
@click.option(
    "--equal-pod-seconds", is_flag=True, help="Also compare the policies at the pod-seconds of the first one."
)
@json_output_options
@click.pass_context
def simulate(context: click.Context, /, changes: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Simulate a service with the real scaling decisions on a virtual clock.

    With --trace, replay a recorded workload under policies and compare them. Any setting of config-autoscaler is an
    option.
    """
    try:
        settings = changed_settings(AutoscalerSettings(), [*changes, *settings_pairs(context.args)])
        is_load = options["trace"] is None and options["from_log"] is None and options["nodes"] is None
        if is_load:
            _refuse_trace_options(options)
        policies = known_policies(options["compare"] or options["policy"])
        runner = runner_of(options, settings=settings, policies=policies)
        if is_load:
            _print_run(runner, deciding_policy(options["policy"]), as_json=is_json(options))
            return
        comparison = compare_policies(runner, list(policies), equal_pod_seconds=options["equal_pod_seconds"])
        print_comparison(comparison, as_json=is_json(options))
    except (InvalidValue, SettingsError, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)


def _refuse_trace_options(options: dict[str, Any]) -> None:
    for name in ("compare", "equal_pod_seconds"):
        if options[name]:
            problem = Problem(
                where="--" + name.replace("_", "-"),
                what="there is nothing to compare",
                expected="--trace FILE beside it",
            )
            raise SettingsError([problem])


def _print_run(runner: PolicyRunner, policy: SimulatedPolicy, *, as_json: bool) -> None:
    log, until_s = RunLog(), runner.workload.length_s
    workload = msgspec.structs.replace(runner.workload, log=log)
    (result,) = run_workload(workload, policy, seed=runner.seeds[0])
    if as_json:
        record = {"moments": log.moments, "latencies_s": log.latencies_s, "refused": result.refused}
        click.echo(msgspec.json.encode(record).decode())
        return
    for line in (*timeline(log.moments), "", *plot(log.moments, until_s)):
        click.echo(line)
    click.echo(summary(result, log.latencies_s, until_s))
    if workload.scaling.slo is not None:
        held_ratio = result.held_ratio(read_slo(workload.scaling.slo))
        click.echo(f"{workload.scaling.slo} held in {held_ratio:.0%} of the minutes with requests")
