"""``serving up --reload``: have the system that runs replace its processes, and wait until it has."""

import os
import signal
import time
from pathlib import Path

import click

from serving.cli.client.api import fail
from serving.cli.client.progress import Progress
from serving.home.state import StateFolder
from serving.home.supervisor.reloading import read_reload

# Seven daemons that take a second each, and a minute for one that does not start.
_TIMEOUT_S = 180.0
_POLL_S = 0.05


def reload_system(state_path: Path) -> None:
    """Reload the system that holds a state folder, and print what was replaced; exits with 1 if it was not."""
    state = StateFolder(state_path)
    pid = state.holder()
    if pid is None:
        fail(f"serving does not run with the state folder {state.path}; `serving up` starts it")
    # One that runs has begun with what was there before.
    awaited_count = read_reload(state.reload)["begun_count"] + 1
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        fail(f"process {pid} belongs to another user; run `serving up --reload` as that user")
    except ProcessLookupError:
        fail(f"process {pid}, which {state.path} names, cannot be seen from here; is it in a container?")
    with Progress("waiting for the new processes"):
        error = _until_reloaded(state, pid, awaited_count)
    if error is not None:
        fail(f"{error}; processes that were not replaced go on")
    click.echo("serving is reloaded; old activators end with their last request")


def _until_reloaded(state: StateFolder, pid: int, awaited_count: int) -> str | None:
    """Print what is replaced until the reload of that number has ended, and return why it ended early."""
    deadline_s, shown_count = time.monotonic() + _TIMEOUT_S, 0
    while True:
        found = read_reload(state.reload)
        if found["begun_count"] >= awaited_count:
            for line in found["replaced"][shown_count:]:
                click.echo(line)
            shown_count = len(found["replaced"])
        if found["ended_count"] >= awaited_count:
            return found["error"]
        if state.holder() != pid:
            fail("serving has ended; see its output")
        if time.monotonic() >= deadline_s:
            fail(f"not reloaded after {_TIMEOUT_S:g} s; see the logs in {state.logs}")
        time.sleep(_POLL_S)
