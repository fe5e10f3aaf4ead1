"""``serving dashboard``: where the dashboard of a running ``serving up`` is; or a dashboard of its own for a cluster."""

import os
import sys
from pathlib import Path

import click

from serving.cli.api import state_option
from serving.cli.stats import url_of

__all__ = ["dashboard"]


@click.command()
@click.option(
    "--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Serve one for this cluster."
)
@click.option("--address", default="127.0.0.1:6090", show_default=True, help="Where to serve it.")
@click.option(
    "--autoscaler", default="http://127.0.0.1:6081", show_default=True, help="Its autoscaler, port-forwarded."
)
@click.option(
    "--activator-metrics",
    default="http://127.0.0.1:6082/metrics",
    show_default=True,
    help="Its activator's metrics, for answers and latencies.",
)
@state_option
def dashboard(
    *, kubeconfig: Path | None, address: str, autoscaler: str, activator_metrics: str, state_path: Path | None
) -> None:
    """Say where the dashboard is; with --kubeconfig, serve one until interrupted. It is read-only."""
    if kubeconfig is None:
        click.echo(url_of("dashboard", state_path))
        return
    os.environ |= {
        "KUBECONFIG": str(kubeconfig),
        "SERVING_DASHBOARD_ADDRESS": address,
        "SERVING_DASHBOARD_AUTOSCALER_URL": autoscaler,
        "SERVING_DASHBOARD_ACTIVATOR_METRICS_URL": activator_metrics,
    }
    from serving.dashboard.main import main  # noqa: PLC0415 - only who serves needs a server

    click.echo(f"dashboard: http://{address}", err=True)
    sys.exit(main())
