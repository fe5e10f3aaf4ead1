"""``serving up``: the whole system on this machine, with no cluster and no container engine."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from serving.local.deathwish import die_with_parent
from serving.local.ports import PORTS
from serving.local.state import StateFolder, default_state_path
from serving.local.supervisor import CHILDREN, Supervisor, bind
from serving.model.errors import SettingsError
from serving.samples import hello

__all__ = ["up"]

_EXIT_SETTINGS = 2


def _port_options(command: Callable[..., None]) -> Callable[..., None]:
    for port in reversed(PORTS):
        option = click.option(f"--{port.name}-port", default=port.number, show_default=True, help=port.what)
        command = option(command)
    return command


@click.command()
@click.option("--state", "state_path", type=click.Path(file_okay=False, path_type=Path), help="Folder for state.")
@_port_options
@click.option("--sample", is_flag=True, help="Deploy the service hello, which greets.")
def up(*, state_path: Path | None, sample: bool, **ports: int) -> None:
    """Run everything on this machine until interrupted."""
    state = StateFolder((state_path or default_state_path()).absolute())
    by_name = {name.removesuffix("_port").replace("_", "-"): port for name, port in ports.items()}
    try:
        # First of all: who holds the state holds its ports too, and is the better answer.
        state.hold()
        sockets = bind(by_name)
        api_host, api_port = sockets["api"].getsockname()
        state.open(f"http://{api_host}:{api_port}")
        state.write_ports({name: one.getsockname()[1] for name, one in sockets.items()})
        sockets["template"] = state.listen_template()
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(_EXIT_SETTINGS)

    def on_started() -> None:
        port = sockets["public"].getsockname()[1]
        click.echo(f"serving is up: services answer at http://NAME.NAMESPACE.localhost:{port}")
        click.echo(f"kubectl: export KUBECONFIG={state.kubeconfig}")
        click.echo(f"logs:    {state.logs}")
        if sample:
            _deploy_sample(state.path)

    sys.exit(Supervisor(state, sockets, CHILDREN()).run(on_started))


def _deploy_sample(state_path: Path) -> None:
    """Deploy hello from a process of its own: this one has children to look after."""
    app = Path(hello.__file__)
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(app))}"
    window = "autoscaling.knative.dev/window=10s"
    arguments = ["deploy", "hello", str(app.parent), "--command", command, "--concurrency", "10", "--annotate", window]
    subprocess.Popen(  # noqa: S603 - our own CLI
        [sys.executable, "-m", "serving", *arguments, "--state", str(state_path)],
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread, by design
    )
