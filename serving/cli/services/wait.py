"""``serving wait``: until a service is ready, gone, or at zero."""

import json

import click

from serving.cli.client.api import ApiClient, api_options
from serving.cli.client.completion import complete_service
from serving.cli.client.params import wait_timeout_option
from serving.cli.services.waiting import until_gone, until_ready, until_zero
from serving.model.objects import nested

_TIMEOUT_S = 60.0


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--for", "wanted", type=click.Choice(["ready", "gone", "zero"]), default="ready", show_default=True)
@wait_timeout_option(_TIMEOUT_S, "--timeout")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def wait(*, api: ApiClient, name: str, wanted: str, wait_s: float, output: str) -> None:
    """Wait until a service is ready, gone with its pods, or has no pod; exit with 1 if it is not in time."""
    if wanted == "gone":
        until_gone(api, name, timeout_s=wait_s)
        done = f"{name} is gone"
    elif wanted == "zero":
        until_zero(api, name, timeout_s=wait_s)
        done = f"{name} is at zero"
    else:
        service = until_ready(api, name, timeout_s=wait_s, patient=True)
        done = f"{name} is ready at {nested(service, 'status', 'url')}"
    click.echo(done if output == "text" else json.dumps({"name": name, "state": wanted}))
