"""``serving nodegroups``: the node groups and one of them, with what ``serving get`` and ``serving why`` know of it."""

import time

import click

from serving.cli.api import ApiClient, api_options
from serving.cli.rows import server_table
from serving.cli.table import aligned
from serving.cli.whynodes import print_why_of_nodes
from serving.cluster.kinds import NODE_GROUP

__all__ = ["nodegroups"]

_DAY_S = 86400.0


@click.group(invoke_without_command=True)
@click.pass_context
def nodegroups(context: click.Context) -> None:
    """Node groups: nodes that grow and shrink with what pods request."""
    if context.invoked_subcommand is None:
        context.invoke(_get)


@nodegroups.command("get")
@api_options
def _get(*, api: ApiClient) -> None:
    """All node groups: nodes by state, target, utilisation, the rule of the last pass."""
    header, rows = server_table(api, NODE_GROUP, name="", selector="", everywhere=False)
    if not rows:
        click.echo("no node groups; serving up --nodes makes one on one machine", err=True)
        return
    click.echo("\n".join(aligned([header, *rows])))


@nodegroups.command("describe")
@click.argument("name")
@api_options
def _describe(*, api: ApiClient, name: str) -> None:
    """What one group did within a day, and what holds now."""
    print_why_of_nodes(api, f"nodegroup/{name}", since_s=time.time() - _DAY_S)
