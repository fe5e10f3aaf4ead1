"""``serving simulate``: a service on the virtual clock, each change of its scale with the reason; or recorded workloads."""

import os
import random
import sys
from pathlib import Path
from typing import Any

import click

from serving.cli.simulateinputs import (
    changed_settings,
    known_policies,
    read_durations,
    read_scaling,
    read_workload,
    settings_pairs,
)
from serving.cli.simulatetrace import PolicyRunner, compare_policies, print_comparison
from serving.model.errors import InvalidValue, Problem, SettingsError
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.queueproxy import QueueProxySettings
from serving.simulator.engine import Engine
from serving.simulator.policies import POLICIES
from serving.simulator.timeline import plot, summary, timeline
from serving.simulator.trace import ArrivalPlacement
from serving.simulator.workload import arrivals, parse_steps
from serving.simulator.world import Plan, World

__all__ = ["simulate"]

_DEFAULT_LOAD = "0:0 5:1 20:40 25:400 70:20 100:0"
_LOAD_UNTIL_S = 260.0
# Start of a pod with --load, and with --trace: the time of the published studies.
_LOAD_START_S = 1.0
_TRACE_START_S = 2.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--load", default=_DEFAULT_LOAD, show_default=True, help="SECOND:REQUESTS_PER_SECOND, in rising order.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="A recorded workload: counts a minute, requests, or rates (.csv, .gz, .xz).",
)
@click.option(
    "--placement",
    type=click.Choice([one.value for one in ArrivalPlacement]),
    default=ArrivalPlacement.UNIFORM.value,
    show_default=True,
    help="Where inside a minute of a trace requests come: anywhere, or at a fixed phase of each function.",
)
@click.option("--from", "from_s", default=0.0, show_default=True, help="Start of the part of the trace, in seconds.")
@click.option(
    "--until", "until_s", type=float, help="End of the simulated time, in seconds: 260, or the end of the trace."
)
@click.option(
    "--service-time",
    default="0.25",
    show_default=True,
    help="Seconds that a request takes, MEDIAN:P99, or a CSV: function,mean_s,p50_s,p99_s. Durations in the trace come first.",
)
@click.option(
    "--start-time",
    help="Seconds until a new pod is ready, in the same forms.  [default: 1 with --load, 2 with --trace]",
)
@click.option(
    "--failing-starts",
    type=click.FloatRange(0, 0.99),
    default=0.0,
    show_default=True,
    help="Share of starts that fail.",
)
@click.option(
    "--drain-time",
    "drain_s",
    type=click.FloatRange(0, 600),
    default=QueueProxySettings().drain_lag_s,
    show_default=True,
    help="Seconds that a pod without requests stays when it stops: the drain lag. Knative's is 30.",
)
@click.option(
    "--burst-switch/--no-burst-switch",
    default=True,
    show_default=True,
    help="Requests bypass the activator while pods have burst capacity left; on one machine they never do.",
)
@click.option(
    "--concurrency",
    "--container-concurrency",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Requests at once per pod; 0 is no limit.",
)
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="As on a revision: max-scale=5, window=30s, ...")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="As in config-autoscaler; --stable-window 30s is the same.",
)
@click.option("--policy", default="default", show_default=True, help=f"One of {', '.join(POLICIES)}.")
@click.option("--compare", metavar="NAMES", help="Policies to compare on the trace, separated by commas.")
@click.option("--equal-pod-seconds", is_flag=True, help="Also compare at the pod-seconds of the first policy.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--seed", default=1, show_default=True, help="Seed of the dice that place arrivals and draw times.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Seeds to take the mean over.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes.  [default: all cores]")
@click.pass_context
def simulate(context: click.Context, /, trace: Path | None, changes: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Run a service on the virtual clock: the product's decisions, a simulated world.

    With --trace, replay a recorded workload under policies and compare them. Any setting of config-autoscaler is an option.
    """
    try:
        settings = changed_settings(AutoscalerSettings(), [*changes, *settings_pairs(context.args)])
        if trace is None:
            _refuse_trace_options(options)
            _simulate_load(settings, options)
            return
        names = known_policies(options["compare"] or options["policy"])
        options["start_time"] = options["start_time"] or f"{_TRACE_START_S:g}"
        workload = read_workload(trace, options, settings=settings)
        seeds = range(options["seed"], options["seed"] + options["seeds"])
        runner = PolicyRunner(workload=workload, seeds=seeds, jobs=options["jobs"])
        answer = compare_policies(runner, names, equal_pod_seconds=options["equal_pod_seconds"])
        print_comparison(answer, as_json=options["as_json"])
    except (InvalidValue, SettingsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def _refuse_trace_options(options: dict[str, Any]) -> None:
    for name, flag in (("compare", "--compare"), ("as_json", "--json"), ("equal_pod_seconds", "--equal-pod-seconds")):
        if options[name]:
            raise SettingsError(
                [Problem(where=flag, what="there is nothing to compare", expected="--trace FILE beside it")]
            )


def _simulate_load(settings: AutoscalerSettings, options: dict[str, Any]) -> None:
    (policy,) = known_policies(options["policy"])
    until_s = _LOAD_UNTIL_S if options["until_s"] is None else options["until_s"]
    steps = parse_steps(options["load"])
    plan = Plan(
        settings=POLICIES[policy].change(settings),
        scaling=read_scaling(options["annotate"], settings),
        container_concurrency=options["concurrency"],
        service_s=read_durations(options["service_time"], "--service-time").default.p50_s,
        start_s=read_durations(options["start_time"] or f"{_LOAD_START_S:g}", "--start-time").default.p50_s,
        seed=options["seed"],
    )
    engine = Engine()
    simulated = World(plan, engine)
    for at_s in arrivals(steps, until_s, random.Random(options["seed"])):  # noqa: S311 - made-up load
        engine.at(at_s, simulated.arrive)
    engine.run(until_s)
    for line in timeline(simulated.moments):
        click.echo(line)
    click.echo()
    for line in plot(simulated.moments, until_s):
        click.echo(line)
    click.echo(summary(simulated, until_s))
