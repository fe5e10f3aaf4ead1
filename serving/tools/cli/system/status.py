"""``serving status``, ``serving version`` and ``serving down``: show and end the system of this machine."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from serving import __version__
from serving.core.model.objects import is_true, nested
from serving.home.processes.process_lifetime import age_s
from serving.home.state import StateFolder, default_state_path
from serving.net.cluster.kinds import CERTIFICATE, POD, SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, Place, fail, late_api_options, place_options, state_option
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.output import Progress, age_text, output_option
from serving.tools.cli.client.resources import wait_timeout_option
from serving.tools.cli.system.clusterstatus import print_cluster_status
from serving.tools.cli.system.issuance import host_of, problem_of

_NOT_RUNNING = 1

_PATH = "/version"
# The extra with the package kubernetes.
_CLUSTER = "cluster"
# Time for pods to finish their requests.
_TIMEOUT_S = 120.0
_POLL_S = 0.05


class _SystemStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the running system. Counts include all namespaces."""

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
    certificate_count: int
    certificate_problems: dict[str, str]
    """The problem of each host whose certificate is missing or not renewed."""


@click.command()
@output_option()
@place_options
def status(*, place: Place, output: str) -> None:
    """Print whether the system runs, and its URL. Exits with 1 if it does not run."""
    if place.state_path is None:
        print_cluster_status(place.api(), output=output)
        return
    state = StateFolder(place.state_path.absolute())
    pid = state.holder()
    if pid is None:
        click.echo(json.dumps(None) if output == "json" else f"serving does not run with the state folder {state.path}")
        sys.exit(_NOT_RUNNING)
    system = _status(state, pid)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(system), indent=2).decode())
        return
    click.echo(f"serving runs: process {pid}, for {age_text(system.up_s)}")
    click.echo(f"services   {system.services}: {system.ready_service_count} of {system.service_count} ready")
    click.echo(f"pods       {system.ready_pod_count} of {system.pod_count} ready")
    if system.certificate_count:
        fine_count = system.certificate_count - len(system.certificate_problems)
        click.echo(f"hosts      {fine_count} of {system.certificate_count} with a certificate that is renewed")
        for host, problem in sorted(system.certificate_problems.items()):
            click.echo(f"           {host}: {problem}")
    click.echo(f"dashboard  {system.dashboard}")
    click.echo(f"kubectl    export KUBECONFIG={system.kubeconfig}")
    click.echo(f"state      {system.state}")


def _status(state: StateFolder, pid: int) -> _SystemStatus:
    ports = state.read_ports()
    api = ApiClient(state.path)
    services = items_of(api, SERVING_SERVICE, everywhere=True)
    # Evicted pods are listed, but have ended.
    all_pods = items_of(api, POD, everywhere=True)
    pods = [pod for pod in all_pods if nested(pod, "status", "phase") != "Failed"]
    certificates = items_of(api, CERTIFICATE, everywhere=True)
    problems = {host_of(certificate): problem for certificate in certificates if (problem := problem_of(certificate))}
    return _SystemStatus(
        state=str(state.path),
        pid=pid,
        up_s=age_s(pid),
        services=state.service_url(ports["public"]),
        dashboard=f"http://127.0.0.1:{ports['dashboard']}",
        kubeconfig=str(state.kubeconfig),
        service_count=len(services),
        ready_service_count=sum(is_true(service, "Ready") for service in services),
        pod_count=len(pods),
        ready_pod_count=sum(is_true(pod, "Ready") for pod in pods),
        certificate_count=len(certificates),
        certificate_problems=problems,
    )


@click.command()
@click.option("--client", is_flag=True, help="Print the client version only, without contacting a server.")
@output_option()
@late_api_options
def version(*, api: Callable[[], ApiClient], client: bool, output: str) -> None:
    """Show the version and commit of this program, its packages, and the server's Kubernetes version."""
    packages = dict(sorted(_packages()))
    versions = {"client": __version__, "commit": _commit(), "python": platform.python_version(), "packages": packages}
    if output == "text":
        click.echo(f"serving {__version__}, commit {versions['commit'] or 'unknown'}, Python {versions['python']}")
    if not client:
        versions["server"] = str(api().done("GET", _PATH).get("gitVersion", ""))
        if output == "text":
            click.echo(f"server  {versions['server']}")
    if output == "json":
        click.echo(json.dumps(versions, indent=2))
    else:
        click.echo("with    " + ", ".join(f"{name} {number}" for name, number in packages.items()))


def _commit() -> str:
    """The commit of this program's build, or of a checkout; "" if unknown."""
    package = Path(__file__).parents[3]
    noted = package / "_commit"
    if noted.exists():
        return noted.read_text().strip()
    if not (package.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(package.parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - git of the PATH
    except OSError:
        return ""


def _packages() -> Iterator[tuple[str, str]]:
    """Names and versions of installed requirements, including those of the extra for clusters."""
    for requirement in importlib.metadata.requires("serving") or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement)[0]
        _, is_extra, extra = requirement.partition("extra == ")
        if not is_extra or extra.strip("'\"") == _CLUSTER:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                yield name, importlib.metadata.version(name)


@click.command()
@wait_timeout_option(_TIMEOUT_S)
@state_option
def down(*, state_path: Path | None, wait_s: float) -> None:
    """Stop the system and its pods, and wait until they have ended.

    Services stay in the state folder for the next `up`.
    """
    state = StateFolder((state_path or default_state_path()).absolute())
    pid = state.holder()
    if pid is None:
        click.echo(f"serving does not run with the state folder {state.path}")
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        fail(f"process {pid} belongs to another user; run `serving down` as that user")
    except ProcessLookupError:
        fail(f"process {pid}, which {state.path} names, cannot be seen from here; is it in a container?")
    deadline_s = time.monotonic() + wait_s
    with Progress(f"waiting for process {pid} to end"):
        while state.holder() == pid:
            if time.monotonic() >= deadline_s:
                fail(f"process {pid} has not ended after {wait_s:g} s; `kill -9 {pid}` ends it at once")
            time.sleep(_POLL_S)
    click.echo("serving has ended")
