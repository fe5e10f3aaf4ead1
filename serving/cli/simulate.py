"""``serving simulate``: a service on the virtual clock, each change of its scale with the reason."""

import random
import sys

import click
import msgspec

from serving.model.errors import InvalidValue, SettingsError
from serving.settings.annotations import GROUP, read_annotations
from serving.settings.autoscaler import AutoscalerSettings
from serving.simulator.engine import Engine
from serving.simulator.timeline import plot, summary, timeline
from serving.simulator.workload import arrivals, parse_steps
from serving.simulator.world import Plan, World

__all__ = ["simulate"]

_DEFAULT_LOAD = "0:0 5:1 20:40 25:400 70:20 100:0"


@click.command()
@click.option("--load", default=_DEFAULT_LOAD, show_default=True, help="SECOND:REQUESTS_PER_SECOND, in rising order.")
@click.option("--until", "until_s", default=260.0, show_default=True, help="Length of the simulated time, in seconds.")
@click.option("--service-time", "service_s", default=0.25, show_default=True, help="Seconds that a request takes.")
@click.option("--start-time", "start_s", default=1.0, show_default=True, help="Seconds until a new pod is ready.")
@click.option("--container-concurrency", default=10, show_default=True, help="Requests at once per pod; 0 is no limit.")
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="As on a revision: max-scale=5, window=30s, ...")
@click.option("--seed", default=1, show_default=True, help="Seed of the dice that place the arrivals.")
def simulate(*, load: str, until_s: float, annotate: tuple[str, ...], seed: int, **world: float) -> None:
    """Run a service on the virtual clock: the product's decisions, a simulated world."""
    settings = AutoscalerSettings()
    annotations = {GROUP + key: value for key, _, value in (pair.partition("=") for pair in annotate)}
    read = read_annotations(annotations, settings)
    try:
        if read.problems or read.warnings:
            raise SettingsError([*read.problems, *read.warnings])  # noqa: TRY301 - reported like a wrong load
        steps = parse_steps(load)
    except (InvalidValue, SettingsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    plan = msgspec.convert({**world, "seed": seed}, Plan)
    engine = Engine()
    simulated = World(msgspec.structs.replace(plan, settings=settings, scaling=read.scaling), engine)
    for at_s in arrivals(steps, until_s, random.Random(seed)):  # noqa: S311 - made-up load
        engine.at(at_s, simulated.arrive)
    engine.run(until_s)
    for line in timeline(simulated.moments):
        click.echo(line)
    click.echo()
    for line in plot(simulated.moments, until_s):
        click.echo(line)
    click.echo(summary(simulated, until_s))
