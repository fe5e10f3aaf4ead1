"""Starts ``serving up`` in the background: a session of its own, with its output in a file.

The command waits for a byte in a pipe, which the system writes once all its daemons serve, so that it returns with what the
system printed, or with its error and exit code.
"""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

# The descriptor on which the system in the background reports that it has started.
_READY_VARIABLE = "SERVING_UP_READY_FD"

_LOG = "up.log"
# Four daemons that take a second each, on a machine under heavy load.
_READY_S = 180.0
_EXIT_FAILED = 1


def start_in_background(arguments: Sequence[str], logs: Path) -> int:
    """Run ``serving up`` with these arguments, print what it prints until it has started, and return its exit code or 0."""
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = logs / _LOG
    mine, its = os.pipe()
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(  # noqa: S603 - our own CLI
            [sys.executable, "-m", "serving", "up", *arguments],
            env={**os.environ, _READY_VARIABLE: str(its)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[its],
            start_new_session=True,
        )
    os.close(its)
    with os.fdopen(mine, "rb") as pipe:
        try:
            is_late = not select.select([pipe], [], [], _READY_S)[0]
        except KeyboardInterrupt:
            process.terminate()
            raise
        has_started = not is_late and bool(pipe.read())
    code = 0 if has_started else _EXIT_FAILED if is_late else process.wait()
    # The process goes on when this one ends.
    process.returncode = 0
    with log.open("rb") as file:
        file.seek(begin)
        click.echo(file.read().decode(errors="replace"), nl=False, err=not has_started)
    if is_late:
        click.echo(
            f"serving has not started after {_READY_S:g} s and goes on; see {logs}; `serving down` ends it", err=True
        )
    return code


def report_ready() -> None:
    """Report that the system has started, where it was started in the background."""
    text = os.environ.pop(_READY_VARIABLE, "")
    if text:
        sys.stdout.flush()
        os.write(int(text), b"1")
        os.close(int(text))
