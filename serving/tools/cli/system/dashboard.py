"""``serving dashboard``: prints the dashboard's link; on a cluster also forwards its port until interrupted."""

import threading

import click

from serving.core.model.errors import ServingError
from serving.core.model.ports import DASHBOARD_PORT, PORT_MAX
from serving.home.state import StateFolder
from serving.net.cluster.identity import system_namespace
from serving.tools.cli.client.api import Place, fail, fail_usage, place_options
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.reach import Reach


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, PORT_MAX),
    default=DASHBOARD_PORT,
    show_default=True,
    help="Local port to forward from a cluster; 0 selects a free port.",
)
@click.option("--token", "is_token", is_flag=True, help="Print the token that permits actions on the page.")
@place_options
def dashboard(*, place: Place, port: int, is_token: bool) -> None:
    """Print the link that opens the dashboard; on a cluster, forward its port until interrupted.

    The link contains the query token, which only permits viewing. Actions and logs need the dashboard's token.
    """
    if place.state_path is None and is_token:
        secret = f"secret serving-dashboard-token -n {system_namespace()}"
        fail_usage(f"on a cluster it is in a Secret: kubectl get {secret} -o jsonpath='{{.data.token}}' | base64 -d")
    if is_token and place.state_path is not None:
        path = StateFolder(place.state_path).dashboard_token
        try:
            token = path.read_text().strip()
        except OSError as error:
            fail(f"{path}: {error.strerror}; start the system with `serving up`")
        click.echo(token)
        print_aside(
            f"the link with permission for actions and logs: {Reach(place.api()).dashboard_link()}#token={token}"
        )
        return
    reach = Reach(place.api())
    try:
        click.echo(reach.dashboard_link(local_port=port))
    except OSError as error:
        raise ServingError(f"port {port} of this machine is taken; --port names another: {error.strerror}") from error
    if place.state_path is None:
        print_aside("the port is forwarded until this command is interrupted")
        threading.Event().wait()
