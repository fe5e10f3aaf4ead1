"""``serving wait``: until a service is ready, gone, or at zero."""

import json

import click

from serving.cli.api import ApiClient, api_options, fail_usage
from serving.cli.completion import complete_service
from serving.cli.objects import at
from serving.cli.waiting import until_gone, until_ready, until_zero
from serving.model.errors import InvalidValue
from serving.model.quantity import parse_duration_s

__all__ = ["wait"]


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--for", "wanted", type=click.Choice(["ready", "gone", "zero"]), default="ready", show_default=True)
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="How long at most, as 90s or 5m.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def wait(*, api: ApiClient, name: str, wanted: str, timeout: str, output: str) -> None:
    """Wait until a service is ready, gone with its pods, or has no pod; exit with 1 if it is not in time."""
    try:
        timeout_s = float(timeout) if timeout.isdecimal() else parse_duration_s(timeout)
    except InvalidValue as error:
        fail_usage(f"--timeout: {error}")
    if wanted == "gone":
        until_gone(api, name, timeout_s=timeout_s)
        told = f"{name} is gone"
    elif wanted == "zero":
        until_zero(api, name, timeout_s=timeout_s)
        told = f"{name} is at zero"
    else:
        service = until_ready(api, name, timeout_s=timeout_s, patient=True)
        told = f"{name} is ready at {at(service, 'status', 'url')}"
    click.echo(told if output == "text" else json.dumps({"name": name, "state": wanted}))
