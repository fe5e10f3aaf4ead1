"""The options that describe a simulated workload: shared by ``serving simulate`` and ``serving tune``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from serving.cli.decisions.simulatenodes import node_options
from serving.settings.queueproxy import QueueProxySettings
from serving.simulator.trace import ArrivalPlacement

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        help="A recorded workload: counts a minute, requests, or rates (.csv, .gz, .xz).",
    ),
    click.option(
        "--from-log",
        "from_log",
        type=click.Path(path_type=Path),
        help="An access log of a running system, or a folder with its logs, as the workload.",
    ),
    click.option(
        "--placement",
        type=click.Choice([one.value for one in ArrivalPlacement]),
        default=ArrivalPlacement.UNIFORM.value,
        show_default=True,
        help="Where inside a minute of a trace requests come: anywhere, or at a fixed phase of each function.",
    ),
    click.option(
        "--from", "from_s", default=0.0, show_default=True, help="Start of the part of the trace, in seconds."
    ),
    click.option(
        "--until", "until_s", type=float, help="End of the simulated time, in seconds: 260, or the end of the trace."
    ),
    click.option(
        "--service-time",
        default="0.25",
        show_default=True,
        help="Seconds that a request takes, MEDIAN:P99, or a CSV: function,mean_s,p50_s,p99_s. Durations in a trace come first.",
    ),
    click.option(
        "--start-time",
        help="Seconds until a new pod is ready, in the same forms.  [default: 1 with --load, 2 with --trace]",
    ),
    click.option(
        "--failing-starts",
        type=click.FloatRange(0, 0.99),
        default=0.0,
        show_default=True,
        help="Share of starts that fail.",
    ),
    click.option(
        "--drain-time",
        "drain_s",
        type=click.FloatRange(0, 600),
        default=QueueProxySettings().drain_lag_s,
        show_default=True,
        help="Seconds that a pod without requests stays when it stops: the drain lag. Knative's is 30.",
    ),
    click.option(
        "--burst-switch/--no-burst-switch",
        default=True,
        show_default=True,
        help="Requests bypass the activator while pods have burst capacity left; on one machine they never do.",
    ),
    click.option(
        "--node-pods",
        type=click.IntRange(0),
        default=0,
        help="Pods that the nodes have room for, of all functions together; more wait.  [default: no limit]",
    ),
    click.option(
        "--concurrency",
        "--container-concurrency",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        help="Requests at once per pod; 0 is no limit.",
    ),
    click.option(
        "--annotate", multiple=True, metavar="KEY=VALUE", help="As on a revision: max-scale=5, window=30s, ..."
    ),
    click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE",
        help="As in config-autoscaler; --stable-window 30s is the same.",
    ),
    click.option("--seed", default=1, show_default=True, help="Seed of the dice that place arrivals and draw times."),
    click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Seeds to take the mean over."),
    click.option(
        "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes.  [default: all cores]"
    ),
)


def workload_options(command: Command) -> Command:
    """Add the options to a command."""
    command = node_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
