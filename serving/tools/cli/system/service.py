"""``serving install-service``: writes a systemd unit that runs the system of this machine, for root or for one user."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from serving.home.state import default_state_path
from serving.tools.cli.client.api import fail, state_option

_UNIT = "serving.service"
_SYSTEM_FOLDER = Path("/etc/systemd/system")
# A minute for a start on a loaded machine; running requests have two minutes to end.
_TEMPLATE = """\
[Unit]
Description=serving: request-driven services on this machine
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={start}
ExecReload={reload}
Restart=on-failure
RestartSec=2
# The settings or the journal are wrong: a restart changes nothing.
RestartPreventExitStatus=2
WatchdogSec=60
TimeoutStartSec=300
TimeoutStopSec=150
# Its own processes end their pods; systemd kills what is left.
KillMode=mixed
# Pods have cgroups of their own.
Delegate=yes

[Install]
WantedBy={target}
"""

# Options of `serving up` that a unit cannot have, and advice for each.
_REFUSED = {
    "detach": "systemd runs it in the background",
    "reloads": "`systemctl reload serving` does it",
    "state_path": "give --state before `--`",
}


@click.command("install-service", context_settings={"ignore_unknown_options": True})
@click.option("--print", "prints", is_flag=True, help="Print the unit without writing it.")
@click.option("--replace", is_flag=True, help="Replace a unit that differs.")
@click.argument("up_options", nargs=-1, type=click.UNPROCESSED)
@state_option
def install_service(*, prints: bool, replace: bool, up_options: Sequence[str], state_path: Path | None) -> None:
    """Write a systemd unit for `serving up`: a system unit if run as root, else a unit of this user.

    UP_OPTIONS are options of `serving up`, as in `serving install-service -- --public-port 80`.
    """
    _check(up_options)
    state = (state_path or default_state_path()).absolute()
    text = unit_text(_program(), state, up_options, is_root=os.geteuid() == 0)
    if prints:
        click.echo(text, nl=False)
        return
    path = _unit_folder() / _UNIT
    if path.exists() and path.read_text() != text and not replace:
        fail(f"{path} exists and differs; --print shows the new unit, --replace writes it")
    for problem in verify(text):
        fail(f"systemd-analyze refuses the unit: {problem}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new_path = path.with_name(f"{path.name}.new")
    new_path.write_text(text)
    new_path.rename(path)
    control = "systemctl" if os.geteuid() == 0 else "systemctl --user"
    click.echo(f"{path}: written")
    click.echo(f"start it:  {control} daemon-reload && {control} enable --now serving")
    click.echo(f"its logs:  journalctl {'' if os.geteuid() == 0 else '--user '}-u serving")
    if os.geteuid():
        click.echo("also while you are not logged in:  loginctl enable-linger")


def unit_text(program: Sequence[str], state: Path, up_options: Sequence[str], *, is_root: bool) -> str:
    """The systemd unit that runs ``program up``."""
    start = [*program, "up", "--systemd", f"--state={state}", *up_options]
    return _TEMPLATE.format(
        start=_quoted(start),
        reload=_quoted([*program, "up", "--reload", f"--state={state}"]),
        target="multi-user.target" if is_root else "default.target",
    )


def verify(text: str) -> list[str]:
    """The problems of a unit by `systemd-analyze verify`; empty if systemd-analyze is not installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _UNIT
        path.write_text(text)
        done = subprocess.run(  # noqa: S603 - systemd's own
            [program, "verify", "--man=no", str(path)], check=False, capture_output=True, text=True
        )
    # systemd-analyze also reports other units of the machine.
    return [line for line in done.stderr.splitlines() if _UNIT in line]


def _check(up_options: Sequence[str]) -> None:
    """Raise ``click.UsageError`` for invalid options of ``serving up``, because each start would fail."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, "up")
    assert command is not None
    try:
        up = command.make_context("up", [*up_options], parent=root)
    except click.UsageError as error:
        # The usage text would be that of `serving up`.
        here = click.get_current_context()
        raise click.UsageError(
            f"{error.format_message()} `serving up` takes no such option; --print shows the unit, and writes nothing.",
            here,
        ) from None
    for param in command.params:
        if param.name in _REFUSED and up.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"the unit runs `serving up` without {param.opts[-1]}; {_REFUSED[param.name]}")


def _program() -> list[str]:
    own = Path(sys.executable).with_name("serving")
    return [str(own)] if own.exists() else [sys.executable, "-m", "serving"]


def _unit_folder() -> Path:
    if os.geteuid() == 0:
        return _SYSTEM_FOLDER
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def _quoted(words: Sequence[str]) -> str:
    """A command line for a systemd unit; % and $ are escaped, because systemd expands them."""
    return " ".join(shlex.quote(word.replace("%", "%%").replace("$", "$$")) for word in words)
