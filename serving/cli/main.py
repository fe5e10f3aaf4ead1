"""The command ``serving``: a group of subcommands, each in a module of its own."""

import click

from serving import __version__
from serving.cli.config import config
from serving.cli.services import delete, deploy, get, url
from serving.cli.simulate import simulate
from serving.cli.up import up

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serving")
def main() -> None:
    """Request-driven serverless: HTTP traffic decides how many pods run."""


for command in (config, delete, deploy, get, simulate, up, url):
    main.add_command(command)
