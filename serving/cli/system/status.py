"""``serving status``: whether the system runs on this machine, where it answers, and what it holds."""

import json
import sys
from pathlib import Path

import click
import msgspec

from serving.cli.client.api import ApiClient, state_option
from serving.cli.client.objects import condition, items_of
from serving.cli.client.table import age_text
from serving.cluster.kinds import POD, SERVING_SERVICE
from serving.home.processes.process_lifetime import age_s
from serving.home.state import StateFolder, default_state_path
from serving.model.objects import is_true

_NOT_RUNNING = 1


class _SystemStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A system that runs. Counts are of all namespaces."""

    state: str
    pid: int
    up_s: float
    services: str
    dashboard: str
    kubeconfig: str
    service_count: int
    ready_service_count: int
    pod_count: int
    ready_pod_count: int


@click.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@state_option
def status(*, state_path: Path | None, output: str) -> None:
    """Whether the system runs, and where it answers. Exits with 1 if it does not run."""
    state = StateFolder((state_path or default_state_path()).absolute())
    pid = state.holder()
    if pid is None:
        click.echo(json.dumps(None) if output == "json" else f"serving does not run with the state folder {state.path}")
        sys.exit(_NOT_RUNNING)
    found = _status(state, pid)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    click.echo(f"serving runs: process {pid}, for {age_text(found.up_s)}")
    click.echo(f"services   {found.services}: {found.ready_service_count} of {found.service_count} ready")
    click.echo(f"pods       {found.ready_pod_count} of {found.pod_count} ready")
    click.echo(f"dashboard  {found.dashboard}")
    click.echo(f"kubectl    export KUBECONFIG={found.kubeconfig}")
    click.echo(f"state      {found.state}")


def _status(state: StateFolder, pid: int) -> _SystemStatus:
    ports = state.read_ports()
    api = ApiClient(state.path)
    services = items_of(api, SERVING_SERVICE, everywhere=True)
    pods = items_of(api, POD, everywhere=True)
    return _SystemStatus(
        state=str(state.path),
        pid=pid,
        up_s=age_s(pid),
        services=f"http://NAME.NAMESPACE.localhost:{ports['public']}",
        dashboard=f"http://127.0.0.1:{ports['dashboard']}",
        kubeconfig=str(state.kubeconfig),
        service_count=len(services),
        ready_service_count=sum(condition(one).get("status") == "True" for one in services),
        pod_count=len(pods),
        ready_pod_count=sum(is_true(one, "Ready") for one in pods),
    )
