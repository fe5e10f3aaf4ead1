"""Reloads a running system for ``serving up --reload``, and prints each replaced process."""

import os
import signal
import time
from pathlib import Path

import click

from serving.core.model.versions import NEWER_PODS, POD_RECORDS, refuse_newer
from serving.home.processes.processrecords import ProcessRecords
from serving.home.state import StateFolder
from serving.home.store.migrations import refuse_newer_journal
from serving.home.supervisor.reloading import read_reload
from serving.tools.cli.client.api import fail
from serving.tools.cli.client.output import Progress

# Seven daemons that take a second each, and a minute for one that does not start.
_TIMEOUT_S = 180.0
_POLL_S = 0.05


def reload_system(state_path: Path) -> None:
    """Reload the system running on a state folder, and print each replacement; exits with 1 on failure."""
    state = StateFolder(state_path)
    pid = state.holder()
    if pid is None:
        fail(f"serving does not run with the state folder {state.path}; `serving up` starts it")
    refuse_newer_state(state)
    # A reload that is already running began with the earlier state.
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


def refuse_newer_state(state: StateFolder) -> None:
    """Raise for files of a newer version: before anything is replaced, by processes that could not start."""
    refuse_newer_journal(state.journal)
    for pod, note in ProcessRecords(state.processes).read()[1].items():
        refuse_newer(f"the note about pod {pod}", note.get("version", 1), known=POD_RECORDS, action=NEWER_PODS)


def _until_reloaded(state: StateFolder, pid: int, awaited_count: int) -> str | None:
    """Print replacements until the awaited reload has ended; returns its error."""
    deadline_s, shown_count = time.monotonic() + _TIMEOUT_S, 0
    while True:
        reload_state = read_reload(state.reload)
        if reload_state["begun_count"] >= awaited_count:
            for line in reload_state["replaced"][shown_count:]:
                click.echo(line)
            shown_count = len(reload_state["replaced"])
        if reload_state["ended_count"] >= awaited_count:
            return reload_state["error"]
        if state.holder() != pid:
            fail("serving has ended; see its output")
        if time.monotonic() >= deadline_s:
            fail(f"not reloaded after {_TIMEOUT_S:g} s; see the logs in {state.logs}")
        time.sleep(_POLL_S)
