"""``serving doctor``: is this machine fit, does the system run and answer; each line says what to do if not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from serving.cli.client.api import state_option
from serving.cli.client.checks import (
    Finding,
    check_cgroup,
    check_clock,
    check_containers,
    check_descriptors,
    check_free_ports,
    check_journal,
    check_names,
    check_pod_names,
    check_python,
    check_state,
    holder_of,
)
from serving.cli.client.progress import Progress, paint
from serving.cli.client.table import wrapped
from serving.cli.system.running import check_daemons, check_reach
from serving.home.state import default_state_path

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH = 14


@click.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@state_option
def doctor(*, output: str, state_path: Path | None) -> None:
    """Look at this machine and at the system on it; exits with 1 if something is in the way."""
    state = (state_path or default_state_path()).absolute()
    found = []
    with Progress("looking at this machine"):
        for finding in _findings(state):
            found.append(finding)
            if output == "text":
                _print(finding)
    counts = {word: sum(one.state == word for one in found) for word in _COLORS}
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    elif counts["fail"] or counts["warn"]:
        click.echo(f"\n{counts['fail']} in the way, {counts['warn']} worth knowing, {counts['ok']} fine")
    else:
        click.echo(f"\nall {counts['ok']} fine")
    sys.exit(1 if counts["fail"] else 0)


def _findings(state: Path) -> Iterator[Finding]:
    holder = holder_of(state)
    yield from check_python()
    yield from check_state(state, holder)
    yield from check_descriptors()
    yield from check_cgroup()
    yield from check_containers()
    yield from check_names()
    yield from check_pod_names()
    yield from check_clock(state)
    if holder is None:
        yield Finding(name="system", state="ok", text="does not run; `serving up` starts it")
        yield from check_free_ports()
        if (state / "journal.db").exists():
            yield from check_journal(state / "journal.db")
    else:
        yield from check_daemons(state, holder)
        yield from check_reach(state)


def _print(finding: Finding) -> None:
    Progress.hide()
    mark = paint(finding.state.ljust(4), _COLORS[finding.state])
    indent = " " * (7 + _NAME_WIDTH)
    first, *rest = wrapped(finding.text, indent=indent) or [""]
    click.echo(f"{mark}  {finding.name:<{_NAME_WIDTH}} {first.strip()}")
    for line in (*rest, *wrapped(finding.advice, indent=indent)):
        click.echo(line)
