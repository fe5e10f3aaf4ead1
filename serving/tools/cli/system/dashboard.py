"""``serving dashboard``: prints the URL of the dashboard of ``serving up``, or serves a dashboard for a cluster."""

import os
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from serving.core.model.ports import ACTIVATOR_METRICS_PORT, DASHBOARD_PORT, PUBLIC_PORT, STATS_PORT
from serving.home.state import default_state_path
from serving.net.metrics.queries import QUERY_TOKEN_FILE_VARIABLE
from serving.tools.cli.client.api import ApiClient, fail, state_option
from serving.tools.cli.client.stats import cluster_token, dashboard_link


@click.command()
@click.option(
    "--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Serve one for this cluster."
)
@click.option("--address", default=f"127.0.0.1:{DASHBOARD_PORT}", show_default=True, help="Where to serve it.")
@click.option(
    "--autoscaler", default=f"http://127.0.0.1:{STATS_PORT}", show_default=True, help="Its autoscaler, port-forwarded."
)
@click.option(
    "--activator-metrics",
    default=f"http://127.0.0.1:{ACTIVATOR_METRICS_PORT}/metrics",
    show_default=True,
    help="Its activator's metrics, for answers and latencies.",
)
@click.option(
    "--activator",
    default=f"127.0.0.1:{PUBLIC_PORT}",
    show_default=True,
    help="Its activator's public port, port-forwarded, for waking services.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token that actions require; without it actions are off.",
)
@click.option("--token", "is_token", is_flag=True, help="Print the token of `serving up`, with which the page may act.")
@state_option
def dashboard(*, kubeconfig: Path | None, is_token: bool, state_path: Path | None, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Print the link that opens the dashboard; with --kubeconfig, serve one until interrupted.

    The link has the query token, which shows and changes nothing else. Actions and logs need the dashboard's token.
    """
    if is_token:
        path = (state_path or default_state_path()) / "dashboard-token"
        try:
            click.echo(path.read_text())
        except OSError as error:
            fail(f"{path}: {error.strerror}; start the system with `serving up`, or give its address (see --help)")
        return
    if kubeconfig is None:
        click.echo(dashboard_link(state_path))
        return
    token = cluster_token(ApiClient(kubeconfig=kubeconfig)) or secrets.token_urlsafe()
    # A file of memory: nothing stays on the disk.
    descriptor = os.memfd_create("query-token")
    os.write(descriptor, token.encode())
    os.environ |= {
        QUERY_TOKEN_FILE_VARIABLE: f"/proc/self/fd/{descriptor}",
        "KUBECONFIG": str(kubeconfig),
        "SERVING_DASHBOARD_ADDRESS": options["address"],
        "SERVING_DASHBOARD_AUTOSCALER_URL": options["autoscaler"],
        "SERVING_DASHBOARD_ACTIVATOR_METRICS_URL": options["activator_metrics"],
        "SERVING_DASHBOARD_ACTIVATOR_ADDRESS": options["activator"],
        "SERVING_DASHBOARD_TOKEN_FILE": str(options["token_file"] or ""),
    }
    from serving.tools.dashboard.main import main  # noqa: PLC0415 - only who serves needs a server

    click.echo(f"dashboard: http://{options['address']}/?token={token}", err=True)
    sys.exit(main())
