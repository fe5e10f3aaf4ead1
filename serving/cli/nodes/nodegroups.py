"""``serving nodegroups``: the node groups and one of them, with what ``serving get`` and ``serving why`` know of it."""

import json
import time

import click

from serving.cli.client.api import ApiClient, api_options
from serving.cli.client.objects import items_of, object_of
from serving.cli.client.rows import server_table
from serving.cli.client.table import aligned
from serving.cli.nodes.whynodes import events_of_groups, print_why_of_nodes
from serving.cluster.kinds import NODE_GROUP
from serving.model.objects import nested

_DAY_S = 86400.0

_output_option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group(invoke_without_command=True)
@click.pass_context
def nodegroups(context: click.Context) -> None:
    """Node groups: nodes that grow and shrink with what pods request."""
    if context.invoked_subcommand is None:
        context.invoke(_get)


@nodegroups.command("get")
@_output_option
@api_options
def _get(*, api: ApiClient, output: str = "text") -> None:
    """All node groups: nodes by state, target, utilisation, the rule of the last pass."""
    if output == "json":
        click.echo(json.dumps(items_of(api, NODE_GROUP), indent=2))
        return
    header, rows = server_table(api, NODE_GROUP, name="", selector="", everywhere=False)
    if not rows:
        click.echo("no node groups; serving up --nodes makes one on one machine", err=True)
        return
    click.echo("\n".join(aligned([header, *rows])))


@nodegroups.command("describe")
@click.argument("name")
@_output_option
@api_options
def _describe(*, api: ApiClient, name: str, output: str) -> None:
    """What one group did within a day, and what holds now."""
    since_s = time.time() - _DAY_S
    if output == "json":
        found = {
            "nodegroup": object_of(api, NODE_GROUP, name),
            "events": [one for one in events_of_groups(api, since_s) if nested(one, "involvedObject", "name") == name],
        }
        click.echo(json.dumps(found, indent=2))
        return
    print_why_of_nodes(api, f"nodegroup/{name}", since_s=since_s)
