"""``serving version``: the version of this program and of the system that it speaks to."""

import json
import platform

import click

from serving import __version__
from serving.cli.client.api import ApiClient, api_options

_PATH = "/version"


@click.command()
@click.option("--client", is_flag=True, help="Only this program, without asking a server.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def version(*, api: ApiClient, client: bool, output: str) -> None:
    """Show the version of this program, and of the server and its Kubernetes API."""
    python = platform.python_version()
    found = {"client": __version__, "python": python}
    if not client:
        found["server"] = str(api.done("GET", _PATH).get("gitVersion", ""))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"serving {__version__}, Python {python}")
    if "server" in found:
        click.echo(f"server  {found['server']}")
