"""``serving down``: end the system that runs on this machine."""

import os
import signal
import time
from pathlib import Path

import click

from serving.cli.client.api import fail, state_option
from serving.cli.client.params import wait_timeout_option
from serving.cli.client.progress import Progress
from serving.home.state import StateFolder, default_state_path

# Pods finish the requests that they have.
_TIMEOUT_S = 120.0
_POLL_S = 0.05


@click.command()
@wait_timeout_option(_TIMEOUT_S)
@state_option
def down(*, state_path: Path | None, wait_s: float) -> None:
    """End the system, with its pods, and wait until it has ended. Services stay in the state folder for the next `up`."""
    state = StateFolder((state_path or default_state_path()).absolute())
    pid = state.holder()
    if pid is None:
        click.echo(f"serving does not run with the state folder {state.path}")
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        fail(f"process {pid} belongs to another user; run `serving down` as that user")
    except ProcessLookupError:
        fail(f"process {pid}, which {state.path} names, cannot be seen from here; is it in a container?")
    deadline_s = time.monotonic() + wait_s
    with Progress(f"waiting for process {pid} to end"):
        while state.holder() == pid:
            if time.monotonic() >= deadline_s:
                fail(f"process {pid} has not ended after {wait_s:g} s; `kill -9 {pid}` ends it at once")
            time.sleep(_POLL_S)
    click.echo("serving has ended")
